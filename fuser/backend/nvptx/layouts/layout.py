"""Layouts: which thread's which register holds each element of a tile.

A layout gives every register an offset and every bit of the thread number a basis vector; element
coordinates are their sum:

    coordinates = regs[r] + sum(bit b of the lane) lanes[b] + sum(bit b of the warp) warps[b]

This is the linear layout of the literature with the register part kept as an explicit list, so that
a tile dim need not be a power of two (80 rows are five repeats of 16). A zero basis repeats the
tile over that bit: reductions and broadcasts make them. `shape` is what the layout covers; a tile
may be smaller, and then elements past its edge are garbage that reductions, dots and stores mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from fuser.base.forks import cached_property

Coordinates = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """A distribution of a tile over registers, 32 lanes and 2^n warps."""

    shape: Coordinates
    regs: tuple[Coordinates, ...]
    lanes: tuple[Coordinates, ...]
    warps: tuple[Coordinates, ...]

    @cached_property
    def key(self) -> tuple[object, ...]:
        return (self.regs, self.lanes, self.warps)

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self.key == other.key)

    def __hash__(self) -> int:
        return self._hash

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def bits(self) -> tuple[Coordinates, ...]:
        """Basis of every bit of the thread number, lanes first."""
        return self.lanes + self.warps

    @cached_property
    def register_of(self) -> dict[Coordinates, int]:
        """Register number by offset."""
        return {offset: number for number, offset in enumerate(self.regs)}

    def thread_span(self, axis: int) -> int:
        """One more than the greatest coordinate that threads alone reach along an axis."""
        return 1 + sum(basis[axis] for basis in self.bits)

    def vector(self, axis: int) -> int:
        """The greatest power of two of consecutive elements along `axis` that a thread owns."""
        width = 1
        while width < 16:
            wider = width * 2
            if self.shape[axis] % wider or any(basis[axis] % wider for basis in self.bits):
                break
            if not all(self._run(offset, axis, wider) for offset in self.regs):
                break
            width = wider
        return width

    def _run(self, offset: Coordinates, axis: int, width: int) -> bool:
        start = offset[axis] - offset[axis] % width
        return all(
            (*offset[:axis], start + step, *offset[axis + 1 :]) in self.register_of
            for step in range(width)
        )

    def coalesced(self, axis: int) -> int:
        """How many consecutive elements along `axis` the lanes of a warp touch in one access."""
        run = self.vector(axis)
        for basis in self.lanes:
            if basis[axis] == run and sum(basis) == run:
                run *= 2
        return run

    # derived layouts ----------------------------------------------------------------------------

    def reduced(self, axis: int) -> Layout:
        """The layout of a reduction along `axis`: that coordinate dropped, repeats merged."""
        return self.project([d for d in range(self.rank) if d != axis])

    def project(self, axes: Sequence[int], ones: Sequence[bool] = ()) -> Layout:
        """The layout of an operand whose axis i is axis axes[i] here; ones[i] marks dims of 1.

        Every thread then owns what it needs of a broadcast operand.
        """
        flat = list(ones) or [False] * len(axes)

        def keep(at: Coordinates) -> Coordinates:
            return tuple(0 if one else at[a] for a, one in zip(axes, flat, strict=True))

        return Layout(
            tuple(1 if one else self.shape[a] for a, one in zip(axes, flat, strict=True)),
            tuple(dict.fromkeys(keep(offset) for offset in self.regs)),
            tuple(keep(basis) for basis in self.lanes),
            tuple(keep(basis) for basis in self.warps),
        )

    def permuted(self, axes: Sequence[int]) -> Layout:
        """Axis i of the result is axis axes[i] here."""

        def move(at: Coordinates) -> Coordinates:
            return tuple(at[a] for a in axes)

        return Layout(
            move(self.shape),
            tuple(map(move, self.regs)),
            tuple(map(move, self.lanes)),
            tuple(map(move, self.warps)),
        )

    def __str__(self) -> str:
        lanes = " ".join(map(str, self.lanes))
        warps = " ".join(map(str, self.warps))
        return f"{list(self.shape)}: {len(self.regs)} registers, lanes {lanes}, warps {warps}"


def _bits(count: int) -> int:
    """Bits that number `count` warps; 12 warps have four, and use 12 of 16 patterns."""
    return (count - 1).bit_length()


def next_power(count: int) -> int:
    """The least power of two that is not less than count."""
    return 1 << max(0, count - 1).bit_length()


def blocked(
    shape: Sequence[int], warps: int, order: Sequence[int], vector: int, spread: bool = False,
    runs: Mapping[int, int] | None = None,
) -> Layout:  # fmt: skip
    """Coalesced vectors: `vector` elements a thread along order[0], lanes from the fastest axis on.

    order: axes, fastest first. Warps take the slowest axes first, so that reductions along the
    fastest stay inside a warp, unless `spread` puts them along the fastest axis too. runs: so many
    neighbours along other axes are a thread's too. What is left of the tile repeats in registers.
    """
    rank = len(shape)
    unit = [1] * rank
    if rank:
        unit[order[0]] = vector
    for axis, count in (runs or {}).items():
        unit[axis] = count

    extents = tuple(unit)

    def room(axis: int) -> int:
        return next_power(-(-shape[axis] // unit[axis]))

    def take(bits: int, axes: Sequence[int]) -> tuple[Coordinates, ...]:
        found: list[Coordinates] = []
        for axis in axes:
            while len(found) < bits and room(axis) > 1:
                found.append(tuple(unit[axis] if d == axis else 0 for d in range(rank)))
                unit[axis] *= 2
        found += [(0,) * rank] * (bits - len(found))
        return tuple(found)

    lanes = take(5, order)
    whole = warps.bit_length() - 1  # warps beyond a power of two repeat the first ones
    warp_bits = take(whole, order if spread else tuple(reversed(order)))
    warp_bits += ((0,) * rank,) * (_bits(warps) - whole)
    repeats = [-(-shape[d] // unit[d]) for d in range(rank)]
    regs: list[Coordinates] = []
    outer = [axis for axis in reversed(order)]
    for point in product(*(range(repeats[axis]) for axis in outer)):
        start = [0] * rank
        for axis, step in zip(outer, point, strict=True):
            start[axis] = step * unit[axis]
        if not rank:
            regs.append(())
            continue
        for own in product(*(range(count) for count in extents)):
            regs.append(tuple(a + b for a, b in zip(start, own, strict=True)))
    covered = tuple(unit[d] * repeats[d] for d in range(rank))
    return Layout(covered, tuple(regs), lanes, warp_bits)


def strips_along(whole: Layout, axis: int, size: int) -> list[Layout]:
    """Parts of a layout, of `size` elements a thread or one vector of each row: what lies at the
    same places of all rows together."""
    columns = sorted({offset[axis] for offset in whole.regs})
    width = whole.vector(axis)
    rows = len(whole.regs) // len(columns)
    step = max(width, size // rows // width * width)
    strips = []
    for first in range(0, len(columns), step):
        part = set(columns[first : first + step])
        regs = tuple(offset for offset in whole.regs if offset[axis] in part)
        strips.append(Layout(whole.shape, regs, whole.lanes, whole.warps))
    return strips


def scalar_layout(warps: int) -> Layout:
    """A single element that every thread holds."""
    return Layout((), ((),), ((),) * 5, ((),) * _bits(warps))


ROW_LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
"""Lanes of an m16n8 accumulator and of a 16-bit A fragment: four lanes along a row, eight rows."""


@dataclass(frozen=True)
class WarpGrid:
    """How the warps of a program share the [m, n] tile of a dot.

    Each warp owns `rows` x `columns`, in bands of 16 rows that are `band` rows apart: 16 for
    mma.sync; 64 for wgmma, where the four warps of a group interleave. `warps_k` groups of warps
    share the work along k and hold partial sums of the same elements. `depth` is the k of an
    instruction: 16, or 32 where operands have 8 bits.

    run: neighbours along k that a lane has of the right operand, where that is made in registers
    and not read from shared memory; 0 elsewhere. A matmul does not care how k and the columns are
    numbered as long as its operands and its result agree: lane t has the steps of k from t * run
    on where the instruction says 2t, 2t + 1, 2t + 8 and 2t + 9, and neighbouring columns are in
    one lane, so that what they are made of is read in vectors.
    """

    m: int
    n: int
    warps_m: int
    warps_n: int
    wgmma: bool = False
    warps_k: int = 1
    depth: int = 16
    run: int = 0

    @property
    def rows(self) -> int:
        """Rows of a warp (of a warp group, for wgmma) along m."""
        unit = 64 if self.wgmma else 16
        parts = max(1, self.warps_m // 4) if self.wgmma else self.warps_m
        return -(-self.m // (unit * parts)) * unit

    @property
    def columns(self) -> int:
        return -(-self.n // (8 * self.warps_n)) * 8

    @property
    def band(self) -> int:
        return 64 if self.wgmma else 16

    @property
    def bands(self) -> int:
        return self.rows // self.band

    def warp_bits(
        self, along_m: bool, along_n: bool, k_axis: int | None = None
    ) -> tuple[Coordinates, ...]:
        """Basis of the warp bits in an operand (or the result) that has the dims m, n it says;
        k_axis: its axis of k, along which groups of warps take `k_block` steps each, in
        rotation."""
        steps: list[Coordinates] = []
        count = self.warps_m
        if self.wgmma:
            steps += [(16 * along_m, 0), (32 * along_m, 0)]
            count //= 4
        steps += [((self.rows << b) * along_m, 0) for b in range(_bits(count))]
        steps += [(0, (self.columns << b) * along_n) for b in range(_bits(self.warps_n))]
        for bit in range(_bits(self.warps_k)):
            steps.append(tuple(self.k_block << bit if axis == k_axis else 0 for axis in range(2)))
        return tuple(steps)

    @property
    def k_block(self) -> int:
        """Steps of k that a group of warps has before the next group follows."""
        return 4 * self.run or self.depth

    @property
    def covered(self) -> tuple[int, int]:
        parts = self.warps_m // 4 if self.wgmma else self.warps_m
        return self.rows * parts, self.columns * self.warps_n

    def group_slices(self, left: bool) -> tuple[int, int]:
        """How many slices of the left operand's rows, or the right one's columns, warp groups have,
        and the extent of each (wgmma)."""
        return (self.warps_m // 4, self.rows) if left else (self.warps_n, self.columns)

    def accumulator(self) -> Layout:
        """The result: for each band and 8 columns, elements (r, c) (r, c+1) (r+8, c) (r+8, c+1)."""
        blocks = self.columns // 8
        column, block_step = (blocks, 1) if self.run else (1, 8)
        regs = tuple(
            (band * self.band + half * 8, block * block_step + pair * column)
            for band in range(self.bands)
            for block in range(blocks)
            for half in range(2)
            for pair in range(2)
        )
        lanes = ((0, 2 * column), (0, 4 * column), *ROW_LANES[2:])
        return Layout(self.covered, regs, lanes, self.warp_bits(True, True))

    def left_fragment(self, k: int) -> Layout:
        """The A operand [m, k] of 8 or 16 bits as mma.sync and wgmma take it: every step of
        `depth` along k is four words a lane."""
        depth, word = self.depth, self.depth // 8
        near, far = (word, depth // 2) if not self.run else (self.run, word)
        halves = 1 if self.lower_half else 2
        regs = tuple(
            (band * self.band + half * 8, step + upper * far + place)
            for band in range(self.bands)
            for step in self._steps(k)
            for upper in range(2)
            for half in range(halves)
            for place in range(word)
        )
        shape = (self.covered[0] // 2 * halves, -(-k // self.k_block) * self.k_block)
        lanes = ((0, near), (0, 2 * near), *ROW_LANES[2:])
        return Layout(shape, regs, lanes, self._warps_of_fragment(True))

    @property
    def lower_half(self) -> bool:
        """Whether fragments of the left operand have the first 8 rows alone; nobody looks at
        products of the others, which may be anything."""
        return bool(self.run) and self.m <= 8

    def right_fragment(self, k: int) -> Layout:
        """The B operand [k, n] of 16 bits that is made in registers: every step of an instruction
        along k is two words a lane for each 8 columns."""
        blocks = self.columns // 8
        regs = tuple(
            (step + place, block)
            for step in self._steps(k)
            for block in range(blocks)
            for place in range(4)
        )
        shape = (-(-k // self.k_block) * self.k_block, self.covered[1])
        lanes = ((self.run, 0), (2 * self.run, 0), (0, blocks), (0, 2 * blocks), (0, 4 * blocks))
        return Layout(shape, regs, lanes, self._warps_of_fragment(False))

    def _steps(self, k: int) -> list[int]:
        """Where the steps of an instruction along k begin in a lane."""
        if not self.run:
            return list(range(0, k, self.depth))
        blocks = range(0, k, self.k_block * self.warps_k)
        return [k_block + step for k_block in blocks for step in range(0, self.run, 4)]

    def _warps_of_fragment(self, left: bool) -> tuple[Coordinates, ...]:
        """With `run`, groups of warps have the elements of their own blocks of k alone."""
        own = (1 if left else 0) if self.run else None
        return self.warp_bits(left, not left, own)

    def left_fragment32(self, k: int) -> Layout:
        """The 32-bit A operand, 8 of k a step.

        A matmul does not care how k is numbered as long as both operands agree: lane t holds
        k = 2t and 2t + 1 where the instruction says t and t + 4. So an accumulator is an operand as
        it stands, and shared memory is read in pairs.
        """
        regs = tuple(
            (band * self.band + half * 8, step * 8 + pair)
            for band in range(self.bands)
            for step in range(-(-k // 8))
            for pair in range(2)
            for half in range(2)
        )
        shape = (self.covered[0], -(-k // 8) * 8)
        return Layout(shape, regs, ROW_LANES, self.warp_bits(True, False))

    def right_fragment32(self, k: int) -> Layout:
        """The 32-bit B operand [k, n] in the same numbering of k."""
        regs = tuple(
            (step * 8 + pair, block * 8)
            for step in range(-(-k // 8))
            for block in range(self.columns // 8)
            for pair in range(2)
        )
        lanes = ((2, 0), (4, 0), (0, 1), (0, 2), (0, 4))
        shape = (-(-k // 8) * 8, self.covered[1])
        return Layout(shape, regs, lanes, self.warp_bits(False, True))
