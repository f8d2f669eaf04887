"""Atomics with results: one instruction where there is one, else a loop around compare-and-swap.

They acquire and release at the scope of the GPU. What the block stored before is complete when one
of its threads publishes it: a barrier in front, where something is pending. Threads that repeat an
element have it done by one of them, and read the result from shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.elementwise import apply
from fuser.backend.nvptx.emit.code import shared_offset
from fuser.backend.nvptx.emit.memory import Guard, Pointers, from_memory, only_once, to_memory
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir.layouts import offset_of, row_major
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.values import literal, memory_type
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

_PTX = {"exchange": "exch", "compare_exchange": "cas"}
_BITS = ("and", "or", "xor", "exchange", "compare_exchange")
_PRIMITIVE = {
    "add": "add", "max": "max", "min": "min", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor",
}  # fmt: skip


def native(fn: str, dtype: DType, sm: int) -> str | None:
    """PTX's name of the operation and type, None where there is no such instruction."""
    bits = dtype.bits
    name = _PTX.get(fn, fn)
    if fn in _BITS:
        if bits in (32, 64):
            return f"{name}.b{bits}"
        return "cas.b16" if fn == "compare_exchange" and bits == 16 else None
    if dtype.is_float:
        if fn != "add":
            return None
        if bits == 16:
            fits = dtype.name == "f16" or sm >= 90
            return f"add.noftz.{dtype.name}" if fits else None
        return f"add.f{bits}"
    if bits not in (32, 64):
        return None
    # sums wrap around alike, and 64 bits have the unsigned form only
    letter = "s" if dtype.kind == "int" and (fn != "add" or bits == 32) else "u"
    return f"{name}.{letter}{bits}"


def lower_atomic(low: Lowering, op: ops.Atomic) -> None:
    """Emit an atomic; its result is bound if anybody looks at it."""
    access = low.assignment.accesses[op]
    layout = low.assignment.layouts.get(op.result) or low.plain_layout(access.shape, [access])
    value = low.tile(op.value, layout)
    compare = None if op.compare is None else low.tile(op.compare, layout)
    used = low.hazards.observes(op)
    indexer = low.indexer(layout)
    at = low.place(access, layout)
    guard = Guard(low.code, at, layout, indexer)
    low.before_store(op, layout)
    ordered = low.hazards.observed
    if ordered and low.hazards.release():
        low.shared.barrier()
        low.before_store(op, layout)
    e, dtype = low.emitter, value.dtype
    pointers = Pointers(low.code, at, indexer)
    single = only_once(low, layout)
    zero = literal(0, dtype)
    regs = [zero] * len(layout.regs)
    for offset, number in layout.register_of.items():
        condition = e.both(single, guard.at(offset))
        if condition == 0:
            continue
        words = [value.regs[number]] + ([compare.regs[number]] if compare else [])
        pointer = pointers.at(offset)
        before = e.at
        if condition is None:
            found = _one(low, op.fn, dtype, pointer, words, used, ordered)
            regs[number] = found or zero
            continue
        then, done = e.block("atomic"), e.block("atomic.end")
        e.branch(condition, then, done)
        e.enter(then)
        found = _one(low, op.fn, dtype, pointer, words, used, ordered)
        last = e.at
        e.jump(done)
        e.enter(done)
        if found is not None:
            regs[number] = e.value(
                f"phi {dtype.llvm} [ {found}, %{last.label} ], [ {zero}, %{before.label} ]"
            )
    if not used:
        return
    result = Tile(dtype, access.shape, layout, regs)
    if single is not None:
        result = shown_to_all(low, result, single)
    if low.hazards.any:
        low.hazards.acquire()
        if single is not None:  # what was read from shared memory is behind a barrier
            low.hazards.state.acquired = False
    low.set(op.result, result)


def shown_to_all(low: Lowering, tile: Tile, single: Operand) -> Tile:
    """What the threads hold for which `single` is true, in all that repeat their elements."""
    e, layout, dtype = low.emitter, tile.layout, tile.dtype
    type = memory_type(dtype)
    size, steps = row_major(layout.shape, dtype.bytes)
    slot = low.shared.allocate(size)
    low.shared.before_write()
    place = e.thread_part([offset_of(basis, steps) for basis in layout.bits])
    base = low.shared.pointer(slot, place)
    with e.where(single):
        for offset, reg in zip(layout.regs, tile.regs, strict=True):
            pointer = shared_offset(low, base, offset_of(offset, steps))
            item = to_memory(low, reg, dtype)
            e.do(f"store {type} {item}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
    low.shared.before_read()
    base = low.shared.pointer(slot, place)
    regs = []
    for offset in layout.regs:
        pointer = shared_offset(low, base, offset_of(offset, steps))
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        regs.append(from_memory(low, name, dtype))
    low.shared.free(slot)
    return Tile(dtype, tile.shape, layout, regs)


def _one(
    low: Lowering, fn: str, dtype: DType, pointer: str, words: list[str], used: bool, ordered: bool
) -> str | None:
    """One element: what was there before, None where nobody asks. words: the value and what it is
    compared with. ordered: with what else the program does in memory."""
    if dtype.kind == "bool" or dtype.bits < 16:
        raise LoweringError(
            f"an atomic {fn} of {dtype} has no lowering for NVIDIA GPUs",
            hint="16, 32 and 64 bits can be exchanged as one",
        )
    name = native(fn, dtype, low.target.sm)
    if name is None:
        return _by_exchange(low, fn, dtype, pointer, words)
    return _instruction(low, name, dtype, pointer, words, used, ordered)


def _instruction(
    low: Lowering,
    name: str,
    dtype: DType,
    pointer: str,
    words: list[str],
    used: bool,
    ordered: bool,
) -> str | None:
    e = low.emitter
    as_bits = name.rpartition(".")[2].startswith("b") and not name.endswith("bf16")
    short = dtype.bits == 16
    type = f"i{dtype.bits}" if as_bits or short or not dtype.is_float else dtype.llvm
    letter = {"i16": "h", "i32": "r", "i64": "l", "float": "f", "double": "d"}[type]
    given = [_bits(low, word, dtype.llvm, type) for word in words][::-1]
    listed = ", ".join(f"{type} {word}" for word in given)
    reduces = not used and name.partition(".")[0] not in ("exch", "cas")
    if reduces:
        order = "release" if ordered else "relaxed"
        e.do(
            f'call void asm sideeffect "red.{order}.gpu.global.{name} [$0], $1;", '
            f'"l,{letter},~{{memory}}"(ptr addrspace(1) {pointer}, {listed})'
        )
        return None
    order = "acq_rel" if ordered else "relaxed"
    marks = ",".join([f"={letter}", "l", *([letter] * len(given)), "~{memory}"])
    places = ", ".join(f"${number + 2}" for number in range(len(given)))
    found = e.value(
        f'call {type} asm sideeffect "atom.{order}.gpu.global.{name} $0, [$1], {places};", '
        f'"{marks}"(ptr addrspace(1) {pointer}, {listed})'
    )
    return _bits(low, found, type, dtype.llvm)


def _bits(low: Lowering, word: str, source: str, target: str) -> str:
    if source == target:
        return word
    return low.emitter.value(f"bitcast {source} {word} to {target}")


def _by_exchange(low: Lowering, fn: str, dtype: DType, pointer: str, words: list[str]) -> str:
    """Read, compute, and put the result where what was read still is; again where it is not."""
    e, bits = low.emitter, dtype.bits
    type = f"i{bits}"
    letter = {16: "h", 32: "r", 64: "l"}[bits]
    first = e.value(
        f'call {type} asm sideeffect "ld.relaxed.gpu.global.b{bits} $0, [$1];", '
        f'"={letter},l,~{{memory}}"(ptr addrspace(1) {pointer})'
    )
    before, again, done = e.at, e.block("again"), e.block("swapped")
    e.jump(again)
    e.enter(again)
    old, found = e.name_of(), e.name_of()
    mark = len(again.lines)
    current = _bits(low, old, type, dtype.llvm)
    if fn == "exchange":
        wanted = words[0]
    else:
        wanted = apply(e, _PRIMITIVE[fn], dtype, [current, words[0]])
    new = _bits(low, wanted, dtype.llvm, type)
    e.do(
        f'{found} = call {type} asm sideeffect "atom.acq_rel.gpu.global.cas.b{bits} $0, [$1], $2, '
        f'$3;", "={letter},l,{letter},{letter},~{{memory}}"(ptr addrspace(1) {pointer}, '
        f"{type} {old}, {type} {new})"
    )
    latch = e.at
    again.lines.insert(
        mark, f"{old} = phi {type} [ {first}, %{before.label} ], [ {found}, %{latch.label} ]"
    )
    e.branch(e.value(f"icmp eq {type} {found}, {old}"), done, again)
    e.enter(done)
    return _bits(low, old, type, dtype.llvm)
