"""Tiles put together and taken apart along a last axis: join, split, one item of it."""

from __future__ import annotations

from fuser.dtypes import BY_NAME, i32
from fuser.language.arithmetic import compare, where
from fuser.language.emitter import Emitter
from fuser.language.shapes import broadcast_to, common_shape, expand_dims
from fuser.language.tensors import Tensor
from fuser.language.types import int32
from fuser.tilegen.index import axis


def select_last(e: Emitter, x: Tensor, place: int) -> Tensor:
    """x[..., place]: the exact bits, by a fold over the axis in which all others are 0."""

    last = x.shape[-1]
    value = e.value_of(x)
    bits = value.dtype.bits
    kind = BY_NAME["i8" if value.dtype.kind == "bool" else f"i{bits}"]
    plain = value.dtype
    whole = e.builder.cast(value, kind) if plain.kind == "bool" else e.builder.bitcast(value, kind)

    where = e.builder.index(axis(len(x.shape) - 1, last), x.shape, i32)
    chosen = e.builder.map("eq", where, e.builder.full(place, x.shape, i32))
    zero = e.builder.full(0, x.shape, kind)
    kept = e.builder.map("select", chosen, whole, zero)
    found = e.builder.reduce("bitwise_or", kept, len(x.shape) - 1)
    back = e.builder.cast(found, plain) if plain.kind == "bool" else e.builder.bitcast(found, plain)
    return e.tensor(back, x.dtype)


def split(e: Emitter, x: Tensor) -> tuple[Tensor, Tensor]:
    """x[..., 0] and x[..., 1]."""
    if not x.shape or x.shape[-1] != 2:
        e.fail(f"split of {x.type}", "the last axis must have 2 elements")
    return select_last(e, x, 0), select_last(e, x, 1)


def join(e: Emitter, a: Tensor, b: Tensor) -> Tensor:
    """A new last axis of 2: a, then b."""

    shape = (*common_shape(e, a.shape, b.shape), 2)
    x, y = (expand_dims(e, broadcast_to(e, item, shape[:-1]), [len(shape) - 1]) for item in (a, b))

    last = e.whole(axis(len(shape) - 1, 2), int32, shape)

    first = compare(e, "==", last, e.constant(0, int32, shape))
    return where(e, first, broadcast_to(e, x, shape), broadcast_to(e, y, shape))  # type: ignore[no-any-return]


def stack_last(e: Emitter, parts: list[Tensor]) -> Tensor:
    """A new last axis with these tiles of one shape and type along it, in order."""
    count = len(parts)
    shape = (*parts[0].shape, count)
    last = e.whole(axis(len(shape) - 1, count), int32, shape)
    found = broadcast_to(e, expand_dims(e, parts[0], [len(shape) - 1]), shape)
    for number, part in enumerate(parts[1:], 1):
        here = compare(e, "==", last, e.constant(number, int32, shape))
        wide = broadcast_to(e, expand_dims(e, part, [len(shape) - 1]), shape)
        found = where(e, here, wide, found)
    return found
