"""ONNX pooling operators on reduce_window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.contraction import (
    Padding,
    auto_pad,
    spatial_attr,
    spatial_padding,
)
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int, product
from fuser.graph.ir import TensorType, Value
from fuser.graph.windows import reduce_windows


@dataclass(frozen=True)
class _Pool:
    """The windows over the spatial axes. `overhang` is the padding that only ceil_mode adds."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Padding
    overhang: tuple[int, ...]

    @property
    def padded(self) -> bool:
        return any(any(pair) for pair in self.padding) or any(self.overhang)

    def emit(self, b: Builder, fn: str, x: Value) -> Value:
        """The reduction of each window of x [leading dims..., spatial...]."""
        full = tuple(
            (low, high + extra)
            for (low, high), extra in zip(self.padding, self.overhang, strict=True)
        )
        return reduce_windows(b, fn, x, self.window, self.strides, full, self.dilation)


def _read_pool(node: OnnxNode) -> _Pool:
    sizes = node.x.type.shape[2:]
    window = [int(w) for w in node.required("kernel_shape")]
    if any(w < 1 for w in window):
        raise InvalidModelError(f"kernel_shape is {window}", where=node.where)
    strides = spatial_attr(node, "strides", len(window))
    dilation = spatial_attr(node, "dilations", len(window))
    padding = spatial_padding(node, sizes, window, strides, dilation)
    overhang = [0] * len(window)
    if node.attr("ceil_mode", 0) and auto_pad(node) == "NOTSET":
        overhang = _overhang(sizes, window, strides, dilation, padding)
    return _Pool(tuple(window), tuple(strides), tuple(dilation), padding, tuple(overhang))


def _overhang(
    sizes: Sequence[Dim],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Padding,
) -> list[int]:
    """How far the last window of ceil_mode reaches beyond the padded input.

    A last window that would start in the padding after the input is left out, as ONNX says.
    """
    extra = []
    for size, w, stride, d, (low, high) in zip(
        sizes, window, strides, dilation, padding, strict=True
    ):
        fixed, reach = as_int(size), (w - 1) * d + 1
        count = -(-(fixed + low + high - reach) // stride) + 1
        if (count - 1) * stride >= fixed + low:
            count -= 1
        extra.append(max(0, (count - 1) * stride + reach - (fixed + low + high)))
    return extra


@onnx_op("MaxPool")
def max_pool(b: Builder, node: OnnxNode) -> Value | list[Value | None]:
    if node.uses_output(1):
        return list(_max_with_index(b, node, _read_pool(node)))
    return _read_pool(node).emit(b, "max", node.x)


def _max_with_index(b: Builder, node: OnnxNode, pool: _Pool) -> tuple[Value, Value]:
    """The maxima, and where in the flattened operand they are: tap after tap of the window.

    storage_order=1 counts the spatial axes column-major.
    """
    x = node.x
    sizes = [as_int(size) for size in x.type.shape[2:]]
    low = [before for before, _ in pool.padding]
    high = [after + extra for (_, after), extra in zip(pool.padding, pool.overhang, strict=True)]
    fill = x.dtype.lowest
    padded = b.pad(x, [0, 0, *low], [0, 0, *high], fill)
    spans = [as_int(size) for size in padded.type.shape[2:]]
    reach = [(w - 1) * d + 1 for w, d in zip(pool.window, pool.dilation, strict=True)]
    counts = [(s - r) // step + 1 for s, r, step in zip(spans, reach, pool.strides, strict=True)]
    shape = (*x.type.shape[:2], *counts)
    strides = _strides(sizes, column_major=bool(node.attr("storage_order", 0)))
    best = pool.emit(b, "max", x)
    # The first tap that holds the maximum, by its number; then what that tap adds to the index.
    count = int(np.prod(pool.window))
    first = b.full(count - 1, TensorType(dtypes.i64, shape))
    offsets = []
    for number, taps in enumerate(np.ndindex(*pool.window)):
        starts = [tap * d for tap, d in zip(taps, pool.dilation, strict=True)]
        limits = [
            start + (n - 1) * step + 1
            for start, n, step in zip(starts, counts, pool.strides, strict=True)
        ]
        piece = b.slice(
            padded, [0, 0, *starts], [*x.type.shape[:2], *limits], [1, 1, *pool.strides]
        )
        hit = b.map("select", b.map("eq", piece, best), b.full(number, first.type), count - 1)
        first = b.map("min", first, hit)
        offsets.append(sum((s - before) * n for s, before, n in zip(starts, low, strides,
                                                                    strict=True)))  # fmt: skip
    index = b.emit("gather", b.constant(np.asarray(offsets, np.int64)), first, axis=0)
    for axis, (step, stride) in enumerate(zip(pool.strides, strides, strict=True), 2):
        index = b.map("add", index, b.map("mul", b.iota(shape, axis), step * stride))
    volume = int(np.prod(sizes))
    channels = as_int(x.type.shape[1])
    for axis, stride in ((0, channels * volume), (1, volume)):
        index = b.map("add", index, b.map("mul", b.iota(shape, axis), stride))
    return best, index


def _strides(sizes: Sequence[int], column_major: bool) -> list[int]:
    """How many elements lie between neighbours on each axis."""
    order = range(len(sizes)) if column_major else range(len(sizes))[::-1]
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis] = step
        step *= sizes[axis]
    return strides


@onnx_op("MaxUnpool", since=9)
def max_unpool(b: Builder, node: OnnxNode) -> Value:
    """Zeros, with the elements of x where the pooling that made them found them."""
    x, index, given = node.operand(0), node.operand(1), node.optional(2)
    window = node.required("kernel_shape")
    rank = len(window)
    strides = spatial_attr(node, "strides", rank)
    pads = list(node.attr("pads", None) or [0] * (2 * rank))
    sizes = [
        (as_int(size) - 1) * stride + w - low - high
        for size, stride, w, low, high in zip(
            x.type.shape[2:], strides, window, pads[:rank], pads[rank:], strict=True
        )
    ]
    shape = (*x.type.shape[:2], *sizes)
    count = (product(x.type.shape),)
    zeros = b.full(0, TensorType(x.dtype, (product(shape),)))
    flat = b.emit(
        "scatter", zeros, b.reshape(index, count), b.reshape(x, count), axis=0, reduction="none"
    )
    result = b.reshape(flat, shape)
    if given is None:
        return result
    wanted = b.read_ints(given, "the output shape")
    high = [want - as_int(size) for want, size in zip(wanted, shape, strict=True)]
    return b.pad(result, [0] * len(wanted), high)


@onnx_op("AveragePool")
def average_pool(b: Builder, node: OnnxNode) -> Value:
    return average(b, node)


def average(b: Builder, node: OnnxNode) -> Value:
    """The mean of each window that the attributes of the node describe."""
    x, pool = compose.stash(b, node.x), _read_pool(node)
    total = pool.emit(b, "sum", x)
    include = node.attr("count_include_pad", 0)
    if not pool.padded or (include and not any(pool.overhang)):
        return b.cast(b.map("div", total, math.prod(pool.window)), node.x.dtype)
    counts = _window_counts(b, pool, x, total, bool(include))
    return b.cast(b.map("div", total, counts), node.x.dtype)


def _window_counts(b: Builder, pool: _Pool, x: Value, total: Value, include: bool) -> Value:
    """How many elements each window averages, stretched to the shape of total."""
    sizes = [as_int(size) for size in x.type.shape[2:]]
    # Numbers as well, now that the sizes are.
    inner: Padding = tuple((int(low), int(high)) for low, high in pool.padding)
    padded = [size + low + high for size, (low, high) in zip(sizes, inner, strict=True)]
    check_table("the sizes of pooled windows", *padded, arrays=4)
    ones = np.ones(sizes, x.dtype.numpy)
    if include:
        ones = np.pad(ones, inner, constant_values=1)
        inner = ((0, 0),) * len(sizes)
    overhang = tuple(int(extra) for extra in pool.overhang)
    counted = _Pool(pool.window, pool.strides, pool.dilation, inner, overhang)
    counts = counted.emit(b, "sum", b.constant(ones))
    return b.broadcast(counts, total.type.shape, range(2, total.type.rank))


@onnx_op("LpPool", since=2)
def lp_pool(b: Builder, node: OnnxNode) -> Value:
    p = node.attr("p", 2)
    powers = b.map("pow", b.map("abs", compose.stash(b, node.x)), p)
    root = b.map("pow", _read_pool(node).emit(b, "sum", powers), 1 / p)
    return b.cast(root, node.x.dtype)


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    axes = range(2, x.type.rank)
    if node.op_type == "GlobalAveragePool":
        return b.mean(x, axes, keep=True)
    if node.op_type == "GlobalMaxPool":
        return b.reduce("reduce_max", x, axes, keep=True)
    p = node.attr("p", 2)
    powers = b.map("pow", b.map("abs", compose.stash(b, x)), p)
    root = b.map("pow", b.reduce("reduce_sum", powers, axes, keep=True), 1 / p)
    return b.cast(root, x.dtype)
