"""Atomics with results: one instruction where there is one, else a loop around compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.elementwise import apply
from fuser.backend.nvptx.emit.memory import Guard, Pointers, only_once
from fuser.backend.nvptx.emit.values import literal
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.dtypes import DType

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


def atomic(code: Code, op: ops.Atomic) -> None:
    """Element by element, each by one of the threads that repeat it; zero in the others."""
    e, value, compare = code.emitter, op.value, op.compare
    layout, dtype = value.layout, value.dtype
    indexer = code.indexer(layout, op.at.scope)
    guard = Guard(code, op.at, layout, indexer)
    pointers = Pointers(code, op.at, indexer)
    single = only_once(code, layout)
    used, zero = bool(op.results), literal(0, dtype)
    regs = [zero] * len(layout.regs)
    for offset, number in layout.register_of.items():
        condition = e.both(single, guard.at(offset))
        if condition == 0:
            continue
        words = [value.regs[number]] + ([compare.regs[number]] if compare else [])
        pointer = pointers.at(offset)
        before = e.at
        if condition is None:
            found = _one(code, op, dtype, pointer, words)
            regs[number] = found or zero
            continue
        then, done = e.block("atomic"), e.block("atomic.end")
        e.branch(condition, then, done)
        e.enter(then)
        found = _one(code, op, dtype, pointer, words)
        last = e.at
        e.jump(done)
        e.enter(done)
        if found is not None:
            regs[number] = e.value(
                f"phi {dtype.llvm} [ {found}, %{last.label} ], [ {zero}, %{before.label} ]"
            )
    if used:
        op.tile.assign(regs)


def _one(code: Code, op: ops.Atomic, dtype: DType, pointer: str, words: list[str]) -> str | None:
    """One element: what was there before, None where nobody asks. words: the value and what it is
    compared with."""
    if op.fn in ("load", "store"):
        return _plain(code, op, dtype, pointer, words[0])
    name = native(op.fn, dtype, code.target.sm)
    if name is None:
        return _by_exchange(code, op, dtype, pointer, words)
    return _instruction(code, op, name, dtype, pointer, words)


def _scope(op: ops.Atomic) -> str:
    """Who sees it as one step."""
    return "sys" if op.system else "gpu"


def _plain(code: Code, op: ops.Atomic, dtype: DType, pointer: str, word: str) -> str:
    """A load that acquires, or a store that releases. Registers have 16 bits at least."""
    e, bits = code.emitter, dtype.bits
    type, wide = f"i{bits}", f"i{max(bits, 16)}"
    letter = {16: "h", 32: "r", 64: "l"}[max(bits, 16)]
    if op.fn == "load":
        found = e.value(
            f'call {wide} asm sideeffect "ld.acquire.{_scope(op)}.global.b{bits} $0, [$1];", '
            f'"={letter},l,~{{memory}}"(ptr addrspace(1) {pointer})'
        )
        if wide != type:
            found = e.value(f"trunc {wide} {found} to {type}")
        return _bits(code, found, type, dtype.llvm)
    given = _bits(code, word, dtype.llvm, type)
    if wide != type:
        given = e.value(f"zext {type} {given} to {wide}")
    e.do(
        f'call void asm sideeffect "st.release.{_scope(op)}.global.b{bits} [$0], $1;", '
        f'"l,{letter},~{{memory}}"(ptr addrspace(1) {pointer}, {wide} {given})'
    )
    return word


def _instruction(
    code: Code, op: ops.Atomic, name: str, dtype: DType, pointer: str, words: list[str]
) -> str | None:
    e = code.emitter
    used, ordered, scope = bool(op.results), op.ordered, _scope(op)
    as_bits = name.rpartition(".")[2].startswith("b") and not name.endswith("bf16")
    short = dtype.bits == 16
    type = f"i{dtype.bits}" if as_bits or short or not dtype.is_float else dtype.llvm
    letter = {"i16": "h", "i32": "r", "i64": "l", "float": "f", "double": "d"}[type]
    given = [_bits(code, word, dtype.llvm, type) for word in words][::-1]
    listed = ", ".join(f"{type} {word}" for word in given)
    reduces = not used and name.partition(".")[0] not in ("exch", "cas")
    if reduces:
        order = "release" if ordered else "relaxed"
        e.do(
            f'call void asm sideeffect "red.{order}.{scope}.global.{name} [$0], $1;", '
            f'"l,{letter},~{{memory}}"(ptr addrspace(1) {pointer}, {listed})'
        )
        return None
    order = "acq_rel" if ordered else "relaxed"
    marks = ",".join([f"={letter}", "l", *([letter] * len(given)), "~{memory}"])
    places = ", ".join(f"${number + 2}" for number in range(len(given)))
    found = e.value(
        f'call {type} asm sideeffect "atom.{order}.{scope}.global.{name} $0, [$1], {places};", '
        f'"{marks}"(ptr addrspace(1) {pointer}, {listed})'
    )
    return _bits(code, found, type, dtype.llvm)


def _bits(code: Code, word: str, source: str, target: str) -> str:
    if source == target:
        return word
    return code.emitter.value(f"bitcast {source} {word} to {target}")


def _by_exchange(code: Code, op: ops.Atomic, dtype: DType, pointer: str, words: list[str]) -> str:
    """Read, compute, and put the result where what was read still is; again where it is not."""
    e, bits, fn, scope = code.emitter, dtype.bits, op.fn, _scope(op)
    type = f"i{bits}"
    letter = {16: "h", 32: "r", 64: "l"}[bits]
    first = e.value(
        f'call {type} asm sideeffect "ld.relaxed.{scope}.global.b{bits} $0, [$1];", '
        f'"={letter},l,~{{memory}}"(ptr addrspace(1) {pointer})'
    )
    before, again, done = e.at, e.block("again"), e.block("swapped")
    e.jump(again)
    e.enter(again)
    old, found = e.name_of(), e.name_of()
    mark = len(again.lines)
    current = _bits(code, old, type, dtype.llvm)
    if fn == "exchange":
        wanted = words[0]
    else:
        wanted = apply(e, _PRIMITIVE[fn], dtype, [current, words[0]])
    new = _bits(code, wanted, dtype.llvm, type)
    e.do(
        f'{found} = call {type} asm sideeffect "atom.acq_rel.{scope}.global.cas.b{bits} $0, [$1], '
        f'$2, $3;", "={letter},l,{letter},{letter},~{{memory}}"(ptr addrspace(1) {pointer}, '
        f"{type} {old}, {type} {new})"
    )
    latch = e.at
    again.lines.insert(
        mark, f"{old} = phi {type} [ {first}, %{before.label} ], [ {found}, %{latch.label} ]"
    )
    e.branch(e.value(f"icmp eq {type} {found}, {old}"), done, again)
    e.enter(done)
    return _bits(code, old, type, dtype.llvm)


RULES: dict[type[Op], Callable[..., None]] = {ops.Atomic: atomic}
