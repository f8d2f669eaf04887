"""ATen's pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.frontends.torch.importer.registry import aten
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.windows import reduce_windows


def _spread(values: Any, rank: int) -> list[int]:
    given = list(values) if isinstance(values, list | tuple) else [values]
    return given * rank if len(given) == 1 else given


def _overhang(size: int, window: int, step: int, pad: int, spacing: int) -> int:
    """How far the last window of ceil_mode reaches beyond the padded input; one that would start
    in the padding after the input is left out."""
    reach = (window - 1) * spacing + 1
    count = -(-(size + 2 * pad - reach) // step) + 1
    if (count - 1) * step >= size + pad:
        count -= 1
    return max(0, (count - 1) * step + reach - (size + 2 * pad))


def _max_pool(rank: int) -> Any:
    def handler(
        b: Builder, x: Value, window: Any, strides: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:  # fmt: skip
        sizes = x.shape[-rank:]
        shape, pads, spacing = (_spread(v, rank) for v in (window, padding, dilation))
        steps = _spread(strides, rank) if strides else shape
        extra = [
            _overhang(*each) if ceil_mode else 0
            for each in zip(sizes, shape, steps, pads, spacing, strict=True)
        ]
        ends = [(p, p + e) for p, e in zip(pads, extra, strict=True)]
        result = reduce_windows(b, "max", x, shape, steps, ends, spacing)
        out = result.shape[-rank:]
        return result, _indices_of_maxima(b, x, out, shape, steps, pads, spacing)

    return handler


def _indices_of_maxima(
    b: Builder, x: Value, out: Sequence[int], window: Sequence[int], steps: Sequence[int],
    pads: Sequence[int], spacing: Sequence[int],
) -> Value:  # fmt: skip
    """The linear index in its image of each window's maximum; removed again if nobody reads it.

    Windows are gathered from the flattened image, which an element of -inf at its end stands for
    the padding of.
    """
    rank = len(window)
    sizes = x.shape[-rank:]
    area = int(np.prod(sizes))
    indices = np.zeros((1, 1), np.int64)
    inside = np.ones((1, 1), bool)
    each = zip(sizes, out, window, steps, pads, spacing, strict=True)
    for size, count, width, step, pad, gap in each:
        line = np.arange(count)[:, None] * step - pad + np.arange(width) * gap
        shape = (indices.shape[0] * count, indices.shape[1] * width)
        fits = (line >= 0) & (line < size)
        indices = (indices[:, None, :, None] * size + line[None, :, None, :]).reshape(shape)
        inside = (inside[:, None, :, None] & fits[None, :, None, :]).reshape(shape)
    indices = np.where(inside, indices, area)
    flat = b.reshape(x, (*x.shape[:-rank], area))
    lead = flat.type.rank - 1
    lowest = x.dtype.lowest
    flat = b.pad(flat, [0] * (lead + 1), [0] * lead + [1], lowest)
    best = b.emit(
        "argmax", b.emit("gather", flat, b.constant(indices), axis=lead), axis=lead + 1,
        select_last=False,
    )  # fmt: skip
    row = b.map("mul", b.iota(best.type.shape, lead), indices.shape[1])
    linear = b.map("add", row, best)
    found = b.emit("gather", b.constant(indices.reshape(-1)), linear, axis=0)
    return b.reshape(found, (*x.shape[:-rank], *out))


def _average_pool(rank: int) -> Any:
    def handler(
        b: Builder, x: Value, window: Any, strides: Any = (), padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
    ) -> Value:  # fmt: skip
        sizes = x.shape[-rank:]
        shape, pads = _spread(window, rank), _spread(padding, rank)
        steps = _spread(strides, rank) if strides else shape
        one = [1] * rank
        extra = [
            _overhang(*each) if ceil_mode else 0
            for each in zip(sizes, shape, steps, pads, one, strict=True)
        ]
        ends = [(p, p + e) for p, e in zip(pads, extra, strict=True)]
        wide = compose.stash(b, x)
        total = reduce_windows(b, "sum", wide, shape, steps, ends, one)
        if divisor or (not any(extra) and (count_include_pad or not any(pads))):
            return b.cast(b.map("div", total, divisor or math.prod(shape)), x.dtype)
        ones = np.ones(sizes, wide.dtype.numpy)
        inner = ends
        if count_include_pad:
            ones = np.pad(ones, [(p, p) for p in pads], constant_values=1)
            inner = [(0, e) for e in extra]
        counts = reduce_windows(b, "sum", b.constant(ones), shape, steps, inner, one)
        axes = range(x.type.rank - rank, x.type.rank)
        mean = b.map("div", total, b.broadcast(counts, total.type.shape, axes))
        return b.cast(mean, x.dtype)

    return handler


for _rank in (1, 2, 3):
    aten(f"max_pool{_rank}d_with_indices")(_max_pool(_rank))
    aten(f"avg_pool{_rank}d")(_average_pool(_rank))


def _mix(b: Builder, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """Elements along an axis combined by a matrix [output, input]."""
    weights = b.constant(matrix.astype(x.dtype.numpy))
    mixed = b.dot(x, weights, ((axis,), (1,)))
    order = [*range(axis), x.type.rank - 1, *range(axis, x.type.rank - 1)]
    return b.transpose(mixed, order)


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_average_pool(b: Builder, x: Value, shape: Any) -> Value:
    rank = len(shape)
    lead = x.type.rank - rank
    sizes = x.shape[lead:]
    if all(size == 1 for size in shape):
        return b.mean(x, range(lead, x.type.rank), keep=True)
    if all(n % size == 0 for n, size in zip(sizes, shape, strict=True)):
        window = [n // size for n, size in zip(sizes, shape, strict=True)]
        wide = compose.stash(b, x)
        total = reduce_windows(b, "sum", wide, window, window, [(0, 0)] * rank, [1] * rank)
        return b.cast(b.map("div", total, math.prod(window)), x.dtype)
    for axis, (n, size) in enumerate(zip(sizes, shape, strict=True), lead):
        matrix = np.zeros((size, n))
        for i in range(size):
            low, high = i * n // size, -(-(i + 1) * n // size)
            matrix[i, low:high] = 1 / (high - low)
        x = _mix(b, x, axis, matrix)
    return x


def _output_sizes(x: Value, sizes: Any, scales: Any) -> list[int]:
    spatial = x.shape[2:]
    if sizes is not None:
        return list(sizes)
    return [int(n * s) for n, s in zip(spatial, _spread(scales, len(spatial)), strict=True)]


@aten(
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
)  # fmt: skip
def upsample_nearest(b: Builder, x: Value, sizes: Any, scales: Any = None) -> Value:
    for i, size in enumerate(_output_sizes(x, sizes, scales)):
        axis, n = i + 2, x.shape[i + 2]
        ratio = 1 / scales[i] if scales else n / size
        indices = np.minimum((np.arange(size) * np.float32(ratio)).astype(np.int64), n - 1)
        x = b.emit("gather", x, b.constant(indices), axis=axis)
    return x


def _linear_matrix(size: int, n: int, align_corners: bool, scale: float | None) -> np.ndarray:
    if align_corners:
        position = np.arange(size) * ((n - 1) / (size - 1) if size > 1 else 0.0)
    else:
        ratio = 1 / scale if scale else n / size
        position = np.maximum((np.arange(size) + 0.5) * ratio - 0.5, 0)
    low = np.minimum(np.floor(position).astype(int), n - 1)
    high = np.minimum(low + 1, n - 1)
    share = position - low
    matrix = np.zeros((size, n))
    np.add.at(matrix, (np.arange(size), low), 1 - share)
    np.add.at(matrix, (np.arange(size), high), share)
    return matrix


@aten("upsample_bilinear2d.vec", "upsample_linear1d.vec", "upsample_trilinear3d.vec")
def upsample_linear(
    b: Builder, x: Value, sizes: Any, align_corners: bool, scales: Any = None
) -> Value:
    for i, size in enumerate(_output_sizes(x, sizes, scales)):
        scale = scales[i] if scales else None
        if size == x.shape[i + 2] and (align_corners or scale in (None, 1.0)):
            continue
        x = _mix(b, x, i + 2, _linear_matrix(size, x.shape[i + 2], align_corners, scale))
    return x
