"""Resize and Upsample: axis by axis, as a weighted sum of gathers with fixed indices.

Sizes and scales are known, so where an output element reads and with which weights is constant. An
axis with many taps (antialiasing) is one gather, whose windows are summed.
Source: the operator page of Resize; `test/case/node/resize.py` for what it leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import Value
from fuser.graph.ops.primitive import Array

_MOST_GATHERS = 4


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized. roi: start and end, normalised, for tf_crop_and_resize."""

    axis: int
    size: int
    result: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class _Taps:
    """index and weight [taps, result]: output i is the sum of weight[t, i] * x[index[t, i]].
    outside [result]: the output is the extrapolation value."""

    index: Array
    weight: Array
    outside: Array


@onnx_op("Upsample", since=7)
def upsample(b: Builder, node: OnnxNode) -> Value:
    operand = node.optional(1)
    scales = node.required("scales") if operand is None else b.read_array(operand, "scales")
    return _scaled(b, node, scales)


@onnx_op("Resize", since=10)
def resize_10(b: Builder, node: OnnxNode) -> Value:
    scales = b.read_array(node.operand(1), "scales")
    return _scaled(b, node, scales)


def _scaled(b: Builder, node: OnnxNode, scales: Iterable[float]) -> Value:
    """The node's operand by a scale an axis, in the coordinates of opset 10 and before."""
    axes = [
        _Axis(axis, size, math.floor(size * float(scale)), float(scale))
        for axis, (size, scale) in enumerate(zip(_sizes(node.x), scales, strict=True))
    ]
    return _resize(b, node, axes, "asymmetric", "floor")


@onnx_op("Resize", since=11)
def resize(b: Builder, node: OnnxNode) -> Value:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    nearest = node.attr("nearest_mode", "round_prefer_floor")
    return _resize(b, node, _read_axes(b, node), mode, nearest)


def _sizes(x: Value) -> list[int]:
    return [as_int(dim) for dim in x.type.shape]


def _read_axes(b: Builder, node: OnnxNode) -> list[_Axis]:
    rank = node.x.type.rank
    given = node.attr("axes", None)
    axes = list(range(rank)) if given is None else [node.axis(axis, rank) for axis in given]
    sizes = [_sizes(node.x)[axis] for axis in axes]
    count = len(axes)
    roi = [0.0] * count + [1.0] * count
    if node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        roi = b.read_array(node.operand(1), "the region").astype(float).tolist()
    scales_operand, sizes_operand = node.optional(2), node.optional(3)
    wanted = b.read_ints(sizes_operand, "sizes") if sizes_operand is not None else []
    if wanted:
        scales = [new / old for new, old in zip(wanted, sizes, strict=True)]
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * count
            wanted = [int(scale * size + 0.5) for size in sizes]
    elif scales_operand is not None:
        scales = b.read_array(scales_operand, "scales").astype(float).tolist()
        wanted = [math.floor(s * size) for s, size in zip(scales, sizes, strict=True)]
    else:
        raise InvalidModelError("neither scales nor sizes are given", where=node.where)
    regions = zip(roi[:count], roi[count:], strict=True)
    return [_Axis(*entry) for entry in zip(axes, sizes, wanted, scales, regions, strict=True)]


def _resize(b: Builder, node: OnnxNode, axes: list[_Axis], coordinates: str, nearest: str) -> Value:
    mode = node.attr("mode", "nearest")
    x = node.x
    outside: Value | None = None
    changed = [item for item in axes if item.result != item.size or item.scale != 1 or
               item.roi != (0.0, 1.0)]  # fmt: skip
    taps = {}
    for item in changed:
        origin = _origin(item, coordinates)
        taps[item.axis] = _taps(node, item, origin, mode, nearest)
        if coordinates != "tf_crop_and_resize":
            taps[item.axis].outside[:] = False
    if mode != "nearest" and x.dtype is not dtypes.f64:
        x = b.cast(x, dtypes.f32)
    for axis, found in taps.items():
        x = _apply(b, x, axis, found)
    result = x
    for axis, found in taps.items():
        if found.outside.any():
            mask = b.broadcast(b.constant(found.outside), result.type.shape, (axis,))
            outside = mask if outside is None else b.map("logical_or", outside, mask)
    if outside is not None:
        result = b.map("select", outside, node.attr("extrapolation_value", 0.0), result)
    if node.x.dtype.is_integer and result.dtype.is_float:
        low, high = node.x.dtype.lowest, node.x.dtype.highest
        result = b.map("min", b.map("max", b.emit("round", result), low), high)
    return b.cast(result, node.x.dtype)


def _origin(item: _Axis, mode: str) -> Array:
    """Where in the operand each output element of the axis lies, float64 [result]."""
    check_table("the positions of a resized axis", item.result, arrays=4)
    at = np.arange(item.result, dtype=np.float64)
    length = item.scale * item.size
    match mode:
        case "align_corners":
            return at * 0 if length == 1 else at * (item.size - 1) / (length - 1)
        case "asymmetric":
            return at / item.scale
        case "tf_crop_and_resize":
            start, end = item.roi
            if length == 1:
                return at * 0 + (end - start) * (item.size - 1) / 2 + start * (item.size - 1)
            step = (end - start) * (item.size - 1) / (length - 1)
            return at * step + start * (item.size - 1)
        case "pytorch_half_pixel":
            return at * 0 - 0.5 if length == 1 else (at + 0.5) / item.scale - 0.5
        case "half_pixel":
            return (at + 0.5) / item.scale - 0.5
        case "half_pixel_symmetric":
            offset = item.size / 2 * (1 - item.result / length)
            return offset + (at + 0.5) / item.scale - 0.5
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / item.scale
    raise InvalidModelError(f"coordinate_transformation_mode is {mode!r}")


def _taps(node: OnnxNode, item: _Axis, origin: Array, mode: str, nearest: str) -> _Taps:
    outside = (origin < 0) | (origin > item.size - 1)
    base = np.floor(origin)
    ratio = origin - base
    if mode == "nearest":
        up = {
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
            "floor": np.zeros_like(ratio, bool),
            "ceil": ratio > 0,
        }[nearest]
        index = (base + up)[None]
        weight = np.ones_like(index)
    else:
        kernel: Callable[[Array], Array]
        if mode == "linear":
            kernel, reach = _triangle, 1.0
        else:
            a = node.attr("cubic_coeff_a", -0.75)
            kernel, reach = lambda distance: _cubic(distance, a), 2.0
        scale = min(item.scale, 1.0) if node.attr("antialias", 0) else 1.0
        steps = math.ceil(reach / scale)
        check_table("the weights of a resized axis", 2 * steps, item.result, arrays=6)
        index = base + np.arange(1 - steps, steps + 1)[:, None]
        weight = kernel(scale * (index - origin))
        if node.attr("exclude_outside", 0):
            weight = np.where((index < 0) | (index >= item.size), 0, weight)
            weight = weight / weight.sum(0)
        elif scale != 1.0:
            weight = weight / weight.sum(0)
    return _Taps(np.clip(index, 0, item.size - 1).astype(np.int64), weight, outside)


def _triangle(distance: Array) -> Array:
    return np.asarray(np.maximum(0, 1 - np.abs(distance)))


def _cubic(distance: Array, a: float) -> Array:
    """Keys' cubic convolution kernel."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _apply(b: Builder, x: Value, axis: int, taps: _Taps) -> Value:
    if len(taps.index) > _MOST_GATHERS:
        return _apply_windows(b, x, axis, taps)
    total: Value | None = None
    for index, weight in zip(taps.index, taps.weight, strict=True):
        part = b.emit("gather", x, b.constant(index), axis=axis)
        if not (weight == 1).all():
            factor = b.constant(weight.astype(x.dtype.numpy))
            part = b.map("mul", part, b.broadcast(factor, part.type.shape, (axis,)))
        total = part if total is None else b.map("add", total, part)
    assert total is not None
    return total


def _apply_windows(b: Builder, x: Value, axis: int, taps: _Taps) -> Value:
    """The taps of each output gathered along an axis of their own, weighted and summed. A matmul
    with the matrix of the weights would multiply all other elements by 0, and infinities with them.
    """
    part = b.emit("gather", x, b.constant(taps.index.T), axis=axis)
    factor = b.constant(taps.weight.T.astype(x.dtype.numpy))
    weighted = b.map("mul", part, b.broadcast(factor, part.type.shape, (axis, axis + 1)))
    return b.reduce("reduce_sum", weighted, [axis + 1])
