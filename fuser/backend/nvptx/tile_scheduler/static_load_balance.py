"""Which programs a block of a persistent kernel runs where they differ in length, as those of a
causal mask or a window do: a table that gives every block about as many iterations.

The longest go first, each to the block that has least to do so far: what the hardware does with
blocks that run one program each, but decided before. Those of one length keep the order of the
raster, so that programs that read the same keys run at one time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.tile_scheduler.persistent import Persistent
from fuser.backend.nvptx.tile_scheduler.raster import ProgramOrder
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Index, Scalar
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value

TABLE = "@programs"
MAX_NUMBERS = 12288
"""In a table: three quarters of the 64 KiB of constant memory."""
BETWEEN = 1.5
"""Iterations that it takes to end a program and to begin the next one."""


class StaticLoadBalance(Persistent):
    """A block has the programs that a table says, at its own number and every `blocks`th after."""

    def __init__(self, low: Builder, blocks: int, table: list[int]) -> None:
        super().__init__(low, blocks)
        self._table = table

    def program(self, at: str) -> str:
        self.low.needs.tables[TABLE] = tuple(self._table)
        return self.low.scalar_of(gpu.ReadTable(table=TABLE, at=at))


def table_of(low: Builder, blocks: int) -> list[int] | None:
    """Where programs differ in length, a table of those of every block."""
    trip_counts = iterations_of_programs(low.kernel, low.order)
    numbers = longest_first(trip_counts, blocks) if trip_counts else []
    return numbers if 0 < len(numbers) <= MAX_NUMBERS else None


def longest_first(trip_counts: Sequence[int], blocks: int) -> list[int]:
    """The numbers of the programs of so many blocks, of so many iterations each: round by round,
    one for each block; where a block has none left, and in a last round, the number of programs."""
    found: list[list[int]] = [[] for _ in range(blocks)]
    loads = [(0.0, block) for block in range(blocks)]
    for number in sorted(range(len(trip_counts)), key=lambda number: -trip_counts[number]):
        load, block = loads[0]
        found[block].append(number)
        heapq.heapreplace(loads, (load + trip_counts[number] + BETWEEN, block))
    rounds = max(map(len, found)) + 1
    padded = [own + [len(trip_counts)] * (rounds - len(own)) for own in found]
    return [own[round_] for round_ in range(rounds) for own in padded]


def iterations_of_programs(kernel: Kernel, order: ProgramOrder) -> list[int] | None:
    """Iterations of the loops of every program, in the order of the raster; None where all programs
    have as many, or it is not known how many."""
    if is_symbolic(*order.grid) or order.group or order.cluster > 1:
        return None
    if order.programs > MAX_NUMBERS:
        return None
    walk = _Loops(kernel)
    result: list[int] = []
    for at in itertools.product(*(range(extent) for extent in order.grid)):
        count = walk.trip_count(
            tuple(
                order.grid[axis] - 1 - number if axis in order.reverse else number
                for axis, number in enumerate(at)
            )
        )
        if count is None:
            return None
        result.append(count)
    return result if min(result) < max(result) else None


class _Loops:
    """The loops of a kernel, as far as coordinates of programs tell."""

    def __init__(self, kernel: Kernel) -> None:
        body = kernel.body.ops
        self.loops = [op for op in body if isinstance(op, ops.For)]
        self.axes = {op.result: op.axis for op in body if isinstance(op, ops.ProgramId)}
        self.meaning = {
            op.result: op.expression
            for op in body
            if isinstance(op, ops.IndexTile) and not op.shape
        }
        self.used = sorted(self._used())
        self._known: dict[tuple[int, ...], int | None] = {}

    def trip_count(self, at: tuple[int, ...]) -> int | None:
        """Of the program at these coordinates; None where they depend on data."""
        key = tuple(at[axis] for axis in self.used)
        if key not in self._known:
            known = dict(zip(self.used, key, strict=True))
            counts = [self._count(loop, known) for loop in self.loops]
            self._known[key] = None if None in counts else sum(filter(None, counts))
        return self._known[key]

    def _used(self) -> set[int]:
        """The grid axes on which bounds of loops depend."""
        pending = [v for loop in self.loops for v in loop.start.values() + loop.stop.values()]
        found, seen = set[int](), set[Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.axes:
                found.add(self.axes[value])
            elif value in self.meaning:
                pending.extend(self.meaning[value].values())
        return found

    def _count(self, loop: ops.For, known: Mapping[int, int]) -> int | None:
        numbers: dict[Value, Index] = {}

        def put(atom: Atom) -> Index | None:
            value = atom.value if isinstance(atom, Scalar) else None
            if value is None:
                return None
            if value in self.axes:
                return Index(known[self.axes[value]])
            if value in self.meaning and value not in numbers:
                numbers[value] = self.meaning[value].replace(put)
            return numbers.get(value)

        start, stop = loop.start.replace(put), loop.stop.replace(put)
        if not (start.is_constant and stop.is_constant):
            return None
        if is_symbolic(start.constant, stop.constant):
            return None
        return max(0, -(-(stop.constant - start.constant) // loop.step))
