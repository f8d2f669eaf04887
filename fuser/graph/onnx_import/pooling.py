"""ONNX pooling operators on reduce_window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int
from fuser.graph.ir import Value
from fuser.graph.onnx_import.contraction import Padding, spatial_attr, spatial_padding
from fuser.graph.onnx_import.registry import OnnxNode, onnx_op


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

    def emit(self, b: Builder, fn: str, x: Value, leading: int) -> Value:
        """reduce_window over x [leading dims..., spatial...]."""
        full = tuple(
            (low, high + extra)
            for (low, high), extra in zip(self.padding, self.overhang, strict=True)
        )
        return b.emit(
            "reduce_window",
            x,
            fn=fn,
            window=(1,) * leading + self.window,
            strides=(1,) * leading + self.strides,
            padding=((0, 0),) * leading + full,
            dilation=(1,) * leading + self.dilation,
        )


def _read_pool(node: OnnxNode) -> _Pool:
    sizes = node.x.type.shape[2:]
    window = [int(w) for w in node.required("kernel_shape")]
    strides = spatial_attr(node, "strides", len(window))
    dilation = spatial_attr(node, "dilations", len(window))
    padding = spatial_padding(node, sizes, window, strides, dilation)
    overhang = [0] * len(window)
    if node.attr("ceil_mode", 0) and node.attr("auto_pad", "NOTSET") == "NOTSET":
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
def max_pool(b: Builder, node: OnnxNode) -> Value:
    if node.uses_output(1):
        raise node.unsupported("the output Indices")
    return _read_pool(node).emit(b, "max", node.x, 2)


@onnx_op("AveragePool")
def average_pool(b: Builder, node: OnnxNode) -> Value:
    x, pool = node.x, _read_pool(node)
    total = pool.emit(b, "sum", x, 2)
    include = node.attr("count_include_pad", 0)
    if not pool.padded or (include and not any(pool.overhang)):
        return b.map("div", total, int(np.prod(pool.window)))
    return b.map("div", total, _window_counts(b, pool, x, total, bool(include)))


def _window_counts(b: Builder, pool: _Pool, x: Value, total: Value, include: bool) -> Value:
    """How many elements each window averages, stretched to the shape of total."""
    sizes = [as_int(size) for size in x.type.shape[2:]]
    ones = np.ones(sizes, x.dtype.compute.numpy)
    if include:
        ones = np.pad(ones, pool.padding, constant_values=1)
        inner: Padding = ((0, 0),) * len(sizes)
    else:
        inner = pool.padding
    counted = _Pool(pool.window, pool.strides, pool.dilation, inner, pool.overhang)
    counts = b.cast(counted.emit(b, "sum", b.constant(ones), 0), x.dtype)
    return b.broadcast(counts, total.type.shape, range(2, total.type.rank))


@onnx_op("LpPool", since=2)
def lp_pool(b: Builder, node: OnnxNode) -> Value:
    p = node.attr("p", 2)
    powers = b.map("pow", b.map("abs", node.x), p)
    return b.map("pow", _read_pool(node).emit(b, "sum", powers, 2), 1 / p)


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    axes = range(2, x.type.rank)
    if node.op_type == "GlobalAveragePool":
        return b.mean(x, axes, keep=True)
    if node.op_type == "GlobalMaxPool":
        return b.reduce("reduce_max", x, axes, keep=True)
    p = node.attr("p", 2)
    total = b.reduce("reduce_sum", b.map("pow", b.map("abs", x), p), axes, keep=True)
    return b.map("pow", total, 1 / p)
