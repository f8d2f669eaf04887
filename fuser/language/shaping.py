"""The functions of the language that give tiles another shape or order."""

from __future__ import annotations

from typing import Any

from fuser.language import folds, pieces, shapes
from fuser.language.arithmetic import as_tensor
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin, static_int
from fuser.language.tensors import Choice, Pointer, Tensor


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
    tile = input if isinstance(input, Pointer | Choice) else as_tensor(e, input)
    return shapes.broadcast_to(e, tile, _dims(e, shape))


@builtin("expand_dims", method=True)
def _expand_dims(e: Emitter, input: Any, axis: Any) -> Any:
    """A new axis of 1."""
    tile = input if isinstance(input, Pointer | Choice) else as_tensor(e, input)
    places = axis if isinstance(axis, tuple | list) else (axis,)
    return shapes.expand_dims(e, tile, [static_int(e, a, "an axis") for a in places])


@builtin("unsqueeze", method=True)
def _unsqueeze(e: Emitter, x: Any, dim: Any) -> Any:
    """A new axis of 1."""
    return _expand_dims(e, x, dim)


@builtin("squeeze", method=True)
def _squeeze(e: Emitter, x: Any, dim: Any = None) -> Any:
    """Without an axis of 1, or without all of them."""
    tile = x if isinstance(x, Pointer | Choice) else as_tensor(e, x)
    rank = len(tile.shape)
    one = None if dim is None else static_int(e, dim, "an axis")
    given = range(rank) if one is None else [shapes.axis_of(e, one, rank, f"squeeze: {tile.type}")]
    gone = [a for a in given if tile.shape[a] == 1]
    if dim is not None and not gone:
        e.fail(f"squeeze of axis {dim} of {tile.type}", "only axes of 1 can go")
    return shapes.reshape(e, tile, tuple(n for a, n in enumerate(tile.shape) if a not in gone))


@builtin("reshape", "view", method=True)
def _reshape(e: Emitter, input: Any, *shape: Any, can_reorder: Any = False) -> Any:
    """The same elements, in row-major order, in another shape."""
    tile = input if isinstance(input, Pointer | Choice) else as_tensor(e, input)
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
    rank = len(x.shape)
    axis = shapes.axis_of(e, static_int(e, dim, "the dim of cat"), rank, f"cat: {x.type}")
    joined = pieces.join(e, x, y)
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
    given = static_int(e, axis, "the axis of gather")
    place = shapes.axis_of(e, given, len(x.shape), f"gather: {x.type}")
    if not at.dtype.is_int() or len(at.shape) != len(x.shape):
        e.fail(f"gather of {x.type} at {at.type}", "the index is a tile of integers of equal rank")
    return folds.gathered(e, x, at, place)
