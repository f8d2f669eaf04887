"""Primitives that only move elements: reshape, transpose, broadcast, slice, concat, append, pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuser.errors import ShapeError
from fuser.graph.dims import Dim, ceildiv, is_decided, may_equal
from fuser.graph.dims import product as dim_product
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import (
    Array,
    Primitive,
    check_axis,
    check_dim,
    check_same_dtype,
)


def _infer_reshape(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    shape = tuple(attrs["shape"])
    if not may_equal(dim_product(types[0].shape), dim_product(shape)):
        raise ShapeError(f"reshape: {types[0]} does not have the size of {list(shape)}")
    return (TensorType(types[0].dtype, shape),)


def _evaluate_reshape(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (arrays[0].reshape(attrs["shape"]),)


def _infer_transpose(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    perm = tuple(attrs["perm"])
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"transpose: {perm} is no permutation of the axes of {x}")
    return (TensorType(x.dtype, tuple(x.shape[axis] for axis in perm)),)


def _evaluate_transpose(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (arrays[0].transpose(attrs["perm"]),)


def _infer_broadcast(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    shape, axes = tuple(attrs["shape"]), tuple(attrs["axes"])
    if len(axes) != x.rank or list(axes) != sorted(set(axes)):
        raise ShapeError(f"broadcast: {x} needs {x.rank} increasing axes, got {axes}")
    for axis, dim in zip(axes, x.shape, strict=True):
        check_axis("broadcast", axis, len(shape))
        if dim != 1 and not may_equal(dim, shape[axis]):
            raise ShapeError(f"broadcast: {x} does not stretch to {list(shape)} at axes {axes}")
    return (TensorType(x.dtype, shape),)


def _evaluate_broadcast(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    aligned = [1] * len(attrs["shape"])
    for axis, dim in zip(attrs["axes"], x.shape, strict=True):
        aligned[axis] = dim
    return (np.broadcast_to(x.reshape(aligned), attrs["shape"]),)


def _slice_extent(start: Dim, limit: Dim, stride: int) -> Dim:
    extent = ceildiv(limit - start, stride) if stride > 0 else ceildiv(start - limit, -stride)
    return max(extent, 0) if is_decided(extent) else extent


def _infer_slice(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    starts, limits, strides = attrs["starts"], attrs["limits"], attrs["strides"]
    if not len(starts) == len(limits) == len(strides) == x.rank:
        raise ShapeError(f"slice: starts, limits and strides need {x.rank} entries for {x}")
    shape = []
    for size, start, limit, stride in zip(x.shape, starts, limits, strides, strict=True):
        if stride == 0:
            raise ShapeError("slice: a stride is 0")
        low, high = (start, limit) if stride > 0 else (limit + 1, start + 1)
        if (is_decided(low) and low < 0) or _exceeds(high, size):
            raise ShapeError(f"slice: {start}:{limit}:{stride} is outside of {x}")
        shape.append(_slice_extent(start, limit, stride))
    return (TensorType(x.dtype, tuple(shape)),)


def _exceeds(limit: Dim, size: Dim) -> bool:
    over = limit - size
    return is_decided(over) and over > 0


def _evaluate_slice(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    index = tuple(
        slice(start, None if limit < 0 else limit, stride)
        for start, limit, stride in zip(
            attrs["starts"], attrs["limits"], attrs["strides"], strict=True
        )
    )
    return (arrays[0][index],)


def _infer_concat(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    first, axis = types[0], attrs["axis"]
    check_same_dtype("concat", types)
    check_axis("concat", axis, first.rank)
    total: Dim = 0
    for other in types:
        if other.rank != first.rank:
            raise ShapeError(f"concat: the ranks differ: {', '.join(map(str, types))}")
        for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)):
            if i != axis:
                check_dim("concat", a, b, f"dims {i} of {first} and {other}")
        total = total + other.shape[axis]
    return (TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _evaluate_concat(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (np.concatenate(arrays, attrs["axis"]),)


def _infer_pad(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    low, high = attrs["low"], attrs["high"]
    if not len(low) == len(high) == x.rank:
        raise ShapeError(f"pad: low and high need {x.rank} entries for {x}")
    shape = tuple(a + size + b for a, size, b in zip(low, x.shape, high, strict=True))
    if any(is_decided(dim) and dim < 0 for dim in shape):
        raise ShapeError(f"pad: {x} cannot be cropped by {low} and {high}")
    return (TensorType(x.dtype, shape),)


def _evaluate_pad(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    pairs = list(zip(attrs["low"], attrs["high"], strict=True))
    kept = tuple(
        slice(max(0, -low), size - max(0, -high))
        for (low, high), size in zip(pairs, x.shape, strict=True)
    )
    widths = [(max(0, low), max(0, high)) for low, high in pairs]
    if not x.ndim:  # np.pad has no widths of no axes
        return (x,)
    return (np.pad(x[kept], widths, constant_values=attrs["value"]),)


PRIMITIVES: tuple[Primitive, ...] = (
    Primitive("reshape", "movement", 1, _infer_reshape, _evaluate_reshape),
    Primitive("transpose", "movement", 1, _infer_transpose, _evaluate_transpose),
    Primitive("broadcast", "movement", 1, _infer_broadcast, _evaluate_broadcast),
    Primitive("slice", "movement", 1, _infer_slice, _evaluate_slice),
    Primitive("concat", "movement", None, _infer_concat, _evaluate_concat),
    Primitive("append", "movement", 2, _infer_concat, _evaluate_concat),
    Primitive("pad", "movement", 1, _infer_pad, _evaluate_pad),
)
