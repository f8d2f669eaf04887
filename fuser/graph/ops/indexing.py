"""Primitives whose reads or writes depend on data: gather, scatter, sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuser import dtypes
from fuser.errors import FeedError, ShapeError
from fuser.graph.dims import may_equal
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import Array, Primitive, check_axis, check_same_dtype, widen

_COMBINE = {
    "none": None,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _infer_gather(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices = types
    axis = attrs["axis"]
    check_axis("gather", axis, data.rank)
    if not indices.dtype.is_integer:
        raise ShapeError(f"gather: the indices are {indices}, not integers")
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return (TensorType(data.dtype, shape),)


def _checked(indices: Array, size: int) -> Array:
    """Indices with negative ones counted from the end. Raises FeedError if one is out of range."""
    low, high = (int(indices.min()), int(indices.max())) if indices.size else (0, 0)
    if indices.size and (low < -size or high >= size):
        raise FeedError(f"an index is out of range: {low}..{high} into an axis of size {size}")
    if low >= 0 and indices.dtype != np.uint64:
        return indices
    wide = indices.astype(np.int64)
    return np.asarray(np.where(wide < 0, wide + size, wide))


AT_ONCE = 1 << 18
"""Indices into a table that are looked up at a time: NumPy makes 8 bytes of each."""


def _evaluate_gather(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    data, indices = arrays
    axis = attrs["axis"]
    at = _checked(indices, data.shape[axis])
    if data.ndim > 1 or at.size <= AT_ONCE:
        return (np.take(data, at, axis=axis),)
    found = np.empty(at.shape, data.dtype)
    flat, whole = np.ascontiguousarray(at).reshape(-1), found.reshape(-1)
    for start in range(0, flat.size, AT_ONCE):
        piece = slice(start, start + AT_ONCE)
        whole[piece] = data[flat[piece]]
    return (found,)


def _infer_scatter(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, updates = types
    check_same_dtype("scatter", (data, updates))
    (expected,) = _infer_gather((data, indices), attrs)
    if updates.rank != expected.rank or not all(map(may_equal, updates.shape, expected.shape)):
        raise ShapeError(f"scatter: the updates are {updates}, not {expected}")
    if attrs.get("reduction", "none") not in _COMBINE:
        raise ShapeError(f"scatter: unknown reduction {attrs['reduction']!r}")
    return (data,)


def _evaluate_scatter(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    data, indices, updates = arrays
    axis = attrs["axis"]
    at = (slice(None),) * axis + (_checked(indices, data.shape[axis]),)
    result = data.copy()
    combine = _COMBINE[attrs.get("reduction", "none")]
    if combine is None:
        result[at] = updates
        return (result,)
    wide = widen(result).copy()
    combine.at(wide, at, widen(updates))
    return (wide.astype(data.dtype),)


def _infer_sort(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_axis("sort", attrs["axis"], types[0].rank)
    return (types[0], TensorType(dtypes.i64, types[0].shape))


def _evaluate_sort(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    axis = attrs["axis"]
    keys = widen(x)
    if attrs.get("descending", False):
        # Sort the flipped array and flip back, so that equal keys keep their order.
        backwards = np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
        order = x.shape[axis] - 1 - backwards
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    return (np.take_along_axis(x, order, axis), np.asarray(order, np.int64))


PRIMITIVES: tuple[Primitive, ...] = (
    Primitive("gather", "movement", 2, _infer_gather, _evaluate_gather),
    Primitive("scatter", "movement", 3, _infer_scatter, _evaluate_scatter),
    Primitive("sort", "other", 1, _infer_sort, _evaluate_sort),
)
