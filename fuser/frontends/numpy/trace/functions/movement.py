"""Reshapes, transposes, concatenations, splits, padding: what only moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, lift, result_type, wrap
from fuser.frontends.numpy.trace.functions.registry import (
    array_function,
    as_shape,
    many_axes,
    one_axis,
)
from fuser.graph.builder import broadcast_shapes, infer_minus_one
from fuser.graph.ir import Value


@array_function("reshape")
def reshape(
    x: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None
) -> Any:
    if order not in ("C", "A"):
        raise TraceError(f"reshape in order {order!r} cannot be traced", hint="transpose first")
    b, value = current().builder, lift(x)
    wanted = as_shape(newshape if shape is None else shape)
    return wrap(b.reshape(value, infer_minus_one(value.type, wanted)))


@array_function("ravel")
def ravel(x: Any, order: str = "C") -> Any:
    return reshape(x, (-1,), order)


@array_function("transpose", "permute_dims")
def transpose(x: Any, axes: Any = None) -> Any:
    value = lift(x)
    rank = value.type.rank
    perm = range(rank)[::-1] if axes is None else [one_axis(a, rank) for a in axes]
    return wrap(current().builder.transpose(value, list(perm)))


@array_function("matrix_transpose")
def matrix_transpose(x: Any, /) -> Any:
    return swapaxes(x, -1, -2)


@array_function("swapaxes")
def swapaxes(x: Any, axis1: Any, axis2: Any) -> Any:
    value = lift(x)
    rank = value.type.rank
    return wrap(current().builder.swap(value, one_axis(axis1, rank), one_axis(axis2, rank)))


@array_function("moveaxis")
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    value = lift(x)
    rank = value.type.rank
    moved = [one_axis(a, rank) for a in as_shape(source)]
    targets = [one_axis(a, rank) for a in as_shape(destination)]
    order = [axis for axis in range(rank) if axis not in moved]
    for target, axis in sorted(zip(targets, moved, strict=True)):
        order.insert(target, axis)
    return wrap(current().builder.transpose(value, order))


@array_function("expand_dims")
def expand_dims(x: Any, /, axis: Any = 0) -> Any:
    value = lift(x)
    given = as_shape(axis)
    axes = many_axes(given, value.type.rank + len(given))
    return wrap(current().builder.unsqueeze(value, axes))


@array_function("squeeze")
def squeeze(x: Any, /, axis: Any = None) -> Any:
    value = lift(x)
    if axis is None:
        axes = [i for i, dim in enumerate(value.shape) if dim == 1]
    else:
        axes = many_axes(axis, value.type.rank)
    return wrap(current().builder.squeeze(value, axes))


def atleast(x: Any, rank: int) -> Value:
    value = lift(x)
    missing = rank - value.type.rank
    return current().builder.unsqueeze(value, range(missing)) if missing > 0 else value


@array_function("atleast_1d")
def atleast_1d(x: Any) -> Any:
    return wrap(atleast(x, 1))


@array_function("atleast_2d")
def atleast_2d(x: Any) -> Any:
    return wrap(atleast(x, 2))


def _common(arrays: Sequence[Any], dtype: Any = None) -> list[Value]:
    if not arrays:
        raise TraceError("there are no arrays to join")
    common = result_type(*arrays) if dtype is None else np.dtype(dtype)
    return [lift(x, common) for x in arrays]


@array_function("concatenate", "concat")
def concatenate(arrays: Any, /, axis: Any = 0, *, dtype: Any = None) -> Any:
    b, values = current().builder, _common(tuple(arrays), dtype)
    if axis is None:
        values, axis = [b.reshape(value, (value.type.size,)) for value in values], 0
    return wrap(b.concat(values, one_axis(axis, values[0].type.rank)))


@array_function("stack")
def stack(arrays: Any, /, axis: Any = 0, *, dtype: Any = None) -> Any:
    b, values = current().builder, _common(tuple(arrays), dtype)
    at = one_axis(axis, values[0].type.rank + 1)
    return wrap(b.concat([b.unsqueeze(value, [at]) for value in values], at))


@array_function("vstack")
def vstack(arrays: Any) -> Any:
    return concatenate([wrap(atleast(x, 2)) for x in arrays], axis=0)


@array_function("hstack")
def hstack(arrays: Any) -> Any:
    parts = [wrap(atleast(x, 1)) for x in arrays]
    return concatenate(parts, axis=0 if parts[0].ndim == 1 else 1)


@array_function("split", "array_split")
def split(x: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    value = lift(x)
    at = one_axis(axis, value.type.rank)
    size = value.shape[at]
    if isinstance(indices_or_sections, tuple | list | np.ndarray):
        bounds = [0, *(slice(0, int(i)).indices(size)[1] for i in indices_or_sections), size]
    else:
        count = index(indices_or_sections)
        longer = size % count
        widths = [size // count + (i < longer) for i in range(count)]
        bounds = [sum(widths[:i]) for i in range(count + 1)]
    b = current().builder
    return [wrap(b.slice_axis(value, at, low, max(low, high))) for low, high in pairwise(bounds)]


@array_function("unstack")
def unstack(x: Any, /, *, axis: Any = 0) -> tuple[Any, ...]:
    b, value = current().builder, lift(x)
    at = one_axis(axis, value.type.rank)
    parts = [b.slice_axis(value, at, i, i + 1) for i in range(value.shape[at])]
    return tuple(wrap(b.squeeze(part, [at])) for part in parts)


@array_function("broadcast_to")
def broadcast_to(x: Any, /, shape: Any, subok: bool = False) -> Any:
    return wrap(current().builder.broadcast_to(lift(x), as_shape(shape)))


@array_function("broadcast_arrays")
def broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Any, ...]:
    b, values = current().builder, [lift(x) for x in arrays]
    shape = broadcast_shapes("broadcast_arrays", [value.type.shape for value in values])
    return tuple(wrap(b.broadcast_to(value, shape)) for value in values)


@array_function("flip")
def flip(x: Any, /, axis: Any = None) -> Any:
    value = lift(x)
    axes = many_axes(axis, value.type.rank)
    shape = value.shape
    starts = [size - 1 if i in axes else 0 for i, size in enumerate(shape)]
    limits = [-1 if i in axes else size for i, size in enumerate(shape)]
    strides = [-1 if i in axes else 1 for i in range(len(shape))]
    if not value.type.size:
        return wrap(value)
    return wrap(current().builder.slice(value, starts, limits, strides))


@array_function("roll")
def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    b, value = current().builder, lift(x)
    if axis is None:
        flat = roll(ravel(x), shift, 0)
        return reshape(flat, value.shape)
    for amount, given in zip(as_shape(shift), as_shape(axis), strict=True):
        at = one_axis(given, value.type.rank)
        size = value.shape[at]
        cut = -amount % size if size else 0
        if cut:
            parts = (b.slice_axis(value, at, cut, size), b.slice_axis(value, at, 0, cut))
            value = b.concat(parts, at)
    return wrap(value)


@array_function("repeat")
def repeat(x: Any, repeats: Any, /, axis: Any = None) -> Any:
    b, value = current().builder, lift(x)
    if axis is None:
        value, axis = b.reshape(value, (value.type.size,)), 0
    at = one_axis(axis, value.type.rank)
    if isinstance(repeats, list | tuple | np.ndarray) and np.size(repeats) != 1:
        indices = np.repeat(np.arange(value.shape[at]), np.asarray(repeats, np.int64))
        return wrap(b.emit("gather", value, b.constant(indices), axis=at))
    count = int(np.asarray(repeats).reshape(()))
    shape = list(value.shape)
    wide = (*shape[: at + 1], count, *shape[at + 1 :])
    kept = [i for i in range(len(wide)) if i != at + 1]
    shape[at] *= count
    return wrap(b.reshape(b.broadcast(value, wide, kept), shape))


@array_function("tile")
def tile(x: Any, repetitions: Any, /) -> Any:
    times = as_shape(repetitions)
    b, value = current().builder, atleast(x, len(times))
    times = (1,) * (value.type.rank - len(times)) + times
    split_shape = [dim for pair in zip(times, value.shape, strict=True) for dim in pair]
    wide = b.broadcast(value, split_shape, range(1, len(split_shape), 2))
    return wrap(b.reshape(wide, [r * n for r, n in zip(times, value.shape, strict=True)]))


@array_function("pad")
def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    if mode != "constant":
        return _pad_by_index(x, pad_width, mode)
    value = lift(x)
    low, high = _pad_widths(pad_width, value.type.rank)
    fill = np.asarray(constant_values).reshape(()).astype(value.dtype.numpy).item()
    return wrap(current().builder.pad(value, low, high, fill))


def _pad_by_index(x: Any, pad_width: Any, mode: str) -> Any:
    """The other modes copy elements: NumPy says which, and a gather fetches them."""
    b, value = current().builder, lift(x)
    low, high = _pad_widths(pad_width, value.type.rank)
    for axis, widths in enumerate(zip(low, high, strict=True)):
        if any(widths):
            indices = np.pad(np.arange(value.shape[axis]), widths, mode=mode)  # type: ignore[call-overload]
            value = b.emit("gather", value, b.constant(indices), axis=axis)
    return wrap(value)


def _pad_widths(pad_width: Any, rank: int) -> tuple[list[int], list[int]]:
    if isinstance(pad_width, dict):
        pairs = [(0, 0)] * rank
        for axis, widths in pad_width.items():
            at = one_axis(axis, rank)
            pairs[at] = (widths, widths) if isinstance(widths, int) else tuple(widths)
        pad_width = pairs
    table = np.broadcast_to(np.asarray(pad_width), (rank, 2))
    return [int(n) for n in table[:, 0]], [int(n) for n in table[:, 1]]
