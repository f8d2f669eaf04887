"""Reductions and scans over axes, and windowed reductions (pooling)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from fuser import dtypes
from fuser.dtypes import from_numpy
from fuser.errors import ShapeError
from fuser.graph.dims import Dim, is_decided
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import Array, Primitive, check_axis, is_half, widen


def _infer_reduce(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    axes: tuple[int, ...] = attrs["axes"]
    for axis in axes:
        check_axis("reduce", axis, types[0].rank)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"reduce: axes {axes} repeat")
    kept = tuple(dim for axis, dim in enumerate(types[0].shape) if axis not in axes)
    return (TensorType(types[0].dtype, kept),)


def _reduce(name: str, function: Callable[..., Array]) -> Primitive:
    def evaluate(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        (x,) = arrays
        dtype = from_numpy(x.dtype)
        wide = widen(x)
        axes = tuple(attrs["axes"])
        with np.errstate(all="ignore"):
            if name == "reduce_max":
                result = function(wide, axis=axes, initial=dtype.lowest)
            elif name == "reduce_min":
                result = function(wide, axis=axes, initial=dtype.highest)
            else:
                result = function(wide, axis=axes, dtype=wide.dtype)
            return (np.asarray(result).astype(x.dtype),)

    return Primitive(name, "reduce", 1, _infer_reduce, evaluate)


def _infer_arg(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_axis("argmax", attrs["axis"], types[0].rank)
    kept = tuple(dim for axis, dim in enumerate(types[0].shape) if axis != attrs["axis"])
    return (TensorType(dtypes.i64, kept),)


def _arg(name: str, function: Callable[..., Array]) -> Primitive:
    def evaluate(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        x, axis = widen(arrays[0]), attrs["axis"]
        if not attrs.get("select_last", False):
            return (np.asarray(function(x, axis=axis), np.int64),)
        last = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        return (np.asarray(last, np.int64),)

    return Primitive(name, "reduce", 1, _infer_arg, evaluate)


_RUNNING: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum}


def _infer_cumsum(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_axis("cumsum", attrs["axis"], types[0].rank)
    if attrs.get("fn", "sum") not in _RUNNING:
        raise ShapeError(f"cumsum: fn is {attrs['fn']!r}, not one of {', '.join(_RUNNING)}")
    if attrs.get("fn") == "max" and attrs.get("exclusive", False):
        raise ShapeError("cumsum: a running maximum is not exclusive")
    return (types[0],)


def _evaluate_cumsum(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    axis = attrs["axis"]
    wide = widen(x)
    if attrs.get("reverse", False):
        wide = np.flip(wide, axis)
    fold = _RUNNING[attrs.get("fn", "sum")]
    total = fold.accumulate(wide, axis=axis, dtype=wide.dtype)
    if fold is np.add:
        total = total + total.dtype.type(0)  # a sum begins with 0: one of nothing but -0 is 0
    if attrs.get("exclusive", False):
        # Shifted, not total - x: that would turn inf into nan.
        total = np.roll(total, 1, axis)
        total[(slice(None),) * axis + (slice(0, 1),)] = fold.identity
    if attrs.get("reverse", False):
        total = np.flip(total, axis)
    return (total.astype(x.dtype),)


def window_extent(size: Dim, window: int, stride: int, low: int, high: int, dilation: int) -> Dim:
    """The number of windows along an axis: floor((size + low + high - reach) / stride) + 1."""
    reach = (window - 1) * dilation + 1
    return (size + (low + high - reach)) // stride + 1


def _infer_window(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    entries = [attrs[key] for key in ("window", "strides", "padding", "dilation")]
    if any(len(entry) != x.rank for entry in entries):
        raise ShapeError(f"reduce_window: every attribute needs {x.rank} entries")
    if attrs["fn"] not in ("sum", "max"):
        raise ShapeError(f"reduce_window: fn is {attrs['fn']!r}, not 'sum' or 'max'")
    shape = []
    for axis, size in enumerate(x.shape):
        low, high = attrs["padding"][axis]
        window, stride = attrs["window"][axis], attrs["strides"][axis]
        extent = window_extent(size, window, stride, low, high, attrs["dilation"][axis])
        if is_decided(extent) and extent < 0:
            raise ShapeError(f"reduce_window: the window of axis {axis} does not fit into {x}")
        shape.append(extent)
    return (TensorType(x.dtype, tuple(shape)),)


def _evaluate_window(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    (out,) = _infer_window([TensorType(from_numpy(x.dtype), x.shape)], attrs)
    maximum = attrs["fn"] == "max"
    identity = out.dtype.lowest if maximum else 0
    padded = np.pad(widen(x), attrs["padding"], constant_values=identity)
    result: Array | None = None
    for offset in product(*map(range, attrs["window"])):
        part = padded[
            tuple(
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, n, s in zip(
                    offset, attrs["dilation"], out.static_shape, attrs["strides"], strict=True
                )
            )
        ]
        if result is None:
            result = part.copy() if maximum else part + part.dtype.type(0)  # sums begin with 0
        elif maximum:
            np.maximum(result, part, out=result)
        else:
            result += part
    assert result is not None
    return (result.astype(x.dtype) if is_half(x) else result,)


PRIMITIVES: tuple[Primitive, ...] = (
    _reduce("reduce_sum", np.sum),
    _reduce("reduce_max", np.max),
    _reduce("reduce_min", np.min),
    _reduce("reduce_prod", np.prod),
    _arg("argmax", np.argmax),
    _arg("argmin", np.argmin),
    Primitive("cumsum", "other", 1, _infer_cumsum, _evaluate_cumsum),
    Primitive("reduce_window", "reduce", 1, _infer_window, _evaluate_window),
)
