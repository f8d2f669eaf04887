"""Which program of the grid a CUDA block is: the raster, and coordinates from block numbers."""

from __future__ import annotations

import math

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.integers import IntegerBuilder, Integers
from fuser.graph.sizes import certain, divides, is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Extreme, FloorDiv, Index, Scalar
from fuser.tilegen.ir import Kernel

MAX_YZ = 65535


def growing_axes(kernel: Kernel) -> frozenset[int]:
    """Grid axes along which programs have more to do: loops run further as the coordinate grows,
    as in causal attention. Started from the far end, the short programs fill the tail."""
    names = {op.result: op.axis for op in kernel.body.ops if isinstance(op, ops.ProgramId)}
    meaning = {
        op.result: op.expression
        for op in kernel.body.ops
        if isinstance(op, ops.IndexTile) and not op.shape
    }
    found, seen = set[int](), set[tuple[Index, int]]()

    def visit(at: Index, sign: int) -> None:
        if (at, sign) in seen:
            return
        seen.add((at, sign))
        for atom, coefficient in at.terms:
            along = sign if coefficient > 0 else -sign
            match atom:
                case Scalar() if atom.value in names:
                    if along > 0:
                        found.add(names[atom.value])
                case Scalar() if atom.value in meaning:
                    visit(meaning[atom.value], along)
                case FloorDiv():
                    visit(atom.base, along)
                case Extreme():
                    for item in atom.items:
                        visit(item, along)

    for op in kernel.body.ops:
        if isinstance(op, ops.For):
            visit(op.stop, 1)
            visit(op.start, -1)
    return frozenset(found)


class ProgramOrder:
    """Maps a kernel's grid to a launch.

    Without a group, the last three axes are block x, y, z where they fit at all sizes; otherwise,
    and with a group, the blocks are numbered in one dimension. `group` rows of blocks of the last
    two axes (m, n) are swept together, column by column, so that the blocks that run at one time
    share operands in L2. Axes of `reverse` are counted from the far end. cluster: blocks of a
    program, side by side along x. multicast_shape: (rows, columns) of programs of the last two
    axes, which divide by them, whose blocks form a cluster; what is numbered then are such groups
    of programs.
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        group: int,
        reverse: frozenset[int] = frozenset(),
        cluster: int = 1,
        multicast_shape: tuple[int, int] = (1, 1),
    ) -> None:
        self.extents = grid
        self.multicast_shape = multicast_shape
        together = multicast_shape[0] * multicast_shape[1]
        if together > 1:
            grid = (*grid[:-2], grid[-2] // multicast_shape[0], grid[-1] // multicast_shape[1])
            group = -(-group // multicast_shape[0])
        self.grid = grid
        self.cluster = cluster * together
        self.unit = "clusterid" if self.cluster > 1 else "ctaid"
        self.reverse = reverse
        alone = len(grid) < 2 or same(grid[-2], 1) or same(grid[-1], 1)
        self.group = 0 if alone else group
        tail = grid[-3:][::-1]
        # of what may be more than that at some sizes, code for all sizes is made
        fits = len(grid) <= 3 and all(certain(MAX_YZ - extent) for extent in tail[1:])
        self.flat = bool(self.group) or not fits or together > 1
        self.launch: tuple[int, int, int] = (1, 1, 1)
        if self.flat:
            count = 1
            for extent in grid:
                count *= extent
            self.launch = (count, 1, 1)
        else:
            padded = (*tail, 1, 1, 1)
            self.launch = (padded[0], padded[1], padded[2])
        self.launch = (self.launch[0] * self.cluster, *self.launch[1:])
        self._known: dict[int, Operand] = {}

    @property
    def programs(self) -> int:
        """Programs of the grid, or multicast clusters of them."""
        return math.prod(self.grid)

    def persist(self, blocks: int) -> None:
        """Launch this many blocks, or clusters, each of which runs programs in turn (see
        `choose`)."""
        self.launch = (blocks * self.cluster, 1, 1)

    def choose(self, emitter: Integers, number: Operand) -> None:
        """Make the coordinates those of a program, numbered in the order of the raster."""
        self._known = {}
        self._decode(emitter, number, emitter)
        self._spread(emitter, emitter)
        self._reverse(emitter, emitter)

    def _reverse(self, emitter: Integers, write: IntegerBuilder) -> None:
        for reversed_ in self.reverse & self._known.keys():
            last = emitter.size(self.extents[reversed_] - 1)
            self._known[reversed_] = write.compute("sub", last, self._known[reversed_])

    def _spread(self, emitter: Integers, write: IntegerBuilder) -> None:
        """From the coordinates of a multicast cluster to those of this block's program."""
        rows, columns = self.multicast_shape
        if rows * columns == 1:
            return
        row = column = emitter.rank
        if columns > 1:
            row = write.compute("lshr", row, columns.bit_length() - 1)
            column = write.compute("and", column, columns - 1)
        rank = len(self.extents)
        for axis, count, part in ((rank - 2, rows, row), (rank - 1, columns, column)):
            if count > 1:
                first = write.compute("mul", self._known[axis], count)
                self._known[axis] = write.compute("add", first, part)

    def coordinate(self, emitter: Integers, axis: int) -> Operand:
        """The program's coordinate on a grid axis; computed at the head of the kernel."""
        if axis >= len(self.extents) or same(self.extents[axis], 1):
            return 0
        if not self._known:
            if self.flat:
                self._decode(emitter, emitter.head.register(f"{self.unit}.x"), emitter.head)
            else:
                for at, letter in zip(reversed(range(len(self.grid))), "xyz", strict=False):
                    if not same(self.grid[at], 1):
                        self._known[at] = emitter.head.register(f"{self.unit}.{letter}")
            self._spread(emitter, emitter.head)
            self._reverse(emitter, emitter.head)
        return self._known[axis]

    def _decode(self, emitter: Integers, number: Operand, write: IntegerBuilder) -> None:
        rank = len(self.grid)
        rest: Operand = number
        axes = list(reversed(range(rank)))
        if self.group:
            m, n = self.grid[-2:]
            if rank > 2:
                area = emitter.size(m * n)
                inside: Operand = write.compute("urem", rest, area)
                rest = write.compute("udiv", rest, area)
            else:
                inside = rest
            self._group(emitter, write, inside, m, n)
            axes = axes[2:]
        for position, axis in enumerate(axes):
            extent = emitter.size(self.grid[axis])
            last = position == len(axes) - 1
            self._known[axis] = rest if last else write.compute("urem", rest, extent)
            if not last:
                rest = write.compute("udiv", rest, extent)

    def _group(
        self, emitter: Integers, write: IntegerBuilder, number: Operand, m: int, n: int
    ) -> None:
        # of open sizes m may be less than the group: the last sweep has fewer rows anyway
        group = self.group if is_symbolic(m) else min(self.group, m)
        sweep = emitter.size(group * n)
        band = write.compute("udiv", number, sweep)
        first = write.compute("mul", band, group)
        inside = write.compute("urem", number, sweep)
        rows: Operand = group
        if not divides(group, m):
            left = write.compute("sub", emitter.size(m), first)
            rows = write.compute("umin", left, group)
        row = write.compute("urem", inside, rows)
        rank = len(self.grid)
        self._known[rank - 2] = write.compute("add", first, row)
        self._known[rank - 1] = write.compute("udiv", inside, rows)
