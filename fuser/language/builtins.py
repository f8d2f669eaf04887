"""The functions of the language by name, and those that tensors and pointers have as methods.

Each is a `Builtin`: a record with the function that compiles a call of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.errors import StaticAssertionError
from fuser.language import (
    counting,
    debugging,
    descriptors,
    elementwise,
    folds,
    memory,
    philox,
    pieces,
    pointwise,
    products,
    promises,
    scaled,
    shapes,
    sorting,
)
from fuser.language.addresses import from_address
from fuser.language.arithmetic import as_tensor, binary, cast, is_number, to_bool, where
from fuser.language.emitter import Emitter
from fuser.language.registry import METHODS, TABLE, builtin, element_type, static_int, static_shape
from fuser.language.tensors import Pointer, Range, Tensor, unwrap
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
def _to_tensor(e: Emitter, value: Any) -> Any:
    """A number as a tensor."""
    return value if isinstance(value, Tensor | Pointer) else as_tensor(e, value)


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


# shapes -------------------------------------------------------------------------------------------


@builtin("broadcast")
def _broadcast(e: Emitter, input: Any, other: Any) -> tuple[Any, Any]:
    """Both tiles in the shape that both broadcast to."""
    return shapes.broadcast_together(e, as_tensor(e, input), as_tensor(e, other))


def _dims(e: Emitter, given: tuple[Any, ...]) -> tuple[int, ...]:
    if len(given) == 1 and isinstance(given[0], tuple | list):
        given = tuple(given[0])
    return tuple(static_int(e, item, "a dim") for item in given)


@builtin("broadcast_to", method=True)
def _broadcast_to(e: Emitter, input: Any, *shape: Any) -> Any:
    """The tile repeated to a shape."""
    tile = input if isinstance(input, Pointer) else as_tensor(e, input)
    return shapes.broadcast_to(e, tile, _dims(e, shape))


@builtin("expand_dims", method=True)
def _expand_dims(e: Emitter, input: Any, axis: Any) -> Any:
    """A new axis of 1."""
    tile = input if isinstance(input, Pointer) else as_tensor(e, input)
    places = axis if isinstance(axis, tuple | list) else (axis,)
    return shapes.expand_dims(e, tile, [static_int(e, a, "an axis") for a in places])


@builtin("unsqueeze", method=True)
def _unsqueeze(e: Emitter, x: Any, dim: Any) -> Any:
    """A new axis of 1."""
    return _expand_dims(e, x, dim)


@builtin("squeeze", method=True)
def _squeeze(e: Emitter, x: Any, dim: Any = None) -> Any:
    """Without an axis of 1, or without all of them."""
    tile = x if isinstance(x, Pointer) else as_tensor(e, x)
    rank = len(tile.shape)
    given = range(rank) if dim is None else [static_int(e, dim, "an axis") % max(1, rank)]
    gone = [a for a in given if tile.shape[a] == 1]
    if dim is not None and not gone:
        e.fail(f"squeeze of axis {dim} of {tile.type}", "only axes of 1 can go")
    return shapes.reshape(e, tile, tuple(n for a, n in enumerate(tile.shape) if a not in gone))


@builtin("reshape", "view", method=True)
def _reshape(e: Emitter, input: Any, *shape: Any, can_reorder: Any = False) -> Any:
    """The same elements, in row-major order, in another shape."""
    tile = input if isinstance(input, Pointer) else as_tensor(e, input)
    return shapes.reshape(e, tile, _dims(e, shape))


@builtin("ravel", method=True)
def _ravel(e: Emitter, x: Any, can_reorder: Any = False) -> Any:
    """All elements along one axis."""
    return shapes.reshape(e, x, (-1,))


@builtin("permute", method=True)
def _permute(e: Emitter, input: Any, *dims: Any) -> Any:
    """Axis i of the result is axis dims[i]."""
    return shapes.permute(e, input, _dims(e, dims))


@builtin("trans", method=True)
def _trans(e: Emitter, input: Any, *dims: Any) -> Any:
    """The last two axes swapped, or the axes in the order given."""
    order = _dims(e, dims)
    if not order:
        rank = len(input.shape)
        if rank < 2:
            e.fail(f"trans of {input.type}", "it swaps the last two axes")
        order = (*range(rank - 2), rank - 1, rank - 2)
    return shapes.permute(e, input, order)


@builtin("join")
def _join(e: Emitter, a: Any, b: Any) -> Tensor:
    """A new last axis of 2: a, then b."""
    return pieces.join(e, *_alike(e, a, b))


def _alike(e: Emitter, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    x, y = as_tensor(e, a), as_tensor(e, b)
    if x.dtype != y.dtype:
        e.fail(f"tiles of {x.dtype} and {y.dtype} together", "cast one")
    return x, y


@builtin("split", method=True)
def _split(e: Emitter, a: Any) -> tuple[Tensor, Tensor]:
    """a[..., 0] and a[..., 1]."""
    return pieces.split(e, as_tensor(e, a))


@builtin("interleave")
def _interleave(e: Emitter, a: Any, b: Any) -> Tensor:
    """The elements of a and b in turns along the last axis."""
    joined = pieces.join(e, *_alike(e, a, b))
    if len(joined.shape) == 1:
        return joined
    return shapes.reshape(e, joined, (*joined.shape[:-2], 2 * joined.shape[-2]))


@builtin("cat")
def _cat(e: Emitter, input: Any, other: Any, can_reorder: Any = False, dim: Any = 0) -> Tensor:
    """The elements of one tile, then those of the other, along an axis."""
    x, y = _alike(e, input, other)
    axis = static_int(e, dim, "the dim of cat") % max(1, len(x.shape))
    joined = pieces.join(e, x, y)
    rank = len(x.shape)
    order = [*range(axis), rank, *range(axis, rank)]
    shape = tuple(2 * n if a == axis else n for a, n in enumerate(x.shape))
    return shapes.reshape(e, shapes.permute(e, joined, order), shape)


@builtin("flip", method=True)
def _flip(e: Emitter, x: Any, dim: Any = None) -> Tensor:
    """The elements of an axis in reverse order."""
    return folds.flip(e, x, dim)


@builtin("gather", method=True)
def _gather(e: Emitter, src: Any, index: Any, axis: Any) -> Tensor:
    """Elements of a tile at other places along an axis."""
    x, at = as_tensor(e, src), as_tensor(e, index)
    place = static_int(e, axis, "the axis of gather") % len(x.shape)
    if not at.dtype.is_int() or len(at.shape) != len(x.shape):
        e.fail(f"gather of {x.type} at {at.type}", "the index is a tile of integers of equal rank")
    return folds.gathered(e, x, at, place)


# elements -----------------------------------------------------------------------------------------


@builtin("where")
def _where(e: Emitter, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    return where(e, unwrap(condition), unwrap(x), unwrap(y))


def _float_map(fn: str) -> Callable[..., Any]:
    def call(e: Emitter, x: Any) -> Tensor:
        return elementwise.float_map(e, fn, unwrap(x))

    call.__doc__ = f"{fn} of each element."
    return call


for _name in elementwise.FLOAT_MAPS:
    builtin(_name, method=True)(_float_map(_name))
builtin("sqrt_rn", method=True)(_float_map("sqrt"))


@builtin("abs", method=True)
def _abs(e: Emitter, x: Any) -> Any:
    """The absolute value."""
    return elementwise.abs_(e, unwrap(x))


@builtin("maximum")
def _maximum(e: Emitter, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """The greater of two; a number, where the other is NaN."""
    return elementwise.extreme(e, True, unwrap(x), unwrap(y), unwrap(propagate_nan))


@builtin("minimum")
def _minimum(e: Emitter, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """The lesser of two; a number, where the other is NaN."""
    return elementwise.extreme(e, False, unwrap(x), unwrap(y), unwrap(propagate_nan))


def _logic(op: str) -> Callable[..., Any]:
    def call(e: Emitter, input: Any, other: Any) -> Any:
        a, b = (to_bool(e, as_tensor(e, unwrap(item))) for item in (input, other))
        return binary(e, op, a, b)

    call.__doc__ = f"bool(input) {op} bool(other)."
    return call


builtin("logical_and", method=True)(_logic("&"))
builtin("logical_or", method=True)(_logic("|"))


@builtin("clamp")
def _clamp(e: Emitter, x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Any:
    """x between min and max."""
    return elementwise.clamp(e, unwrap(x), unwrap(min), unwrap(max), unwrap(propagate_nan))


builtin("sigmoid", method=True)(elementwise.sigmoid)
builtin("softmax", method=True)(elementwise.softmax)
builtin("fma", method=True)(elementwise.fma)
builtin("div_rn")(elementwise.div_rn)
builtin("fdiv")(elementwise.fdiv)
builtin("umulhi")(elementwise.umulhi)


def cdiv(x: int, div: int) -> int:
    """x / div rounded up, of plain numbers."""
    return -(-x // div)


def next_power_of_2(n: int) -> int:
    """The least power of 2 that is not below n, of plain numbers."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


@builtin("next_power_of_2", host=next_power_of_2)
def _next_power_of_2(e: Emitter, n: Any) -> int:
    """The least power of 2 that is not below n, which is known while compiling."""
    return next_power_of_2(static_int(e, n, "the number of next_power_of_2"))


@builtin("cdiv", method=True, host=cdiv)
def _cdiv(e: Emitter, x: Any, div: Any) -> Any:
    """x / div rounded up."""
    return elementwise.cdiv(e, unwrap(x), unwrap(div))


def _operator(op: str) -> Callable[..., Any]:
    def call(e: Emitter, x: Any, y: Any, sanitize_overflow: Any = None, **_: Any) -> Any:
        return binary(e, op, unwrap(x), unwrap(y))

    call.__doc__ = f"x {op} y."
    return call


for _name, _op in (("add", "+"), ("sub", "-"), ("mul", "*")):
    builtin(_name)(_operator(_op))


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


def _atomic(fn: Any) -> Callable[..., Any]:
    def call(
        e: Emitter, pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
    ) -> Tensor:
        return memory.atomic(e, fn, pointer, unwrap(val), unwrap(mask))

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
    return memory.atomic(e, "compare_exchange", pointer, unwrap(val), None, unwrap(cmp))


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
    if not e.trials:
        print(*(unwrap(value) for value in values), sep=sep, end=end)


@builtin("inline_asm_elementwise")
def _asm(e: Emitter, *_: Any, **__: Any) -> None:
    e.fail("inline assembly", "it names one machine's instructions; write it in the language")


__all__ = [
    "METHODS",
    "TABLE",
    "counting",
    "debugging",
    "descriptors",
    "philox",
    "pointwise",
    "promises",
    "scaled",
    "sorting",
]
