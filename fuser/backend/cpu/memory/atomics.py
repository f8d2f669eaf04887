"""Atomic updates of memory, element by element.

What the processor has as one instruction is one (`atomicrmw` of integers, float additions are for
LLVM to expand), loads and stores are atomic ones; all else is a loop around a compare-and-exchange
of the bits. `atomic_add` needs no order with other memory, loads acquire, stores release, the
others do both.
"""

from __future__ import annotations

from fuser.backend import text
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.lowering import maps
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory, One, Point, zeros
from fuser.backend.text import Reg
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.tilegen import ops

_BITWISE = {"and": "and", "or": "or", "xor": "xor"}
_BOOL = {"add": "or", "max": "or", "min": "and"}
"""Functions of booleans, the way NumPy has them."""


def lower_atomic(low: Lowering, op: ops.AtomicAdd | ops.Atomic) -> None:
    """Emit an atomic op over all elements of its tile, and give its result a place."""
    fn = op.fn if isinstance(op, ops.Atomic) else "add"
    dtype = op.view.dtype
    if dtype.is_float and fn in _BITWISE:
        raise LoweringError(f"atomic {fn} of {dtype}", hint="use a buffer of integers")
    given = [op.value]
    if isinstance(op, ops.Atomic):
        given += [value for value in (op.mask, op.compare) if value is not None]
    for value in given:
        low.require(value)
    low.require_indices(op)
    held: Memory | None = None
    wanted = isinstance(op, ops.Atomic) and bool(low.known.users.get(op.result))
    if isinstance(op, ops.Atomic) and low.known.kind(op.result) != "scalar":
        held = low.allocate(op.result) if wanted else None
    found: list[Reg] = []

    def body(coords: Point, lanes: int) -> None:
        value = low.to_memory(low.at(op.value, coords), dtype)
        compare = value
        condition: Reg | None = None
        if isinstance(op, ops.Atomic):
            if op.compare is not None:
                compare = low.to_memory(low.at(op.compare, coords), dtype)
            if op.mask is not None:
                condition = low.at(op.mask, coords)
        address, conditions = low.place_of(op, coords)
        condition = low.holds(conditions, condition)

        def update() -> list[Reg]:
            base = low.buffers[op.view.buffer]
            order = "monotonic" if isinstance(op, ops.AtomicAdd) else "acq_rel"
            with low.scope():
                pointer = low.f.gep(base, low.index(address), value.type)
                return [_update(low, fn, dtype, pointer, value, compare, order)]

        if condition is None:
            (old,) = update()
        elif not wanted:
            low.f.when(condition, lambda: update()[:0], hint="atomic")
            return
        else:
            nothing = text.zero(value.type)
            (old,) = low.f.when(condition, update, lambda: [nothing], hint="atomic")
        old = low.from_memory(old, dtype)
        if held is not None:
            low.write_at(held, dtype, coords, old, 1)
        found.append(old)

    if isinstance(op, ops.Atomic) and low.known.kind(op.result) == "scalar":
        body(zeros(op.value), 1)
        if found:
            low.places[op.result] = One(found[0])
        return
    low.nest(op.value.shape, -1, 1, body, Nest("atomic", (op.value,), op.value.shape, -1, 1))
    if held is not None and isinstance(op, ops.Atomic):
        low.places[op.result] = held


def _update(
    low: Lowering, fn: str, dtype: DType, pointer: Reg, value: Reg, compare: Reg, order: str
) -> Reg:
    """One update; what was there before. Booleans are bytes here."""
    f = low.f
    bits = f"i{dtype.bits}"
    word = f.convert("bitcast", value, bits)
    place = f"{pointer.typed} {{}}, align {dtype.bytes}"
    if fn == "load":
        found = f.op(bits, f"load atomic {bits}, {place.format('acquire')}")
        return f.convert("bitcast", found, value.type)
    if fn == "store":
        f.emit(f"store atomic {word.typed}, {place.format('release')}")
        return value
    if fn == "compare_exchange":
        want = f.convert("bitcast", compare, bits)
        return f.convert("bitcast", _exchange(low, pointer, want, word)[0], value.type)
    if fn == "exchange":
        old = f.op(bits, f"atomicrmw xchg {pointer.typed}, {word.typed} {order}")
        return f.convert("bitcast", old, value.type)
    if not dtype.is_float:
        name = _BITWISE.get(fn, fn)
        if dtype.kind == "bool":
            name = _BOOL.get(fn, name)
        elif fn in ("max", "min") and dtype.kind == "uint":
            name = "u" + fn
        return f.op(bits, f"atomicrmw {name} {pointer.typed}, {value.typed} {order}")
    if fn == "add" and dtype.bits >= 32:
        return f.op(value.type, f"atomicrmw fadd {pointer.typed}, {value.typed} {order}")
    return _loop(low, fn, dtype, pointer, value)


def _exchange(low: Lowering, pointer: Reg, want: Reg, word: Reg) -> tuple[Reg, Reg]:
    """(what was there, whether it was what is wanted, and so was replaced)."""
    f = low.f
    pair = f"{{ {word.type}, i1 }}"
    both = f.op(pair, f"cmpxchg {pointer.typed}, {want.typed}, {word.typed} acq_rel acquire")
    old = f.op(word.type, f"extractvalue {both.typed}, 0")
    return old, f.op("i1", f"extractvalue {both.typed}, 1")


def _loop(low: Lowering, fn: str, dtype: DType, pointer: Reg, value: Reg) -> Reg:
    """Read, compute, and replace what was read, until nothing came between."""
    f = low.f
    bits = f"i{dtype.bits}"
    first = f.op(bits, f"load atomic {bits}, {pointer.typed} monotonic, align {dtype.bytes}")
    before, again, done = f.at, f.block("again"), f.block("again.end")
    f.br(again)
    f.enter(again)
    seen = f.phi(bits, (first, before))
    old = f.convert("bitcast", seen.reg, value.type)
    if fn == "add":
        new = maps.apply(f, "add", dtype, [old, value])
    else:  # `value` where it is greater (less), as comparisons with NaN have it
        new = f.select(
            maps.apply(f, "gt" if fn == "max" else "lt", dtype, [value, old]), value, old
        )
    have, replaced = _exchange(low, pointer, seen.reg, f.convert("bitcast", new, bits))
    seen.add(have, f.at)
    f.cbr(replaced, done, again)
    f.enter(done)
    return f.convert("bitcast", have, value.type)
