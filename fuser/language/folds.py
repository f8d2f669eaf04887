"""Folds and scans along axes of tiles, with the language's own functions and with a user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.language import arithmetic, narrow, pieces, shapes, slices
from fuser.language.arithmetic import as_tensor, cast
from fuser.language.emitter import Emitter
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType, float32, int32, uint32
from fuser.tilegen.index import axis as axis_index
from fuser.tilegen.index import maximum
from fuser.tilegen.ops import ReduceFn

Combine = Callable[..., tuple[Tensor, ...]]
"""(left parts.., right parts..) -> parts."""


def _axis(e: Emitter, x: Tensor, axis: Any) -> int:
    rank = len(x.shape)
    if not isinstance(axis, int):
        e.fail(f"{x.type} has no axis {axis}")
    return shapes.axis_of(e, axis, rank, str(x.type))


def _flat(e: Emitter, x: Tensor) -> Tensor:
    return shapes.reshape(e, x, (-1,)) if len(x.shape) > 1 else x


def folded(
    e: Emitter, fn: ReduceFn, x: Tensor, axis: Any = None, keep_dims: bool = False
) -> Tensor:
    """One axis (all, where axis is None) folded away; 16-bit floats fold in float32."""
    if not x.shape:
        e.fail(f"a fold of {x.type}", "scalars have no axis")
    rank = len(x.shape)
    if axis is None:
        wide = narrow.widened(e, _flat(e, x))
        place = 0
    else:
        place = _axis(e, x, axis)
        wide = narrow.widened(e, x)
    found = narrow.narrowed(e, e.builder.reduce(fn, wide, place), x.dtype)
    if not keep_dims:
        return found
    if axis is None:
        return shapes.reshape(e, found, (1,) * rank)
    return shapes.expand_dims(e, found, [place])


def _promoted(e: Emitter, x: Tensor) -> Tensor:
    """Integers of less than 32 bits as 32-bit ones."""
    if x.dtype.is_int() and x.dtype.bits < 32:
        return cast(e, x, int32 if x.dtype.is_int_signed() else uint32)
    return x


def sum_(
    e: Emitter, input: Any, axis: Any = None, keep_dims: bool = False,
    dtype: ElementType | None = None,
) -> Tensor:  # fmt: skip
    """The sum along an axis (None: of all). Small integers add up in 32 bits, 16-bit floats in
    float32;
    dtype: what the elements are cast to before."""
    x = as_tensor(e, input)
    if dtype is not None and dtype.bits == 1:  # which has no sums of its own: those of bits
        return folded(e, "bitwise_xor", cast(e, x, dtype), axis, keep_dims)
    x = cast(e, x, dtype) if dtype is not None else _promoted(e, x)
    return folded(e, "sum", x, axis, keep_dims)


def _extreme(
    e: Emitter, largest: bool, input: Any, axis: Any, return_indices: bool, left: bool,
    keep_dims: bool,
) -> Any:  # fmt: skip
    x = as_tensor(e, input)
    fn = extreme_fold(x.dtype, largest)
    if return_indices:
        x = cast(e, x, float32) if x.dtype.is_bf16() else x
        best = folded(e, fn, x, axis, keep_dims)
        return best, _place_of(e, x, fn, axis, left, keep_dims)
    if x.dtype.bits < 32:
        x = cast(e, x, float32 if x.dtype.is_floating() else int32)
    return folded(e, fn, x, axis, keep_dims)


def extreme_fold(dtype: ElementType, largest: bool) -> ReduceFn:
    """The fold that finds the extreme; of floats that of those that are numbers."""
    if dtype.is_floating():
        return "fmax" if largest else "fmin"
    return "max" if largest else "min"


def _place_of(
    e: Emitter, x: Tensor, fn: ReduceFn, axis: Any, left: bool, keep_dims: bool
) -> Tensor:
    """Where along the axis the extreme is: the first of equals, or the last."""
    if axis is None:
        x, place = _flat(e, x), 0
    else:
        place = _axis(e, x, axis)
    best = shapes.broadcast_to(e, folded(e, fn, x, place, True), x.shape)
    extent = x.shape[place]
    here = e.whole(axis_index(place, extent), int32, x.shape)
    nowhere = e.constant(extent if left else -1, int32, x.shape)
    same = arithmetic.compare(e, "==", x, best)
    if x.dtype.is_floating():  # where all are NaN, the extreme is NaN, too
        none = arithmetic.compare(e, "!=", best, best)
        same = arithmetic.logical(e, "|", same, none)
    there = arithmetic.where(e, same, here, nowhere)
    return folded(e, "min" if left else "max", there, place, keep_dims)


def max_(
    e: Emitter, input: Any, axis: Any = None, return_indices: bool = False,
    return_indices_tie_break_left: bool = True, keep_dims: bool = False,
) -> Any:  # fmt: skip
    """The largest along an axis (None: of all); NaN only where all are. return_indices: (it, its
    place), of equals the first, or the last."""
    return _extreme(e, True, input, axis, return_indices, return_indices_tie_break_left, keep_dims)


def min_(
    e: Emitter, input: Any, axis: Any = None, return_indices: bool = False,
    return_indices_tie_break_left: bool = True, keep_dims: bool = False,
) -> Any:  # fmt: skip
    """The smallest along an axis (None: of all); NaN only where all are. return_indices: (it, its
    place), of equals the first, or the last."""
    return _extreme(e, False, input, axis, return_indices, return_indices_tie_break_left, keep_dims)


def argmax(
    e: Emitter, input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False
) -> Tensor:
    """The place of the largest along an axis, as int32; NaN never wins."""
    return max_(e, input, axis, True, tie_break_left, keep_dims)[1]  # type: ignore[no-any-return]


def argmin(
    e: Emitter, input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False
) -> Tensor:
    """The place of the smallest along an axis, as int32; NaN never wins."""
    return min_(e, input, axis, True, tie_break_left, keep_dims)[1]  # type: ignore[no-any-return]


def xor_sum(e: Emitter, input: Any, axis: Any = None, keep_dims: bool = False) -> Tensor:
    """Exclusive or of integers along an axis (None: of all)."""
    x = as_tensor(e, input)
    if not x.dtype.is_int():
        e.fail(f"xor_sum of {x.type}", "bits are those of integers")
    return folded(e, "bitwise_xor", x, axis, keep_dims)


def reduce_or(e: Emitter, input: Any, axis: Any, keep_dims: bool = False) -> Tensor:
    """Bitwise or of integers along an axis."""
    x = as_tensor(e, input)
    if not x.dtype.is_int():
        e.fail(f"reduce_or of {x.type}", "bits are those of integers")
    return folded(e, "bitwise_or", x, axis, keep_dims)


# scans --------------------------------------------------------------------------------------------


def _scanned(e: Emitter, fn: ReduceFn, x: Tensor, axis: int, reverse: bool) -> Tensor:
    made = e.builder.scan(fn, narrow.widened(e, x), _axis(e, x, axis), reverse)
    return narrow.narrowed(e, made, x.dtype)


def cumsum(
    e: Emitter, input: Any, axis: int = 0, reverse: bool = False, dtype: ElementType | None = None
) -> Tensor:
    """Running sums: bfloat16 in float32, small integers in 32 bits."""
    x = as_tensor(e, input)
    if dtype is not None:
        x = cast(e, x, dtype)
    elif x.dtype.is_bf16():
        x = cast(e, x, float32)
    else:
        x = _promoted(e, x)
    return _scanned(e, "sum", x, axis, reverse)


def cumprod(
    e: Emitter, input: Any, axis: int = 0, reverse: bool = False, dtype: ElementType | None = None
) -> Tensor:
    """Running products along an axis, in a type: bfloat16 in float32."""
    x = as_tensor(e, input)
    if dtype is not None or x.dtype.is_bf16():
        x = cast(e, x, dtype or float32)
    return _scanned(e, "prod", x, axis, reverse)


# with a user's function ---------------------------------------------------------------------------


def reduce_with(
    e: Emitter, parts: tuple[Tensor, ...], axis: Any, combine: Combine, keep_dims: bool
) -> tuple[Tensor, ...]:
    """Fold with an associative function of tuples: neighbours first, then pairs of them."""
    rank = len(parts[0].shape)
    if axis is None:
        parts, place = tuple(_flat(e, x) for x in parts), 0
    else:
        place = _axis(e, parts[0], axis)
    order = [a for a in range(len(parts[0].shape)) if a != place] + [place]
    now = tuple(shapes.permute(e, x, order) for x in parts)
    odd: list[tuple[Tensor, ...]] = []  # last elements without a neighbour
    while now[0].shape[-1] > 1:
        count = now[0].shape[-1]
        if count % 2:
            last = len(order) - 1
            odd.append(tuple(slices.cut(e, x, last, -1) for x in now))
            now = tuple(slices.cut(e, x, last, slice(0, -1)) for x in now)
            count -= 1
        halves = [
            pieces.split(e, shapes.reshape(e, x, (*x.shape[:-1], count // 2, 2))) for x in now
        ]
        made = combine(*(left for left, _ in halves), *(right for _, right in halves))
        now = tuple(cast(e, new, old.dtype) for new, old in zip(made, now, strict=True))
    found = tuple(shapes.reshape(e, x, x.shape[:-1]) for x in now)
    for more in reversed(odd):
        found = combine(*found, *more)
    if not keep_dims:
        return found
    if axis is None:
        return tuple(shapes.reshape(e, x, (1,) * rank) for x in found)
    return tuple(shapes.expand_dims(e, x, [place]) for x in found)


def scan_with(
    e: Emitter, parts: tuple[Tensor, ...], axis: int, combine: Combine, reverse: bool
) -> tuple[Tensor, ...]:
    """A running fold with an associative function of tuples, in steps of 1, 2, 4..."""
    place = _axis(e, parts[0], axis)
    extent = parts[0].shape[place]
    now = tuple(_reversed(e, x, place) for x in parts) if reverse else parts
    step = 1
    while step < extent:
        shape = now[0].shape
        here = axis_index(place, extent)
        at = e.whole(maximum(here - step, 0), int32, shape)
        before = tuple(gathered(e, x, at, place) for x in now)
        joined = combine(*before, *now)
        inside = arithmetic.compare(e, ">=", e.whole(here, int32, shape), step)
        now = tuple(
            arithmetic.where(e, inside, cast(e, new, old.dtype), old)
            for new, old in zip(joined, now, strict=True)
        )
        step *= 2
    return tuple(_reversed(e, x, place) for x in now) if reverse else now


def _reversed(e: Emitter, x: Tensor, place: int) -> Tensor:
    extent = x.shape[place]
    at = e.whole(axis_index(place, extent) * -1 + (extent - 1), int32, x.shape)
    return gathered(e, x, at, place)


def gathered(e: Emitter, x: Tensor, at: Tensor, axis: int) -> Tensor:
    """x at other places along an axis."""
    made = e.builder.gather(e.value_of(x), e.value_of(at), axis)
    return e.tensor(made, x.dtype)


def flip(e: Emitter, x: Any, dim: Any = None) -> Tensor:
    """The elements of an axis (the last) in reverse order."""
    x = as_tensor(e, x)
    return _reversed(e, x, _axis(e, x, len(x.shape) - 1 if dim is None else dim))
