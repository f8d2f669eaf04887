"""Shapes of tiles: broadcasting, new axes, reshape, permute, join and split.

Tiles that are index expressions or bounds stay so: their axes are renamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from fuser.language.emitter import Emitter, moved
from fuser.language.tensors import Bound, Choice, Pointer, Tensor
from fuser.tilegen.index import Atom, Axis, Index, Lookup, axis

Shape = tuple[int, ...]
T = TypeVar("T", bound=Tensor | Pointer | Choice)


def lift(x: T, change: Callable[[Tensor], Tensor]) -> T:
    """A change of shape: of a pointer that of its offset."""
    if isinstance(x, Pointer):
        return cast(T, replace(x, offset=change(x.offset)))
    if isinstance(x, Choice):
        which = change(x.which) if x.which.shape else x.which
        return cast(T, Choice(tuple(lift(item, change) for item in x.pointers), which))
    return cast(T, change(cast(Tensor, x)))


def show(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def common_shape(e: Emitter, a: Shape, b: Shape) -> Shape:
    """The shape that both broadcast to. Scalars broadcast to anything; ranks are filled on the
    left."""
    if a == b or not b:
        return a
    if not a:
        return b
    rank = max(len(a), len(b))
    left, right = ((1,) * (rank - len(s)) + s for s in (a, b))
    found = []
    for x, y in zip(left, right, strict=True):
        if x != y and 1 not in (x, y):
            e.fail(
                f"tiles of {show(a)} and {show(b)} do not broadcast together",
                "add axes with [:, None] and [None, :] where they differ",
            )
        found.append(max(x, y))
    return tuple(found)


def broadcast_together(e: Emitter, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    shape = common_shape(e, x.shape, y.shape)
    return broadcast_to(e, x, shape), broadcast_to(e, y, shape)


def broadcast_to(e: Emitter, x: T, shape: Shape) -> T:
    """A tile repeated along axes of 1 and new axes on the left."""
    return lift(x, lambda tile: _broadcast_to(e, tile, shape))


def _broadcast_to(e: Emitter, x: Tensor, shape: Shape) -> Tensor:
    if x.shape == shape:
        return x
    if len(x.shape) > len(shape):
        e.fail(f"a tile of {show(x.shape)} cannot become {show(shape)}")
    first = len(shape) - len(x.shape)
    for position, dim in enumerate(x.shape):
        if dim not in (1, shape[first + position]):
            e.fail(f"a tile of {show(x.shape)} cannot become {show(shape)}")
    axes = tuple(range(first, len(shape)))
    return _renamed(
        e, x, shape, dict(enumerate(axes)), lambda value: e.builder.broadcast(value, shape, axes)
    )


def _renamed(
    e: Emitter, x: Tensor, shape: Shape, axes: dict[int, int], emit: Callable[[Any], Any]
) -> Tensor:
    """A tile whose axis i is axis axes[i] of the result; axes of 1 are dropped or repeated."""
    return _changed(e, x, shape, lambda index: moved(index, axes), emit)


def _changed(
    e: Emitter,
    x: Tensor,
    shape: Shape,
    change: Callable[[Index], Index],
    emit: Callable[[Any], Any],
) -> Tensor:
    """A tile under another shape: `change` for its expressions, `emit` for its value."""
    plain = Tensor(x.dtype, shape, literal=x.literal)
    if x.literal is not None:
        plain.index = x.index
        return plain
    if x.index is not None and not _has_lookup_of_ones(x.index):
        return Tensor(x.dtype, shape, index=change(x.index))
    if x.bounds is not None:
        bounds = tuple(Bound(change(b.below), change(b.limit)) for b in x.bounds)
        if not any(_has_lookup_of_ones(s) for b in x.bounds for s in (b.below, b.limit)):
            rest = None if x.rest is None else _changed(e, x.rest, shape, change, emit)
            return Tensor(x.dtype, shape, bounds=bounds, rest=rest)
    return e.tensor(emit(e.value_of(x)), x.dtype)


def _has_lookup_of_ones(expression: Index) -> bool:
    """Whether it reads a tile along an axis of 1, which would have to be repeated."""
    return any(isinstance(atom, Lookup) and 1 in atom.value.shape for atom in expression.leaves())


def axis_of(e: Emitter, axis: int, rank: int, what: str) -> int:
    """An axis of so many, counted from the front; a negative one counts from the end. what: the
    call and its tile, for the error of one that is none."""
    if not -rank <= axis < rank:
        wanted = f"it is in [{-rank}, {rank - 1}]" if rank else "a number has no axis"
        e.fail(f"{what} has no axis {axis}", wanted)
    return axis % rank


def expand_dims(e: Emitter, x: T, places: Sequence[int]) -> T:
    """New axes of 1 at the places, which count in the result."""
    return lift(x, lambda tile: _expand_dims(e, tile, places))


def _expand_dims(e: Emitter, x: Tensor, places: Sequence[int]) -> Tensor:
    rank = len(x.shape) + len(places)
    new = sorted(axis_of(e, place, rank, f"expand_dims of {x.type} to {rank} axes")
                 for place in places)  # fmt: skip
    if len(set(new)) != len(new):
        e.fail(f"expand_dims at {tuple(places)}, of which two are one axis")
    old = [a for a in range(rank) if a not in new]
    shape = tuple(1 if a in new else x.shape[old.index(a)] for a in range(rank))
    return _renamed(
        e, x, shape, dict(enumerate(old)), lambda value: e.builder.reshape(value, shape)
    )


def permute(e: Emitter, x: T, order: Sequence[int]) -> T:
    """Axis i of the result is axis order[i]."""
    return lift(x, lambda tile: _permute(e, tile, order))


def _permute(e: Emitter, x: Tensor, order: Sequence[int]) -> Tensor:
    rank = len(x.shape)
    wanted = tuple(axis_of(e, axis, rank, str(x.type)) for axis in order)
    if sorted(wanted) != list(range(rank)):
        e.fail(f"{tuple(order)} is not an order of the axes of {x.type}")
    shape = tuple(x.shape[a] for a in wanted)
    back = {old: new for new, old in enumerate(wanted)}
    return _renamed(e, x, shape, back, lambda value: e.builder.permute(value, wanted))


def reshape(e: Emitter, x: T, shape: Sequence[int]) -> T:
    """The same elements in row-major order under another shape; one dim may be -1."""
    return lift(x, lambda tile: _reshape(e, tile, shape))


def _reshape(e: Emitter, x: Tensor, shape: Sequence[int]) -> Tensor:
    wanted = _complete(e, x.shape, tuple(shape))
    if wanted == x.shape:
        return x
    if math.prod(wanted) != math.prod(x.shape):
        e.fail(f"a tile of {show(x.shape)} has not as many elements as {show(wanted)}")
    flat = Index(0)
    for number, dim in enumerate(wanted):
        flat = flat * dim + axis(number, dim)
    places: list[Index] = []
    rest = flat
    for dim in reversed(x.shape):
        places.append(rest % dim)
        rest = rest // dim
    places.reverse()

    def change(expression: Index) -> Index:
        def leaf(atom: Atom) -> Index | None:
            return places[atom.axis] if isinstance(atom, Axis) else None

        return expression.replace(leaf)

    if x.index is not None and any(isinstance(a, Lookup) for a in x.index.leaves()):
        return e.tensor(e.builder.reshape(e.value_of(x), wanted), x.dtype)
    if x.bounds is not None:
        return e.tensor(e.builder.reshape(e.value_of(x), wanted), x.dtype)
    return _changed(e, x, wanted, change, lambda value: e.builder.reshape(value, wanted))


def _complete(e: Emitter, old: Shape, new: Shape) -> Shape:
    if new.count(-1) > 1:
        e.fail(f"{show(new)} leaves more than one dim open")
    if -1 in new:
        known = -math.prod(new)
        if not known or math.prod(old) % known:
            e.fail(f"a tile of {show(old)} cannot become {show(new)}")
        return tuple(math.prod(old) // known if dim == -1 else dim for dim in new)
    return new


def iota(e: Emitter, start: int, stop: int) -> Tensor:
    """start, start + 1, .. stop - 1."""
    from fuser.language.types import int32

    return e.whole(axis(0, stop - start) + start, int32, (stop - start,))
