"""com.microsoft: quantised operators, as real arithmetic between scales and zero points."""

from __future__ import annotations

from collections.abc import Callable

from fuser import dtypes
from fuser.dtypes import DType
from fuser.frontends.onnx.importer.contrib import MICROSOFT, add_optional
from fuser.frontends.onnx.importer.pooling import average
from fuser.frontends.onnx.importer.quantization import (
    centre,
    dequantize,
    quantize,
    quantize_by_range,
)
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


def _real(b: Builder, node: OnnxNode, index: int) -> Value:
    """Operands index to index + 2 (codes, scale, zero point of the whole tensor) as float32."""
    x, scale, zero = node.operand(index), node.operand(index + 1), node.optional(index + 2)
    return dequantize(b, x, _over(b, scale, x), None if zero is None else _over(b, zero, x))


def _over(b: Builder, scalar: Value, like: Value) -> Value:
    return b.broadcast_to(b.reshape(scalar, ()), like.type.shape)


def _codes(b: Builder, node: OnnxNode, x: Value, index: int, dtype: DType) -> Value:
    """x in the scale and zero point that are operands index and index + 1."""
    scale, zero = b.cast(node.operand(index), dtypes.f32), node.optional(index + 1)
    shift = None if zero is None else _over(b, zero, x)
    return quantize(b, x, _over(b, scale, x), shift, dtype)


@onnx_op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(b: Builder, node: OnnxNode) -> Value:
    op = "add" if node.op_type == "QLinearAdd" else "mul"
    real = b.map(op, _real(b, node, 0), _real(b, node, 3))
    return _codes(b, node, real, 6, node.x.dtype)


def _qlinear_unary(name: str, function: Callable[[Builder, OnnxNode, Value], Value]) -> None:
    """An operator of codes, scale, zero point, and the scale and zero point of its result."""

    @onnx_op(name, domain=MICROSOFT)
    def handler(b: Builder, node: OnnxNode) -> Value:
        return _codes(b, node, function(b, node, _real(b, node, 0)), 3, node.x.dtype)


def _leaky(b: Builder, node: OnnxNode, x: Value) -> Value:
    slope = node.attr("alpha", 0.01)
    return b.map("select", b.map("lt", x, 0), b.map("mul", x, slope), x)


def _softmax(b: Builder, node: OnnxNode, x: Value) -> Value:
    axis = node.axis(node.attr("axis", -1), x.type.rank)
    axes = [axis] if node.required("opset") >= 13 else range(axis, x.type.rank)
    return compose.softmax(b, x, list(axes))


def _global_average(b: Builder, node: OnnxNode, x: Value) -> Value:
    rank = x.type.rank
    return b.mean(x, range(1, rank - 1) if node.attr("channels_last", 0) else range(2, rank), True)


def _average(b: Builder, node: OnnxNode, x: Value) -> Value:
    if node.attr("channels_last", 0):
        raise node.unsupported("channels_last")
    inner = OnnxNode(node.name, "AveragePool", "", node.opset, [x], node.outputs, node.attrs)
    return average(b, inner)


_qlinear_unary("QLinearSigmoid", lambda b, node, x: compose.sigmoid(b, x))
_qlinear_unary("QLinearLeakyRelu", _leaky)
_qlinear_unary("QLinearSoftmax", _softmax)
_qlinear_unary("QLinearGlobalAveragePool", _global_average)
_qlinear_unary("QLinearAveragePool", _average)


@onnx_op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(b: Builder, node: OnnxNode) -> Value:
    """The result's scale and zero point come first, then codes, scale and zero point of each."""
    parts = [_real(b, node, index) for index in range(2, len(node.inputs), 3)]
    axis = node.axis(node.required("axis"), parts[0].type.rank)
    return _codes(b, node, b.concat(parts, axis), 0, node.operand(2).dtype)


@onnx_op("QLinearWhere", domain=MICROSOFT)
def qlinear_where(b: Builder, node: OnnxNode) -> Value:
    real = b.map("select", node.operand(0), _real(b, node, 1), _real(b, node, 4))
    return _codes(b, node, real, 7, node.operand(1).dtype)


def _columns(b: Builder, factor: Value | None, like: Value) -> Value | None:
    """A scalar or one entry a column, stretched to like [..., columns]."""
    if factor is None:
        return None
    if factor.type.rank == 0 or factor.type.shape == (1,):
        factor = b.reshape(factor, ())
    return b.broadcast_to(factor, like.type.shape)


def _scaled_matmul(
    b: Builder, left: Value, right: Value, left_scale: Value, right_scale: Value
) -> Value:
    """The exact integer matmul of centred codes, scaled once."""
    whole = b.cast(b.matmul(left, right), dtypes.f32)
    scaled = b.map("mul", whole, _over(b, left_scale, whole))
    columns = _columns(b, right_scale, whole)
    assert columns is not None
    return b.map("mul", scaled, columns)


@onnx_op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(b: Builder, node: OnnxNode) -> Value:
    lhs, rhs, lhs_scale, rhs_scale = (node.operand(i) for i in range(4))
    left = centre(b, lhs, _columns(b, node.optional(4), lhs), dtypes.i32)
    right = centre(b, rhs, _columns(b, node.optional(5), rhs), dtypes.i32)
    result, bias = _scaled_matmul(b, left, right, lhs_scale, rhs_scale), node.optional(6)
    return add_optional(b, result, bias)


@onnx_op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(b: Builder, node: OnnxNode) -> Value:
    """A in uint8 by its own range, times B in codes, as floats."""
    lhs, rhs, rhs_scale = (node.operand(i) for i in range(3))
    codes, scale, zero = quantize_by_range(b, lhs)
    left = centre(b, codes, _columns(b, zero, codes), dtypes.i32)
    right = centre(b, rhs, _columns(b, node.optional(3), rhs), dtypes.i32)
    result, bias = _scaled_matmul(b, left, right, scale, rhs_scale), node.optional(4)
    return add_optional(b, result, bias)


@onnx_op("QGemm", domain=MICROSOFT)
def quantized_gemm(b: Builder, node: OnnxNode) -> Value:
    """alpha * op(A) @ op(B) + C, C in int32 of the scale of the matmul; floats or codes."""
    lhs, lhs_scale, lhs_zero, rhs, rhs_scale, rhs_zero = (node.operand(i) for i in range(6))
    bias, scale = node.optional(6), node.optional(7)
    left = centre(b, lhs, _over(b, lhs_zero, lhs), dtypes.i32)
    if node.attr("transA", 0):
        left = b.swap(left, 0, 1)
    transposed = bool(node.attr("transB", 0))
    plain = b.swap(rhs, 0, 1) if transposed else rhs
    right = centre(b, plain, _columns(b, rhs_zero, plain), dtypes.i32)
    whole = b.cast(b.matmul(left, right), dtypes.f32)
    factor = b.map("mul", b.reshape(lhs_scale, ()), rhs_scale)
    columns = _columns(b, factor, whole)
    assert columns is not None
    alpha = node.attr("alpha", 1.0)
    real = b.map("mul", b.map("mul", whole, columns), alpha)
    if bias is not None:
        wide = b.broadcast_to(b.cast(bias, dtypes.f32), whole.type.shape)
        real = b.map("add", real, b.map("mul", wide, columns))
    return real if scale is None else _codes(b, node, real, 7, lhs.dtype)
