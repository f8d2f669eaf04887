"""Quantised ONNX operators: real arithmetic between a DequantizeLinear and a QuantizeLinear.

Scales and zero points are scalars, vectors along an axis, or one a block of an axis.
"""

from __future__ import annotations

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.contraction import convolve
from fuser.frontends.onnx.importer.narrow import decode, encode
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.frontends.onnx.importer.types import narrow_dtype, onnx_dtype
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import Value


def spread(b: Builder, node: OnnxNode, factor: Value, like: Value) -> Value:
    """A scale or zero point stretched to the shape of `like`."""
    shape, rank = like.type.shape, like.type.rank
    if factor.type.rank == 0 or factor.type.shape == (1,):
        return b.broadcast_to(b.reshape(factor, ()), shape)
    axis = node.axis(node.attr("axis", 1), rank)
    block = node.attr("block_size", 0)
    if factor.type.rank == 1 and not block:
        return b.broadcast(factor, shape, (axis,))
    if factor.type.rank != rank:
        raise InvalidModelError(f"the scale {factor.type} does not fit {like.type}",
                                where=node.where)  # fmt: skip
    blocks, size = as_int(factor.type.shape[axis]), as_int(shape[axis])
    block = block or -(-size // blocks)
    wide = (*factor.type.shape[: axis + 1], block, *factor.type.shape[axis + 1 :])
    kept = [i for i in range(rank + 1) if i != axis + 1]
    repeated = b.broadcast(factor, wide, kept)
    merged = (*shape[:axis], blocks * block, *shape[axis + 1 :])
    return b.slice_axis(b.reshape(repeated, merged), axis, 0, size)


def quantize(b: Builder, x: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    """saturate(round(x / scale) + zero), all of the shape of x."""
    level = b.emit("round", b.map("div", x, scale))
    if zero is not None:
        level = b.map("add", level, b.cast(zero, level.dtype))
    return saturate(b, level, dtype)


def saturate(b: Builder, x: Value, dtype: DType) -> Value:
    """A float kept within the range of an integer dtype, and cast."""
    return b.cast(b.map("min", b.map("max", x, dtype.lowest), dtype.highest), dtype)


def dequantize(b: Builder, x: Value, scale: Value, zero: Value | None) -> Value:
    """(x - zero) * scale in float32, all of the shape of x."""
    centred = centre(b, x, zero, dtypes.f32)
    return b.map("mul", centred, b.cast(scale, dtypes.f32))


def centre(b: Builder, x: Value, zero: Value | None, dtype: DType) -> Value:
    """x - zero in a wider dtype."""
    wide = b.cast(x, dtype)
    return wide if zero is None else b.map("sub", wide, b.cast(zero, dtype))


@onnx_op("QuantizeLinear", since=10)
@onnx_op("QuantizeLinear", domain="com.microsoft")
def quantize_linear(b: Builder, node: OnnxNode) -> Value:
    x, scale, zero = node.x, node.operand(1), node.optional(2)
    dtype = dtypes.u8
    if zero is not None:
        dtype = node.narrow(2) or zero.dtype
        if dtype.is_float and dtype not in dtypes.NARROW:
            raise InvalidModelError(f"the zero point is {zero.type}", where=node.where)
    elif node.attr("output_dtype", 0):
        code = node.attrs["output_dtype"]
        dtype = narrow_dtype(code) or onnx_dtype(code, node.where)
    precision = node.attr("precision", 0)
    compute = onnx_dtype(precision, node.where) if precision else scale.dtype
    if not compute.is_float or not x.dtype.is_float:
        compute = dtypes.f32
    wide = b.cast(x, compute)
    factor = b.cast(spread(b, node, scale, x), compute)
    shift = None if zero is None else spread(b, node, _decoded(b, node, 2, zero), x)
    ratio = b.map("div", wide, factor)
    level = b.cast(ratio if dtype.is_float else b.emit("round", ratio), dtypes.f32)
    if shift is not None:
        level = b.map("add", level, b.cast(shift, dtypes.f32))
    if dtype in dtypes.NARROW:
        return node.mark(encode(b, level, dtype, saturate=True), dtype)
    return saturate(b, level, dtype)


def _decoded(b: Builder, node: OnnxNode, index: int, value: Value) -> Value:
    """An operand, or the numbers that its codes stand for."""
    dtype = node.narrow(index)
    return value if dtype is None else decode(b, value, dtype)


@onnx_op("DequantizeLinear", since=10)
@onnx_op("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(b: Builder, node: OnnxNode) -> Value:
    x, scale, zero = node.x, node.operand(1), node.optional(2)
    if zero is not None:
        zero = _decoded(b, node, 2, zero)
    x = _decoded(b, node, 0, x)
    shift = None if zero is None else spread(b, node, zero, x)
    result = dequantize(b, x, spread(b, node, scale, x), shift)
    if node.attr("output_dtype", 0):
        return b.cast(result, onnx_dtype(node.attrs["output_dtype"], node.where))
    return b.cast(result, scale.dtype)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(b: Builder, node: OnnxNode) -> list[Value | None]:
    return list(quantize_by_range(b, node.x))


def quantize_by_range(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x in uint8, with the scale and zero point that its range, widened to hold 0, gives."""
    axes = range(x.type.rank)
    high = b.map("max", b.reduce("reduce_max", x, axes), 0)
    low = b.map("min", b.reduce("reduce_min", x, axes), 0)
    scale = b.map("div", b.map("sub", high, low), 255)
    ratio = b.map("div", b.map("neg", low), scale)
    zero = saturate(b, b.emit("round", ratio), dtypes.u8)
    spread_scale, spread_zero = (b.broadcast_to(v, x.type.shape) for v in (scale, zero))
    return quantize(b, x, spread_scale, spread_zero, dtypes.u8), scale, zero


def _rows(b: Builder, zero: Value | None, like: Value) -> Value | None:
    """The zero point of a left operand: a scalar, or one a row."""
    if zero is None or zero.type.rank == 0 or zero.type.shape == (1,):
        return None if zero is None else b.broadcast_to(b.reshape(zero, ()), like.type.shape)
    if zero.type.rank == 1:
        return b.broadcast(zero, like.type.shape, (like.type.rank - 2,))
    return b.broadcast_to(zero, like.type.shape)


def _columns(b: Builder, zero: Value | None, like: Value) -> Value | None:
    """The zero point of a right operand: a scalar, or one a column."""
    if zero is None:
        return None
    if zero.type.rank == 0 or zero.type.shape == (1,):
        zero = b.reshape(zero, ())
    return b.broadcast_to(zero, like.type.shape)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(b: Builder, node: OnnxNode) -> Value:
    lhs, rhs = node.operand(0), node.operand(1)
    left = centre(b, lhs, _rows(b, node.optional(2), lhs), dtypes.i32)
    right = centre(b, rhs, _columns(b, node.optional(3), rhs), dtypes.i32)
    return b.matmul(left, right)


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(b: Builder, node: OnnxNode) -> Value:
    """The exact integer matmul, scaled once: a float32 one of wide values would round."""
    lhs, lhs_scale, lhs_zero, rhs, rhs_scale, rhs_zero, scale, zero = (
        node.operand(i) for i in range(8)
    )
    left = centre(b, lhs, _rows(b, lhs_zero, lhs), dtypes.i32)
    right = centre(b, rhs, _columns(b, rhs_zero, rhs), dtypes.i32)
    product = b.cast(b.matmul(left, right), dtypes.f32)
    row_scale = b.cast(lhs_scale, dtypes.f32)
    if row_scale.type.rank == 1 and row_scale.type.shape != (1,):
        row_scale = b.unsqueeze(row_scale, [1])
    column_scale = b.cast(rhs_scale, dtypes.f32)
    real = b.map("mul", b.map("mul", product, row_scale), column_scale)
    out_scale, out_zero = (b.broadcast_to(v, real.type.shape) for v in (scale, zero))
    return quantize(b, real, b.cast(out_scale, dtypes.f32), out_zero, zero.dtype)


def _channels(b: Builder, factor: Value | None, axis: int, like: Value) -> Value | None:
    """A scalar, or a vector along `axis`, stretched to like."""
    if factor is None:
        return None
    if factor.type.rank == 0 or factor.type.shape == (1,):
        return b.broadcast_to(b.reshape(factor, ()), like.type.shape)
    return b.broadcast(factor, like.type.shape, (axis,))


@onnx_op("ConvInteger", since=10)
def conv_integer(b: Builder, node: OnnxNode) -> Value:
    x, w = node.operand(0), node.operand(1)
    left = centre(b, x, _channels(b, node.optional(2), 1, x), dtypes.i32)
    right = centre(b, w, _channels(b, node.optional(3), 0, w), dtypes.i32)
    return convolve(b, node, left, right)


@onnx_op("QLinearConv", since=10)
def qlinear_conv(b: Builder, node: OnnxNode) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero = (node.operand(i) for i in range(8))
    bias = node.optional(8)
    left = centre(b, x, _channels(b, x_zero, 1, x), dtypes.i32)
    right = centre(b, w, _channels(b, w_zero, 0, w), dtypes.i32)
    product = convolve(b, node, left, right)
    if bias is not None:
        product = b.map("add", product, b.broadcast(bias, product.type.shape, (1,)))
    wide = b.cast(product, dtypes.f32)
    factor = b.map("mul", b.reshape(x_scale, ()), w_scale)
    real = b.map("mul", wide, _channels(b, factor, 1, wide) or wide)
    out_scale, out_zero = (_channels(b, v, 1, wide) for v in (scale, zero))
    assert out_scale is not None
    return quantize(b, real, out_scale, out_zero, zero.dtype)
