"""Parts of tiles to and from shared memory, where all of it would not fit."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code, shared_offset
from fuser.backend.nvptx.emit.memory import from_memory, to_memory
from fuser.backend.nvptx.emit.values import memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of, row_major
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.indexing import Indexer
from fuser.backend.nvptx.lowering.integers import Linear


class _Places:
    """Row-major places of a layout's registers in a tile."""

    def __init__(self, code: Code, layout: Layout, shape: Coordinates) -> None:
        self.code, self.layout, self.shape = code, layout, shape
        self.indexer: Indexer = code.indexer(layout)
        self.steps = row_major(shape, 1)[1]
        threads = [offset_of(basis, self.steps) for basis in layout.bits]
        self.thread, self.span = code.emitter.thread_offset(threads), sum(threads)

    def within(self, offset: Coordinates, first: int, count: int) -> tuple[Operand, Operand | None]:
        """(place from `first` on, whether it is one of the `count` places there and of the tile):
        None where it surely is, 0 where it surely is not."""
        constant = offset_of(offset, self.steps) - first
        place = self.code.emitter.plus(self.thread, constant)
        if constant >= count or constant + self.span < 0:
            return place, 0
        condition = self.indexer.inside(self.shape, offset)
        if constant >= 0 and constant + self.span < count:
            return place, condition
        dynamic = self.thread if isinstance(self.thread, str) else None
        inside = self.indexer.below(Linear(dynamic, constant), count)
        return place, self.code.emitter.both(condition, inside)


def _at(code: Code, start: str, place: Operand, size: int) -> str:
    by = code.emitter.times(place, size)
    return code.emitter.value(f"getelementptr i8, ptr addrspace(3) {start}, i32 {by}")


def write_window(code: Code, op: ops.WriteWindow) -> None:
    """One store an element: outside of the window to nowhere, as branches by the hundred take long
    to compile."""
    e, x = code.emitter, op.x
    dtype, size = x.dtype, x.dtype.bytes
    start, places = code.place(op.slot), _Places(code, x.layout, x.shape)
    for offset, reg in zip(x.layout.regs, x.regs, strict=True):
        place, condition = places.within(offset, op.first, op.count)
        if condition == 0:
            continue
        if condition is not None:
            place = e.pick(condition, place, op.count)
        item = to_memory(code, reg, dtype)
        pointer = _at(code, start, place, size)
        e.do(f"store {memory_type(dtype)} {item}, ptr addrspace(3) {pointer}, align {size}")


def read_window(code: Code, op: ops.ReadWindow) -> None:
    """One load an element, and a selection where it may be outside of the window."""
    e, made = code.emitter, op.tile
    dtype, layout, size = made.dtype, made.layout, made.dtype.bytes
    start, places = code.place(op.slot), _Places(code, layout, made.shape)
    regs = ["poison"] * len(layout.regs) if op.before is None else list(op.before.regs)
    for number, offset in enumerate(layout.regs):
        place, condition = places.within(offset, op.first, op.count)
        if condition == 0:
            continue
        if condition is not None:
            place = e.pick(condition, place, 0)
        pointer = _at(code, start, place, size)
        name = e.value(f"load {memory_type(dtype)}, ptr addrspace(3) {pointer}, align {size}")
        found = from_memory(code, name, dtype)
        if condition is not None:
            old = f"{dtype.llvm} {regs[number]}"
            found = e.value(f"select i1 {condition}, {dtype.llvm} {found}, {old}")
        regs[number] = found
    made.assign(regs)


def write_slice(code: Code, op: ops.WriteSlice) -> None:
    """One store an element."""
    e, x, axis = code.emitter, op.x, op.axis
    layout, dtype = x.layout, x.dtype
    shape = (*x.shape[:axis], op.count, *x.shape[axis + 1 :])
    steps = row_major(shape, dtype.bytes)[1]
    indexer = code.indexer(layout)
    base = code.place(op.slot, e.thread_offset([offset_of(basis, steps) for basis in layout.bits]))
    along = indexer.thread(axis)
    dynamic, fixed = (along, 0) if isinstance(along, str) else (None, along)
    span = layout.thread_span(axis)
    for offset, reg in zip(layout.regs, x.regs, strict=True):
        place = offset[axis] - op.start + fixed
        if place >= op.count or place + span <= 0:
            continue
        condition = indexer.inside(x.shape, offset)
        if place < 0 or place + span > op.count:
            condition = e.both(condition, indexer.below(Linear(dynamic, place), op.count))
        if condition == 0:
            continue
        at = offset_of(offset, steps) - op.start * steps[axis]
        text = f"store {memory_type(dtype)} {to_memory(code, reg, dtype)}, ptr addrspace(3) "
        if condition is None:
            e.do(text + f"{shared_offset(code, base, at)}, align {dtype.bytes}")
        else:
            with e.where(condition):
                e.do(text + f"{shared_offset(code, base, at)}, align {dtype.bytes}")


RULES: dict[type[Op], Callable[..., None]] = {
    ops.WriteWindow: write_window,
    ops.ReadWindow: read_window,
    ops.WriteSlice: write_slice,
}
