"""Atomics: steps on memory that all programs see whole, and waiting for what others store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser.language import choices, shapes
from fuser.language.arithmetic import as_tensor, cast, compare, to_bool, where
from fuser.language.emitter import Emitter
from fuser.language.memory import as_mask, note, prepared, shown
from fuser.language.places import place_of
from fuser.language.tensors import Choice, Pointer, Tensor
from fuser.language.types import PointerType, int1, int8, int32
from fuser.tilegen import ops
from fuser.tilegen.ir import Block
from fuser.tilegen.ops import AtomicFn
from fuser.tilegen.value import Value

SCOPES = ("cta", "gpu", "sys")


def system_wide(e: Emitter, what: str, sem: Any, scope: Any, orders: Sequence[str]) -> bool:
    """Whether an atomic is to be seen whole by other devices and the host, too. The order is the
    strongest of its kind, whatever `sem` asks for; both are checked."""
    if sem is not None and sem not in orders:
        e.fail(f"{what} with sem={sem!r}", f"it is {' or '.join(orders)}")
    if scope is not None and scope not in SCOPES:
        e.fail(f"{what} with scope={scope!r}", f"it is one of {', '.join(SCOPES)}")
    return bool(scope == "sys")


def atomic(
    e: Emitter, fn: AtomicFn, pointer: Any, value: Any, mask: Any = None, compare_to: Any = None,
    system: bool = False,
) -> Tensor:  # fmt: skip
    """One step on memory that all programs see whole; what was there before. value: None of a
    load."""
    if isinstance(pointer, Choice):
        (one, _, fits), *rest = choices.each(e, pointer, mask)
        old = atomic(e, fn, one, value, fits, compare_to, system)
        for one, this, fits in rest:
            old = where(e, this, atomic(e, fn, one, value, fits, compare_to, system), old)
        return old
    if not isinstance(pointer, Pointer):
        e.fail(f"an atomic {fn} on {shown(pointer)}")
    if fn in ("and", "or", "xor") and not pointer.element.is_int():
        e.fail(f"an atomic {fn} on {pointer.type}", "bits are those of integers")
    if fn not in ("load", "store"):
        if pointer.element.is_fp8():
            e.fail(f"an atomic {fn} on {pointer.type}", "8-bit floats have none")
    elif pointer.element is int1:  # a byte that is 0 or 1
        byte = e.cast_pointer(pointer, PointerType(int8, const=pointer.const), True)
        given = None if value is None else cast(e, to_bool(e, as_tensor(e, value)), int8)
        return cast(e, atomic(e, fn, byte, given, mask, None, system), int1)
    inside = None if mask is None else as_mask(e, as_tensor(e, mask))
    more = () if compare_to is None else (compare_to,)
    if fn == "load":
        return _watched(e, pointer, inside, system)
    found = prepared(e, f"atomic {fn}", pointer, value, inside, *more)
    if found is None:
        zero = e.constant(0, pointer.element)
        return shapes.broadcast_to(e, zero, pointer.shape)
    place, data, masked = found
    made = e.builder.atomic(
        fn, place.view, place.indices, e.value_of(data[0]),
        compare=e.value_of(data[1]) if more else None, mask=masked, system=system,
    )  # fmt: skip
    return e.tensor(made, pointer.element)


def _watched(e: Emitter, pointer: Pointer, mask: Tensor | None, system: bool) -> Tensor:
    """An atomic load; 0 where the mask is false."""
    shape = pointer.shape
    if mask is not None:
        shape = shapes.common_shape(e, shape, mask.shape)
        mask = shapes.broadcast_to(e, mask, shape)
    pointer = shapes.broadcast_to(e, pointer, shape)
    nothing = e.builder.full(0, shape, pointer.element.ir)
    if mask is not None and mask.literal is False:
        return e.tensor(nothing, pointer.element)
    place = place_of(e, pointer, mask)
    note(e, "atomic load", pointer, place)
    masked = None if place.mask is None else e.value_of(place.mask)
    made = e.builder.atomic("load", place.view, place.indices, nothing, mask=masked, system=system)
    return e.tensor(made, pointer.element)


def poll(e: Emitter, pointer: Any, expected: Any, system: bool, once: bool = False) -> Tensor:
    """Wait until each place has held what is expected there; true everywhere. once: look once, and
    tell where it is."""

    def seen() -> Value:
        found = atomic(e, "load", pointer, None, None, None, system)
        return e.value_of(compare(e, "==", found, wanted))

    if not isinstance(pointer, Pointer):
        e.fail(f"an atomic poll of {shown(pointer)}", "it takes a pointer to one argument")
    if not pointer.element.is_int() or pointer.element.bits < 16:
        e.fail(f"an atomic poll of {pointer.type}", "it waits for integers of 16, 32 or 64 bits")
    wanted = cast(e, as_tensor(e, expected), pointer.element)
    if shapes.common_shape(e, pointer.shape, wanted.shape) != pointer.shape:
        e.fail(
            f"an atomic poll of {pointer.type} for {wanted.type}",
            "what is expected must broadcast to the shape of the pointer",
        )
    first = seen()
    if once:
        return e.tensor(first, int1)
    condition, body = Block(), Block()
    condition.params = [e.builder.value(first.type, "a")]
    body.params = [e.builder.value(first.type, "a")]
    with e.inside(condition):
        state = e.tensor(condition.params[0], int1)
        flat = shapes.reshape(e, state, (-1,)) if state.shape else state
        every = e.value_of(flat)
        if flat.shape:
            every = e.builder.reduce("min", e.builder.cast(every, int32.ir), 0)
            every = e.builder.cast(every, int1.ir)
        e.builder.append(ops.Yield(args=(e.builder.map("logical_not", every),)))
    with e.inside(body):
        e.builder.append(ops.Yield(args=(e.builder.map("logical_or", body.params[0], seen()),)))
    op = ops.While(inits=(first,), condition=condition, body=body)
    (found,) = e.builder.append(op, first.type)
    return e.tensor(found, int1)
