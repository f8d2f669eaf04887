"""Tiles that do not fit shared memory as a whole: moved, and multiplied, a slice at a time.

It is the plan for callers' kernels whose blocks are larger than the faster plans have room for:
correct for any block, and slow.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import row_major, tile_size
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.assignment import Assignment, DotPlan
from fuser.backend.nvptx.layouts.convert import convert
from fuser.backend.nvptx.layouts.layout import blocked
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.tilegen import ops
from fuser.tilegen.value import TileType, Value

SLICES = 3
"""A slice takes at most one of so many parts of the shared memory."""


def room(low: Recording) -> int:
    """Bytes of a slice."""
    return low.target.shared_bytes // SLICES // 1024 * 1024


def rows_in_warps(low: Builder, tile: Tile, axis: int) -> Tile:
    """A tile in a layout in which few warps share a row along an axis, where what they would tell
    each other of its folds is too much."""
    layout = tile.layout
    sharing = sum(1 for basis in layout.warps if basis[axis])
    if tile_size(layout.reduced(axis).shape) * tile.dtype.bytes << sharing <= room(low):
        return tile
    others = [a for a in reversed(range(layout.rank)) if a != axis]
    wanted = blocked(tile.shape, low.warps, (axis, *others), 1)
    return convert(low, tile, wanted)


def slice_of(low: Recording, tile: Tile, axis: int, start: int, count: int) -> Tile:
    """The elements from `start` on along an axis, in a plain layout."""
    shape = (*tile.shape[:axis], count, *tile.shape[axis + 1 :])
    slot = low.shared.allocate(row_major(shape, tile.dtype.bytes)[0])
    low.do(gpu.WriteSlice(slot=slot, x=tile, axis=axis, start=start, count=count))
    made = low.new(tile.dtype, shape, low.plain_layout(shape))
    low.do(gpu.ReadDense(slot=slot, results=(made,)))
    low.shared.free(slot)
    return made


def slice_length(low: Recording, op: ops.Dot, plan: DotPlan) -> int:
    """How much of k is multiplied at a time: what has room beside other things."""
    k = op.a.shape[1]
    rows, columns = plan.accumulator.shape
    least = 16
    if plan.grid is not None:
        least = max(least, plan.grid.k_block * plan.grid.warps_k)
    length = k
    while length > least and length % 2 == 0:
        if (rows + columns) * length * op.a.dtype.bytes <= room(low):
            break
        length //= 2
    return length


def dots_of_slices(
    assignment: Assignment, op: ops.Dot, plan: DotPlan, length: int
) -> list[ops.Dot]:
    """A dot as dots of slices of k, whose operands are there when each is emitted in turn: their
    first accumulator is the dot's own, and that of each other is bound by who emits them."""
    found: list[ops.Dot] = []
    acc = op.acc
    for _ in range(0, op.a.shape[1], length):
        (m, _), n = op.a.shape, op.b.shape[1]
        a = Value(TileType(op.a.dtype, (m, length)), "a")
        b = Value(TileType(op.b.dtype, (length, n)), "b")
        made = Value(op.result.type, "acc")
        dot = ops.Dot(a=a, b=b, acc=acc, precision=op.precision, codes=op.codes, results=(made,))
        acc = made
        assignment.dots[dot] = plan
        found.append(dot)
    return found
