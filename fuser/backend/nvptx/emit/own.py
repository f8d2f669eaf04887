"""Tiles in shared memory of which every thread reads only what it copied there itself: vectors of
the threads of a block lie side by side."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code, shared_offset
from fuser.backend.nvptx.emit.memory import Pointers, from_memory, unpack
from fuser.backend.nvptx.emit.values import literal, memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates


def _places(code: Code, op: ops.CopyOwn | ops.ReadOwn) -> tuple[str, dict[Coordinates, int]]:
    """Where a thread's first vector lies, and how much further the one at each offset."""
    access = op.at.access
    size = access.width * access.view.dtype.bytes
    found = vectors(op.whole, access.axis, access.width)
    places = {offset: at * size * op.threads for at, (offset, _) in enumerate(found)}
    return code.place(op.slot, code.emitter.times(code.emitter.tid, size)), places


def copy_own(code: Code, op: ops.CopyOwn) -> None:
    """One copy a vector, of no bytes where it may not be touched: the rest is zeros."""
    access, e = op.at.access, code.emitter
    indexer = code.indexer(op.whole, op.at.scope)
    pointers = Pointers(code, op.at, indexer)
    size = access.width * access.view.dtype.bytes
    name = f"@llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
    base, places = _places(code, op)
    for offset, _ in vectors(op.strip, access.axis, access.width):
        condition = indexer.conditions(access.bounds, access.shape, offset)
        if condition == 0:
            continue
        target = shared_offset(code, base, places[offset])
        operands = f"ptr addrspace(3) {target}, ptr addrspace(1) {pointers.at(offset)}"
        if condition is None:
            e.do(f"call void {name}({operands})")
        else:
            e.do(f"call void {name}.s({operands}, i32 {e.pick(condition, size, 0)})")


def read_own(code: Code, op: ops.ReadOwn) -> None:
    """One load a vector."""
    access, e, made = op.at.access, code.emitter, op.tile
    dtype, width = made.dtype, access.width
    indexer = code.indexer(made.layout, op.at.scope)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    base, places = _places(code, op)
    fill = literal(op.pad or 0, dtype)
    made.assign([fill] * len(made.layout.regs))
    for offset, members in vectors(made.layout, access.axis, width):
        condition = indexer.conditions(access.bounds, access.shape, offset)
        if condition == 0:
            continue
        pointer = shared_offset(code, base, places[offset])
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}")
        items = [from_memory(code, name, dtype)] if width == 1 else unpack(code, name, dtype, width)
        for member, item in zip(members, items, strict=True):
            made.regs[member] = item
            if condition is not None and op.pad:
                chosen = f"{dtype.llvm} {item}, {dtype.llvm} {fill}"
                made.regs[member] = e.value(f"select i1 {condition}, {chosen}")


def keep(code: Code, op: ops.Keep) -> None:
    """An empty asm that reads the registers, as words."""
    e, x = code.emitter, op.x
    type = memory_type(x.dtype)
    words: list[str] = []
    if x.dtype.bits == 32:
        words = [
            reg if type == "i32" else e.value(f"bitcast {type} {reg} to i32") for reg in x.regs
        ]
    elif all(reg in e.sources.packed for reg in x.regs):
        for name, width, _ in dict.fromkeys((*e.sources.packed[reg][:2], 0) for reg in x.regs):
            count = width * x.dtype.bits // 32
            vector = e.value(f"bitcast <{width} x {type}> {name} to <{count} x i32>")
            words += [
                e.value(f"extractelement <{count} x i32> {vector}, i32 {i}") for i in range(count)
            ]
    for first in range(0, len(words), 16):
        some = words[first : first + 16]
        operands = ", ".join(f"i32 {word}" for word in some)
        e.do(f'call void asm sideeffect "", "{",".join("r" * len(some))}"({operands})')


RULES: dict[type[Op], Callable[..., None]] = {
    ops.CopyOwn: copy_own,
    ops.ReadOwn: read_own,
    ops.Keep: keep,
}
