"""ATen's adaptive pooling and interpolation, axis by axis.

An output reads the few elements of its own window, gathered by constant indices: a matmul with a
matrix of weights would multiply all others by zero, which is not zero for infinities and NaN.
16-bit floats are summed in float32 over all axes and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.frontends.torch.importer.convolution import spread
from fuser.frontends.torch.importer.registry import ATEN, Handler, aten, in_opmath
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import TensorType, Value
from fuser.graph.linear_index import linear_index_along
from fuser.graph.windows import reduce_windows

Bounds = tuple[np.ndarray, np.ndarray]
"""Where windows along an axis begin and end, int64."""


def _adaptive(n: int, size: int) -> Bounds:
    """`size` windows over n elements, which overlap where it is no divisor."""
    check_table("the ends of resampled windows", size, arrays=3)
    i = np.arange(size)
    return i * n // size, -(-(i + 1) * n // size)


def _readers(bounds: Bounds, n: int) -> Bounds:
    """For each of n elements the windows that hold it: they are neighbours."""
    begin, end = bounds
    check_table("the readers of resampled elements", n, arrays=3)
    at = np.arange(n)
    return np.searchsorted(end, at, "right"), np.searchsorted(begin, at, "right")


def _windows(b: Builder, x: Value, axis: int, bounds: Bounds, fill: float | None) -> Value:
    """The elements of windows, whose places become an axis after `axis`. Shorter ones end in
    `fill`, or with their last element again."""
    begin, end = bounds
    width = int((end - begin).max(initial=0))
    check_table("the places in resampled windows", len(begin), width, arrays=4)
    places = begin[:, None] + np.arange(width)
    inside = places < end[:, None]
    index = np.minimum(places, np.maximum(end - 1, 0)[:, None])
    found = b.emit("gather", x, b.constant(index), axis=axis)
    if fill is None or inside.all():
        return found
    mask = b.broadcast(b.constant(inside), found.type.shape, (axis, axis + 1))
    return b.map("select", mask, found, fill)


def _sums(b: Builder, x: Value, axis: int, bounds: Bounds) -> Value:
    return b.reduce("reduce_sum", _windows(b, x, axis, bounds, 0), [axis + 1])


def _divided(b: Builder, x: Value, axis: int, counts: np.ndarray) -> Value:
    divisor = b.constant(counts.astype(x.dtype.numpy))
    return b.map("div", x, b.broadcast(divisor, x.type.shape, (axis,)))


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_average_pool(b: Builder, x: Value, shape: Any) -> Value:
    rank = len(shape)
    lead = x.type.rank - rank
    sizes = x.shape[lead:]
    if all(size == 1 for size in shape):
        return b.mean(x, range(lead, x.type.rank), keep=True)
    wide = compose.stash(b, x)
    if all(n % size == 0 for n, size in zip(sizes, shape, strict=True)):
        window = [n // size for n, size in zip(sizes, shape, strict=True)]
        total = reduce_windows(b, "sum", wide, window, window, [(0, 0)] * rank, [1] * rank)
        return b.cast(b.map("div", total, math.prod(window)), x.dtype)
    for axis, (n, size) in enumerate(zip(sizes, shape, strict=True), lead):
        wide = _sums(b, wide, axis, _adaptive(n, size))
    for axis, (n, size) in enumerate(zip(sizes, shape, strict=True), lead):
        begin, end = _adaptive(n, size)
        wide = _divided(b, wide, axis, end - begin)
    return b.cast(wide, x.dtype)


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_average_pool_backward(b: Builder, grad: Value, x: Value) -> Value:
    found = compose.stash(b, grad)
    changed = [
        (axis, n, _adaptive(n, size))
        for axis, (n, size) in enumerate(zip(x.shape, grad.shape, strict=True))
        if n != size
    ]
    for axis, _, (begin, end) in changed:
        found = _divided(b, found, axis, end - begin)
    for axis, n, bounds in changed:
        found = _sums(b, found, axis, _readers(bounds, n))
    return b.cast(found, x.dtype)


@aten("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, x: Value, shape: Any) -> tuple[Value, Value]:
    """The greatest element of each window, and its place in the flattened image: that of the first
    one, or of the last NaN."""
    rank = len(shape)
    lead = x.type.rank - rank
    sizes = x.shape[lead:]
    best = x
    for axis, (n, size) in enumerate(zip(sizes, shape, strict=True), lead):
        window = _windows(b, best, axis, _adaptive(n, size), None)
        best = b.reduce("reduce_max", window, [axis + 1])
    return best, _places_of_maxima(b, x, lead, shape)


def _places_of_maxima(b: Builder, x: Value, lead: int, shape: Any) -> Value:
    """Windows are gathered from the flattened image with their elements as the last axis."""
    sizes = x.shape[lead:]
    check_table("the places in resampled windows", *sizes, *shape, arrays=2)
    places = np.zeros((1, 1), np.int64)
    for n, size in zip(sizes, shape, strict=True):
        begin, end = _adaptive(n, size)
        width = int((end - begin).max(initial=0))
        line = np.minimum(begin[:, None] + np.arange(width), end[:, None] - 1)
        joined = places[:, None, :, None] * n + line[None, :, None, :]
        places = joined.reshape(places.shape[0] * size, places.shape[1] * width)
    flat = b.reshape(x, (*x.shape[:lead], math.prod(sizes)))
    window = b.emit("gather", flat, b.constant(places), axis=lead)
    found = b.emit("argmax", window, axis=lead + 1, select_last=False)
    if x.dtype.is_float:
        odd = b.cast(b.map("is_nan", window), dtypes.u8)
        last = b.emit("argmax", odd, axis=lead + 1, select_last=True)
        any_ = b.map("ne", b.reduce("reduce_max", odd, [lead + 1]), 0)
        found = b.map("select", any_, last, found)
    row = b.map("mul", b.iota(found.type.shape, lead), places.shape[1])
    linear = b.emit("gather", b.constant(places.reshape(-1)), b.map("add", row, found), axis=0)
    return b.reshape(linear, (*x.shape[:lead], *shape))


def _max_pool_backward(rank: int) -> Handler:
    def handler(b: Builder, grad: Value, x: Value, places: Value) -> Value:
        """Sums over the windows that have their maximum at an element."""
        lead = x.shape[: x.type.rank - rank]
        area, count = math.prod(x.shape[-rank:]), math.prod(grad.shape[-rank:])
        wide = compose.stash(b, b.reshape(grad, (*lead, count)))
        index = b.reshape(places, (*lead, count))
        linear = linear_index_along(b, index, (*lead, area), len(lead))
        size = math.prod(lead) * area
        total = b.emit(
            "scatter", b.full(0, TensorType(wide.dtype, (size,))),
            b.reshape(linear, (wide.type.size,)), b.reshape(wide, (wide.type.size,)), axis=0,
            reduction="add",
        )  # fmt: skip
        return b.cast(b.reshape(total, x.type.shape), x.dtype)

    return handler


ATEN["adaptive_max_pool2d_backward"] = _max_pool_backward(2)
ATEN["adaptive_max_pool3d_backward"] = _max_pool_backward(3)


def _output_sizes(x: Value, sizes: Any, scales: Any) -> list[int]:
    spatial = x.shape[2:]
    if sizes is not None:
        return list(sizes)
    return [int(n * s) for n, s in zip(spatial, spread(scales, len(spatial)), strict=True)]


@aten(
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
)  # fmt: skip
def upsample_nearest(b: Builder, x: Value, sizes: Any, scales: Any = None) -> Value:
    for i, size in enumerate(_output_sizes(x, sizes, scales)):
        axis, n = i + 2, x.shape[i + 2]
        ratio = 1 / scales[i] if scales else n / size
        check_table("the places of a resized axis", size, arrays=3)
        indices = np.minimum((np.arange(size) * np.float32(ratio)).astype(np.int64), n - 1)
        x = b.emit("gather", x, b.constant(indices), axis=axis)
    return x


def _between(
    b: Builder, x: Value, axis: int, size: int, align_corners: bool, scale: float | None
) -> Value:
    """An axis of `size` elements, each between two neighbours of x by constant shares."""
    n = x.shape[axis]
    check_table("the places of a resized axis", size, arrays=6)
    if align_corners:
        position = np.arange(size) * ((n - 1) / (size - 1) if size > 1 else 0.0)
    else:
        ratio = 1 / scale if scale else n / size
        position = np.maximum((np.arange(size) + 0.5) * ratio - 0.5, 0)
    low = np.minimum(np.floor(position).astype(np.int64), n - 1)
    share = (position - low).astype(x.dtype.numpy)
    total: Value | None = None
    for index, weight in ((low, 1 - share), (np.minimum(low + 1, n - 1), share)):
        part = b.emit("gather", x, b.constant(index), axis=axis)
        part = b.map("mul", part, b.broadcast(b.constant(weight), part.type.shape, (axis,)))
        total = part if total is None else b.map("add", total, part)
    assert total is not None
    return total


@aten("upsample_bilinear2d.vec", "upsample_linear1d.vec", "upsample_trilinear3d.vec")
@in_opmath
def upsample_linear(
    b: Builder, x: Value, sizes: Any, align_corners: bool, scales: Any = None
) -> Value:
    for i, size in enumerate(_output_sizes(x, sizes, scales)):
        scale = scales[i] if scales else None
        if size == x.shape[i + 2] and (align_corners or scale in (None, 1.0)):
            continue
        x = _between(b, x, i + 2, size, align_corners, scale)
    return x
