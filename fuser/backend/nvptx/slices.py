"""Tiles that do not fit shared memory as a whole: moved, and multiplied, a part at a time.

It is the plan for kernels of callers whose blocks are larger than the faster plans have room for:
correct for any block, and slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.assignment import DotPlan
from fuser.backend.nvptx.convert import convert, read_dense
from fuser.backend.nvptx.emit.code import shared_offset
from fuser.backend.nvptx.emit.memory import from_memory, to_memory
from fuser.backend.nvptx.emitter import Linear, Operand
from fuser.backend.nvptx.indexing import Indexer
from fuser.backend.nvptx.ir.layouts import offset_of, row_major, tile_size
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layout import Coordinates, Layout, blocked
from fuser.backend.nvptx.values import memory_type
from fuser.tilegen import ops
from fuser.tilegen.value import TileType, Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

SHARE = 3
"""A part takes at most this part of the shared memory."""


def room(low: Lowering) -> int:
    """Bytes of a part."""
    return low.target.shared_bytes // SHARE // 1024 * 1024


def move_in_parts(low: Lowering, tile: Tile, shape: Coordinates, layout: Layout) -> Tile:
    """The same elements in row-major order under another shape, in a layout."""
    e, dtype = low.emitter, tile.dtype
    type, size = memory_type(dtype), dtype.bytes
    window = room(low) // size
    slot = low.shared.allocate((window + 1) * size)
    start = low.shared.pointer(slot)
    sources = _Places(low, tile.layout, tile.shape)
    targets = _Places(low, layout, shape)
    regs = ["poison"] * len(layout.regs)
    for first in range(0, tile_size(shape), window):
        low.shared.before_write()
        for offset, reg in zip(tile.layout.regs, tile.regs, strict=True):
            place, condition = sources.within(offset, first, window)
            if condition == 0:
                continue
            if condition is not None:  # to nowhere: branches by the hundred take long to compile
                place = e.pick(condition, place, window)
            item = to_memory(low, reg, dtype)
            pointer = _at(low, start, place, size)
            e.do(f"store {type} {item}, ptr addrspace(3) {pointer}, align {size}")
        low.shared.before_read()
        for number, offset in enumerate(layout.regs):
            place, condition = targets.within(offset, first, window)
            if condition == 0:
                continue
            if condition is not None:
                place = e.pick(condition, place, 0)
            pointer = _at(low, start, place, size)
            name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {size}")
            found = from_memory(low, name, dtype)
            if condition is not None:
                old = f"{dtype.llvm} {regs[number]}"
                found = e.value(f"select i1 {condition}, {dtype.llvm} {found}, {old}")
            regs[number] = found
    low.shared.free(slot)
    return Tile(dtype, shape, layout, regs)


def rows_in_warps(low: Lowering, tile: Tile, axis: int) -> Tile:
    """A tile in a layout in which few warps share a row along an axis, where what they would tell
    each other of its folds is too much."""
    layout = tile.layout
    sharing = sum(1 for basis in layout.warps if basis[axis])
    if tile_size(layout.reduced(axis).shape) * tile.dtype.bytes << sharing <= room(low):
        return tile
    others = [a for a in reversed(range(layout.rank)) if a != axis]
    wanted = blocked(tile.shape, low.warps, (axis, *others), 1)
    return convert(low, tile, wanted)


def _at(low: Lowering, start: str, place: Operand, size: int) -> str:
    by = low.emitter.times(place, size)
    return low.emitter.value(f"getelementptr i8, ptr addrspace(3) {start}, i32 {by}")


class _Places:
    """Row-major places of a layout's registers in a tile."""

    def __init__(self, low: Lowering, layout: Layout, shape: Coordinates) -> None:
        self.low, self.layout, self.shape = low, layout, shape
        self.indexer: Indexer = low.indexer(layout)
        self.steps = row_major(shape, 1)[1]
        threads = [offset_of(basis, self.steps) for basis in layout.bits]
        self.thread, self.span = low.emitter.thread_part(threads), sum(threads)

    def within(self, offset: Coordinates, first: int, count: int) -> tuple[Operand, Operand | None]:
        """(place from `first` on, whether it is one of the `count` places there and of the tile):
        None where it surely is, 0 where it surely is not."""
        constant = offset_of(offset, self.steps) - first
        place = self.low.emitter.plus(self.thread, constant)
        if constant >= count or constant + self.span < 0:
            return place, 0
        condition = self.indexer.inside(self.shape, offset)
        if constant >= 0 and constant + self.span < count:
            return place, condition
        dynamic = self.thread if isinstance(self.thread, str) else None
        inside = self.indexer.below(Linear(dynamic, constant), count)
        return place, self.low.emitter.both(condition, inside)


def slice_of(low: Lowering, tile: Tile, axis: int, start: int, count: int) -> Tile:
    """The elements from `start` on along an axis, in a plain layout."""
    e, dtype = low.emitter, tile.dtype
    shape = (*tile.shape[:axis], count, *tile.shape[axis + 1 :])
    size, steps = row_major(shape, dtype.bytes)
    slot = low.shared.allocate(size)
    low.shared.before_write()
    indexer = low.indexer(tile.layout)
    thread = e.thread_part([offset_of(basis, steps) for basis in tile.layout.bits])
    base = low.shared.pointer(slot, thread)
    along = indexer.thread(axis)
    dynamic, fixed = (along, 0) if isinstance(along, str) else (None, along)
    span = tile.layout.thread_span(axis)
    for offset, reg in zip(tile.layout.regs, tile.regs, strict=True):
        place = offset[axis] - start + fixed
        if place >= count or place + span <= 0:
            continue
        condition = indexer.inside(tile.shape, offset)
        if place < 0 or place + span > count:
            condition = e.both(condition, indexer.below(Linear(dynamic, place), count))
        if condition == 0:
            continue
        at = offset_of(offset, steps) - start * steps[axis]
        text = f"store {memory_type(dtype)} {to_memory(low, reg, dtype)}, ptr addrspace(3) "
        if condition is None:
            e.do(text + f"{shared_offset(low, base, at)}, align {dtype.bytes}")
        else:
            with e.where(condition):
                e.do(text + f"{shared_offset(low, base, at)}, align {dtype.bytes}")
    low.shared.before_read()
    made = read_dense(low, dtype, shape, low.plain_layout(shape), slot)
    low.shared.free(slot)
    return made


def slice_length(low: Lowering, op: ops.Dot, plan: DotPlan) -> int:
    """How much of k is multiplied at a time: what has room beside other things."""
    k = op.a.shape[1]
    rows, columns = plan.accumulator.shape
    least = 16
    if plan.grid is not None:
        least = max(least, plan.grid.depth * plan.grid.warps_k)
    length = k
    while length > least and length % 2 == 0:
        if (rows + columns) * length * op.a.dtype.bytes <= room(low):
            break
        length //= 2
    return length


def dots_of_slices(low: Lowering, op: ops.Dot, plan: DotPlan, length: int) -> list[ops.Dot]:
    """A dot as dots of slices of k, whose operands are there when each is emitted in turn: their
    first accumulator is the dot's own, and that of each other is bound by who emits them."""
    found: list[ops.Dot] = []
    acc = op.acc
    for _ in range(0, op.a.shape[1], length):
        (m, _), n = op.a.shape, op.b.shape[1]
        a = Value(TileType(op.a.dtype, (m, length)), "a")
        b = Value(TileType(op.b.dtype, (length, n)), "b")
        dot = ops.Dot(a=a, b=b, acc=acc, precision=op.precision, codes=op.codes)
        acc = Value(op.result.type, "acc")
        dot.results = (acc,)
        low.assignment.dots[dot] = plan
        found.append(dot)
    return found
