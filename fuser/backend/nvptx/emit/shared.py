"""Slots of shared memory: tiles written to them and read from them, barriers of the block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from fuser.backend.nvptx.emit.code import Code, shared_offset
from fuser.backend.nvptx.emit.memory import from_memory, only_once, pack, to_memory, unpack
from fuser.backend.nvptx.emit.values import memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of, row_major, vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Slot
from fuser.backend.nvptx.layouts.layout import Layout


def alloc(code: Code, op: ops.Alloc) -> None:
    """No code: slots are placed when all are known."""


def free(code: Code, op: ops.Free) -> None:
    """No code."""


def barrier(code: Code, op: ops.Barrier) -> None:
    """One barrier instruction."""
    call = "call void @llvm.nvvm.barrier.cta.sync.aligned."
    if op.threads:  # a producer warp does not participate
        number = code.emitter.plus(op.team, 1)
        code.emitter.do(f"{call}count(i32 {number}, i32 {op.threads})")
    else:
        code.emitter.do(f"{call}all(i32 0)")


def warp_sync(code: Code, op: ops.WarpSync) -> None:
    """One instruction."""
    code.emitter.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")


def named_barrier(code: Code, op: ops.NamedBarrier) -> None:
    """One barrier instruction."""
    code.emitter.do(
        f"call void @llvm.nvvm.barrier.cta.{op.kind}.aligned.count("
        f"i32 {op.number}, i32 {op.threads})"
    )


def address(code: Code, layout: Layout, steps: Sequence[int], slot: Slot) -> str:
    """Where the part of a tile begins that the thread number says."""
    thread = code.emitter.thread_offset([offset_of(basis, tuple(steps)) for basis in layout.bits])
    return code.place(slot, thread)


def write_shared(code: Code, op: ops.WriteShared) -> None:
    """One store a vector."""
    x, e = op.x, code.emitter
    layout, dtype = x.layout, x.dtype
    width = min(layout.vector(op.axis), 16 // dtype.bytes)
    base = address(code, layout, op.steps, op.slot)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    for offset, members in vectors(layout, op.axis, width):
        value = pack(code, [x.regs[m] for m in members], dtype)
        pointer = shared_offset(code, base, offset_of(offset, op.steps))
        e.do(f"store {type} {value}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}")


def read_shared(code: Code, op: ops.ReadShared) -> None:
    """One load a vector."""
    made, e = op.tile, code.emitter
    layout, dtype = made.layout, made.dtype
    width = min(layout.vector(op.axis), 16 // dtype.bytes)
    base = address(code, layout, op.steps, op.slot)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    made.assign([""] * len(layout.regs))
    for offset, members in vectors(layout, op.axis, width):
        pointer = shared_offset(code, base, offset_of(offset, op.steps))
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}")
        items = [from_memory(code, name, dtype)] if width == 1 else unpack(code, name, dtype, width)
        for member, item in zip(members, items, strict=True):
            made.regs[member] = item


def write_dense(code: Code, op: ops.WriteDense) -> None:
    """One store an element."""
    x, e = op.x, code.emitter
    dtype, source = x.dtype, x.layout
    type = memory_type(dtype)
    indexer = code.indexer(source)
    base = address(code, source, op.steps, op.slot)
    for offset, reg in zip(source.regs, x.regs, strict=True):
        condition = indexer.inside(x.shape, offset)
        if condition == 0:
            continue
        value = to_memory(code, reg, dtype)
        pointer = shared_offset(code, base, offset_of(offset, op.steps))
        text = f"store {type} {value}, ptr addrspace(3) {pointer}, align {dtype.bytes}"
        if condition is None:
            e.do(text)
        else:
            with e.where(condition):
                e.do(text)


def read_dense(code: Code, op: ops.ReadDense) -> None:
    """One load an element; those past the edge read the first one, as any value will do."""
    made, e = op.tile, code.emitter
    dtype, layout, shape = made.dtype, made.layout, made.shape
    type = memory_type(dtype)
    steps = row_major(shape, dtype.bytes)[1]
    indexer = code.indexer(layout)
    start = code.place(op.slot)
    thread = e.thread_offset([offset_of(basis, steps) for basis in layout.bits])
    made.assign(())
    for offset in layout.regs:
        condition = indexer.inside(shape, offset)
        place = e.plus(thread, offset_of(offset, steps))
        if condition is not None:
            place = e.pick(condition, place, 0)
        pointer = e.value(f"getelementptr i8, ptr addrspace(3) {start}, i32 {place}")
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        made.regs.append(from_memory(code, name, dtype))


def gather_shared(code: Code, op: ops.GatherShared) -> None:
    """One load an element; those past the edge read the first one, as any value will do."""
    e, made = code.emitter, op.tile
    layout, dtype = made.layout, made.dtype
    indexer = code.indexer(layout)
    type, start = memory_type(dtype), code.place(op.slot)
    made.assign(())
    for number, offset in enumerate(layout.regs):
        place = e.times(code.widened(op.at, False, number), op.steps[op.axis])
        for axis, step in enumerate(op.steps):
            if axis != op.axis:
                along = e.plus(indexer.thread(axis), offset[axis])
                place = e.plus(place, e.times(along, step))
        inside = indexer.inside(made.shape, offset)
        if inside is not None:
            place = e.pick(inside, place, 0)
        pointer = e.value(f"getelementptr i8, ptr addrspace(3) {start}, i32 {place}")
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        made.regs.append(from_memory(code, name, dtype))


def write_parts(code: Code, op: ops.WriteParts) -> None:
    """One store an element: part p of the partial results lies p * size bytes into the slot."""
    e, first = code.emitter, op.values[0]
    layout, dtype = first.layout, first.dtype
    type, count = memory_type(dtype), len(op.values)
    size, steps = row_major(layout.shape, dtype.bytes * count)
    place = [offset_of(basis, steps) for basis in layout.bits]
    part = [0] * len(place)
    for position, bit in enumerate(op.bits):
        part[5 + bit] = size << position
    base = code.place(op.slot, e.plus(e.thread_offset(place), e.thread_offset(part)))
    single = only_once(code, layout) if op.once else op.where
    with e.where(single) if single is not None else contextlib.nullcontext():
        for which, value in enumerate(op.values):
            for at, reg in zip(layout.regs, value.regs, strict=True):
                pointer = shared_offset(code, base, offset_of(at, steps) + which * dtype.bytes)
                item = to_memory(code, reg, dtype)
                e.do(f"store {type} {item}, ptr addrspace(3) {pointer}, align {dtype.bytes}")


def read_parts(code: Code, op: ops.ReadParts) -> None:
    """One load an element of every part."""
    e, count = code.emitter, op.count
    layout, dtype = op.results[0].layout, op.results[0].dtype
    type = memory_type(dtype)
    size, steps = row_major(layout.shape, dtype.bytes * count)
    place = [offset_of(basis, steps) for basis in layout.bits]
    base = code.place(op.slot, e.thread_offset(place))
    made = iter(op.results)
    for number in op.parts:
        for which in range(count):
            tile = next(made)
            tile.assign(())
            for at in layout.regs:
                offset = offset_of(at, steps) + which * dtype.bytes + number * size
                pointer = shared_offset(code, base, offset)
                name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
                tile.regs.append(from_memory(code, name, dtype))


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Alloc: alloc,
    ops.Free: free,
    ops.Barrier: barrier,
    ops.NamedBarrier: named_barrier,
    ops.WarpSync: warp_sync,
    ops.WriteShared: write_shared,
    ops.ReadShared: read_shared,
    ops.WriteDense: write_dense,
    ops.ReadDense: read_dense,
    ops.GatherShared: gather_shared,
    ops.WriteParts: write_parts,
    ops.ReadParts: read_parts,
}
