"""The functions of the language by name, and those that tensors and pointers have as methods.

Each is a `Builtin`: a record with the function that compiles a call of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.errors import StaticAssertionError
from fuser.language import (
    assembly,
    atomics,
    choosing,
    counting,
    debugging,
    descriptors,
    elementwise,
    folds,
    memory,
    pointwise,
    products,
    promises,
    randomness,
    scaled,
    shapes,
    shaping,
    sorting,
)
from fuser.language.addresses import from_address
from fuser.language.aggregates import replaced
from fuser.language.arithmetic import as_tensor, cast, is_number
from fuser.language.emitter import Emitter
from fuser.language.registry import METHODS, TABLE, builtin, element_type, static_int, static_shape
from fuser.language.tensors import Choice, Pointer, Range, Tensor, unwrap
from fuser.language.types import (
    PointerType,
    float32,
    int32,
)

# programs -----------------------------------------------------------------------------------------


@builtin("program_id")
def _program_id(e: Emitter, axis: int) -> Tensor:
    """The number of this program along an axis of the grid."""
    place = static_int(e, axis, "the axis of program_id")
    if place not in (0, 1, 2):
        e.fail(f"program_id({place})", "a grid has the axes 0, 1 and 2")
    return e.whole(e.program(place), int32, ())


@builtin("num_programs")
def _num_programs(e: Emitter, axis: int) -> Tensor:
    """How many programs the grid has along an axis."""
    place = static_int(e, axis, "the axis of num_programs")
    if place not in (0, 1, 2):
        e.fail(f"num_programs({place})", "a grid has the axes 0, 1 and 2")
    return e.whole(e.extent(place), int32, ())


# creation -----------------------------------------------------------------------------------------


@builtin("arange")
def _arange(e: Emitter, start: Any, end: Any = None) -> Tensor:
    """The whole numbers from start up to end, known while compiling."""
    if end is None:
        start, end = 0, start
    first, last = (static_int(e, item, "an end of arange") for item in (start, end))
    if last <= first:
        e.fail(f"arange({first}, {last}) is empty", "the end must be greater than the start")
    count = last - first
    if e.options.get("powers_of_two") and count & (count - 1):
        e.fail(
            f"arange({first}, {last}) has {count} elements",
            "the range must be a power of 2 in this spelling; fuser.language takes any",
        )
    return shapes.iota(e, first, last)


@builtin("full")
def _full(e: Emitter, shape: Any, value: Any, dtype: Any) -> Tensor:
    """A tile of one value."""
    extents, kind = static_shape(e, shape), element_type(e, dtype)
    value = unwrap(value)
    if is_number(value):
        if kind.is_fp8():
            one = cast(e, e.constant(float(value), float32), kind)
            return shapes.broadcast_to(e, one, extents)
        return e.constant(value, kind, extents)
    one = as_tensor(e, value)
    if one.shape:
        e.fail(f"full of {one.type}", "the value is one number")
    return shapes.broadcast_to(e, cast(e, one, kind), extents)


@builtin("zeros")
def _zeros(e: Emitter, shape: Any, dtype: Any) -> Tensor:
    """A tile of zeros."""
    return _full(e, shape, 0, dtype)  # type: ignore[no-any-return]


@builtin("zeros_like")
def _zeros_like(e: Emitter, input: Any) -> Tensor:
    """A tile of zeros of the type and shape of another."""
    return _full(e, input.shape, 0, input.dtype)  # type: ignore[no-any-return]


@builtin("to_tensor")
def _to_tensor(e: Emitter, x: Any) -> Any:
    """A number as a tensor."""
    return x if isinstance(x, Tensor | Pointer | Choice) else as_tensor(e, x)


@builtin("cast", "to", method=True)
def _cast(
    e: Emitter, input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False
) -> Any:
    """The tensor as another type: by value, or its bits."""
    dtype, value = unwrap(dtype), unwrap(input)
    if isinstance(dtype, PointerType) and isinstance(value, Tensor):
        return from_address(e, value, dtype)
    if isinstance(dtype, PointerType) or isinstance(value, Pointer):
        return e.cast_pointer(value, dtype, bool(unwrap(bitcast)))
    kind = element_type(e, dtype)
    tensor = as_tensor(e, value)
    if unwrap(bitcast):
        return elementwise.bits_as(e, tensor, kind)
    rounding = unwrap(fp_downcast_rounding)
    if rounding not in (None, "rtne", "rtz"):
        e.fail(f"fp_downcast_rounding {rounding!r}", "it is rtne or rtz")
    return cast(e, tensor, kind, rounding == "rtz")


# loops ------------------------------------------------------------------------------------------


@builtin("range")
def _range(e: Emitter, arg1: Any, arg2: Any = None, step: Any = None, **hints: Any) -> Range:
    """The whole numbers from arg1 up to arg2, as a loop; hints change speed only."""
    start, stop = (0, arg1) if arg2 is None else (arg1, arg2)
    return Range(start, stop, 1 if step is None else step, False, tuple(hints.items()))


@builtin("condition")
def _condition(e: Emitter, arg1: Any, disable_licm: Any = None) -> Any:
    """A loop's condition with hints, which change speed only."""
    return arg1


@builtin("static_range")
def _static_range(e: Emitter, arg1: Any, arg2: Any = None, step: Any = None) -> Range:
    """A loop that is written out while compiling."""
    start, stop = (0, arg1) if arg2 is None else (arg1, arg2)
    return Range(start, stop, 1 if step is None else step, True)


# folds --------------------------------------------------------------------------------------------

builtin("sum", method=True)(folds.sum_)
builtin("max", method=True)(folds.max_)
builtin("min", method=True)(folds.min_)
builtin("argmax", method=True)(folds.argmax)
builtin("argmin", method=True)(folds.argmin)
builtin("xor_sum", method=True)(folds.xor_sum)
builtin("reduce_or", method=True)(folds.reduce_or)
builtin("cumsum", method=True)(folds.cumsum)
builtin("cumprod", method=True)(folds.cumprod)


@builtin("reduce", method=True)
def _reduce(e: Emitter, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """Fold an axis with a function of two elements, or of two tuples of elements."""
    parts = input if isinstance(input, tuple) else (input,)
    combine = e.combiner(combine_fn, len(parts))
    found = folds.reduce_with(
        e, tuple(as_tensor(e, x) for x in parts), unwrap(axis), combine, bool(unwrap(keep_dims))
    )
    return found if isinstance(input, tuple) else found[0]


@builtin("associative_scan", method=True)
def _scan(e: Emitter, input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """A running fold along an axis with an associative function."""
    parts = input if isinstance(input, tuple) else (input,)
    combine = e.combiner(combine_fn, len(parts))
    found = folds.scan_with(
        e, tuple(as_tensor(e, x) for x in parts), unwrap(axis), combine, bool(unwrap(reverse))
    )
    return found if isinstance(input, tuple) else found[0]


builtin("dot")(products.dot)

# memory -------------------------------------------------------------------------------------------

builtin("load")(memory.load)
builtin("store", method=True)(memory.store)
builtin("make_block_ptr")(memory.make_block_ptr)
builtin("advance", method=True)(memory.advance)


ORDERS = ("acquire", "release", "acq_rel", "relaxed")


def _atomic(fn: Any) -> Callable[..., Any]:
    def call(
        e: Emitter, pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
    ) -> Tensor:
        system = atomics.system_wide(e, f"an atomic {fn}", sem, scope, ORDERS)
        return atomics.atomic(e, fn, pointer, unwrap(val), unwrap(mask), None, system)

    call.__doc__ = f"{fn} on memory in one step; what was there before."
    return call


for _name in ("add", "max", "min", "and", "or", "xor"):
    builtin(f"atomic_{_name}", method=True)(_atomic(_name))
builtin("atomic_xchg", method=True)(_atomic("exchange"))


@builtin("atomic_cas", method=True)
def _atomic_cas(
    e: Emitter, pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None
) -> Tensor:
    """Store val where cmp was there; what was there before."""
    system = atomics.system_wide(e, "an atomic cas", sem, scope, ORDERS)
    return atomics.atomic(e, "compare_exchange", pointer, unwrap(val), None, unwrap(cmp), system)


@builtin("atomic_load", method=True)
def _atomic_load(
    e: Emitter, pointer: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Tensor:
    """What is in memory, read in one step, 0 where the mask is false. What a program stored before
    an atomic store is seen by one that reads what that stored."""
    system = atomics.system_wide(e, "an atomic load", sem, scope, ("acquire", "relaxed"))
    return atomics.atomic(e, "load", pointer, None, unwrap(mask), None, system)


@builtin("atomic_store", method=True)
def _atomic_store(
    e: Emitter, pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> None:
    """Write to memory in one step, behind all that the program has stored."""
    system = atomics.system_wide(e, "an atomic store", sem, scope, ("release", "relaxed"))
    atomics.atomic(e, "store", pointer, unwrap(val), unwrap(mask), None, system)


@builtin("atomic_poll", method=True)
def _atomic_poll(
    e: Emitter, pointer: Any, expected_value: Any, sem: Any = None, scope: Any = None,
    timeout_ns: Any = None,
) -> Tensor:  # fmt: skip
    """Wait until integers in memory have been what is expected, each for itself; true. timeout_ns:
    None, or 0 to look once, and tell which are."""
    system = atomics.system_wide(e, "an atomic poll", sem, scope, ("acquire", "relaxed"))
    if timeout_ns is None:
        return atomics.poll(e, pointer, unwrap(expected_value), system)
    if not is_number(timeout_ns) or timeout_ns != 0:
        e.fail(
            "an atomic poll with a time limit",
            "a kernel has no clock: leave timeout_ns out to wait, give 0 to look once, or count "
            "the looks in a loop",
        )
    return atomics.poll(e, pointer, unwrap(expected_value), system, once=True)


def aggregate_replace(instance: Any, **changes: Any) -> Any:
    """An object of a class under @aggregate with other values in some of its fields."""
    return replaced(instance, changes)


@builtin("aggregate_replace", host=aggregate_replace)
def _aggregate_replace(e: Emitter, instance: Any, **changes: Any) -> Any:
    """An object of a class under @aggregate with other values in some of its fields."""
    return replaced(instance, changes)


# hints and debugging ------------------------------------------------------------------------------


def _same(e: Emitter, input: Any, values: Any = None) -> Any:
    """A hint; the value as it is."""
    return input


for _name in ("max_contiguous", "max_constancy"):
    builtin(_name)(_same)


@builtin("debug_barrier")
def _barrier(e: Emitter) -> None:
    """Nothing: a program's loads see its own stores anyway."""


@builtin("static_assert")
def _static_assert(e: Emitter, cond: Any, msg: Any = "") -> None:
    """Refuse to compile where a condition does not hold."""
    value = unwrap(cond)
    if isinstance(value, Tensor):
        value = value.literal
    if value is None:
        e.fail("static_assert of a value that is known at run time only", "use device_assert")
    if not value:
        source, node = e.frames[-1]
        what = f"static_assert failed{f': {unwrap(msg)}' if unwrap(msg) else ''}"
        raise source.error(what, node, kind=StaticAssertionError)


@builtin("static_print")
def _static_print(e: Emitter, *values: Any, sep: str = " ", end: str = "\n", **_: Any) -> None:
    """Print while compiling."""
    e.told = True
    if not e.trials:
        print(*(unwrap(value) for value in values), sep=sep, end=end)


__all__ = [
    "METHODS",
    "TABLE",
    "assembly",
    "choosing",
    "counting",
    "debugging",
    "descriptors",
    "pointwise",
    "promises",
    "randomness",
    "scaled",
    "shaping",
    "sorting",
]
