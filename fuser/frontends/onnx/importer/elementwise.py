"""ONNX operators that are one map primitive, or a few: arithmetic, comparison, casts."""

from __future__ import annotations

import math
from functools import reduce as fold

import numpy as np
from onnx import TensorProto

from fuser import dtypes
from fuser.dtypes import DType
from fuser.frontends.onnx.importer.narrow import decode, encode
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.frontends.onnx.importer.types import narrow_dtype, onnx_dtype
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import TensorType, Value

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "IsNaN": "is_nan", "Log": "log",
    "Neg": "neg", "Not": "logical_not", "Reciprocal": "reciprocal", "Round": "round",
    "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "Equal": "eq", "Greater": "gt",
    "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
}  # fmt: skip


@onnx_op(*_UNARY)
def unary(b: Builder, node: OnnxNode) -> Value:
    return b.emit(_UNARY[node.op_type], node.x)


@onnx_op(*_BINARY)
def binary(b: Builder, node: OnnxNode) -> Value:
    lhs, rhs = node.operand(0), node.operand(1)
    if "axis" in node.attrs and node.attr("broadcast", 0):
        # Before opset 7 an axis said where rhs starts; NumPy rules align it at the end.
        axis = node.axis(node.attrs["axis"], lhs.type.rank)
        trailing = range(rhs.type.rank, lhs.type.rank - axis)
        rhs = b.unsqueeze(rhs, list(trailing))
    return b.map(_BINARY[node.op_type], lhs, rhs)


@onnx_op("Max", "Min", "Sum", "Mean")
def variadic(b: Builder, node: OnnxNode) -> Value:
    values = node.present()
    op = {"Max": "max", "Min": "min"}.get(node.op_type, "add")
    if node.op_type == "Mean":
        total = fold(lambda x, y: b.map(op, x, y), [compose.stash(b, value) for value in values])
        return b.cast(b.map("div", total, len(values)), values[0].dtype)
    return fold(lambda x, y: b.map(op, x, y), values)


@onnx_op("Mod")
def mod(b: Builder, node: OnnxNode) -> Value:
    return b.map("fmod" if node.attr("fmod", 0) else "mod", node.operand(0), node.operand(1))


_POWER_ERROR = {"f64": 2.0**-45, "f32": 2.0**-20}
"""More than the relative error of a power, by the type it is computed in."""


@onnx_op("Pow")
def power(b: Builder, node: OnnxNode) -> Value:
    base, exponent = node.operand(0), node.operand(1)
    if base.dtype is exponent.dtype or base.dtype.is_float:
        return b.map("pow", base, b.cast(exponent, base.dtype))
    wide = exponent.dtype if exponent.dtype.is_float else base.dtype
    result = b.map("pow", b.cast(base, wide), b.cast(exponent, wide))
    if wide.is_float:  # a whole power that is a rounding error short would lose one
        whole = b.emit("round", result)
        apart = b.emit("abs", b.map("sub", result, whole))
        error = b.map("mul", b.emit("abs", whole), _POWER_ERROR[wide.compute.name])
        result = b.map("select", b.map("le", apart, error), whole, result)
    return b.cast(result, base.dtype)


@onnx_op("BitShift")
def bit_shift(b: Builder, node: OnnxNode) -> Value:
    x, amount = node.operand(0), node.operand(1)
    if node.required("direction") == "LEFT":
        return b.map("shift_left", x, amount)
    if x.dtype.kind == "int":
        # A shift by the width or more, or by a negative amount, leaves the sign.
        last = x.dtype.bits - 1
        too_far = b.map("logical_or", b.map("lt", amount, 0), b.map("gt", amount, last))
        amount = b.map("select", too_far, b.full(last, amount.type), amount)
    return b.map("shift_right", x, amount)


@onnx_op("IsInf")
def is_inf(b: Builder, node: OnnxNode) -> Value:
    negative, positive = node.attr("detect_negative", 1), node.attr("detect_positive", 1)
    if negative and positive:
        return b.emit("is_inf", node.x)
    if negative or positive:
        return b.map("eq", node.x, math.inf if positive else -math.inf)
    return b.full(0, b.emit("is_inf", node.x).type)


@onnx_op("Where")
def where(b: Builder, node: OnnxNode) -> Value:
    return b.map("select", node.operand(0), node.operand(1), node.operand(2))


@onnx_op("Identity")
def identity(b: Builder, node: OnnxNode) -> Value:
    return node.x


@onnx_op("Dropout")
def dropout(b: Builder, node: OnnxNode) -> list[Value | None]:
    training = node.optional(2)
    if training is not None and b.read_scalar(training, "training_mode"):
        return _train_dropout(b, node)
    if node.opset < 7 and not node.attr("is_test", 0):
        raise node.unsupported("is_test is off")
    mask = None
    if node.uses_output(1):
        dtype = dtypes.bool_ if node.opset >= 10 else node.x.dtype
        mask = b.cast(b.map("eq", b.full(0, node.x.type), 0), dtype)
    return [node.x, mask]


def _train_dropout(b: Builder, node: OnnxNode) -> list[Value | None]:
    """With a seed the mask is the same in every run, and so a constant."""
    x, operand = node.x, node.optional(1)
    ratio = 0.5 if operand is None else float(b.read_scalar(operand, "ratio"))
    if ratio == 0:
        return [x, b.full(True, TensorType(dtypes.bool_, x.type.shape))]
    if "seed" not in node.attrs:
        raise node.unsupported("training mode without a seed")
    draw = np.random.RandomState(node.attrs["seed"]).uniform(0, 1, x.type.static_shape)
    mask = b.constant(draw >= ratio)
    kept = b.map("select", mask, x, 0)
    return [b.map("div", kept, 1 - ratio), mask]


@onnx_op("Cast")
def cast(b: Builder, node: OnnxNode) -> Value:
    to = node.required("to")
    if isinstance(to, str):  # opset 1 spelled the type as text
        to = TensorProto.DataType.Value(to)
    return convert(b, node, narrow_dtype(to) or onnx_dtype(to, node.where))


def convert(b: Builder, node: OnnxNode, dtype: DType) -> Value:
    """The first operand in another dtype, narrow ones included."""
    x = node.x
    held = node.narrow(0)
    if held is None and dtype not in dtypes.NARROW:
        return b.cast(x, dtype)
    if held is dtype:
        return x
    wide = x if held is None else decode(b, x, held)
    if dtype not in dtypes.NARROW:
        return b.cast(wide, dtype)
    saturate = dtype.is_float and bool(node.attr("saturate", 1))
    return node.mark(encode(b, wide, dtype, saturate), dtype)


@onnx_op("BitCast", since=26)
def bit_cast(b: Builder, node: OnnxNode) -> Value:
    """The same bytes. Between integers of one width that is a cast, which wraps."""
    x, dtype = node.x, onnx_dtype(node.required("to"), node.where)
    if x.dtype.bits != dtype.bits:
        raise node.unsupported(f"{x.dtype} and {dtype} differ in width")
    if x.dtype is dtype:
        return x
    if dtype is dtypes.bool_ or any(d.is_float and d.bits < 32 for d in (x.dtype, dtype)):
        raise node.unsupported(f"from {x.dtype} to {dtype}")
    whole = {4: dtypes.i32, 8: dtypes.i64}.get(dtype.bytes, dtype)
    if x.dtype.is_float:
        x = b.emit("float_bits", x, dtype=whole)
    if dtype.is_float:
        return b.emit("bits_float", b.cast(x, whole), dtype=dtype)
    return b.cast(x, dtype)


@onnx_op("CastLike")
def cast_like(b: Builder, node: OnnxNode) -> Value:
    return convert(b, node, node.narrow(1) or node.operand(1).dtype)


@onnx_op("Clip", since=1)
def clip_attributes(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    if "min" in node.attrs:
        x = b.map("max", x, node.attrs["min"])
    if "max" in node.attrs:
        x = b.map("min", x, node.attrs["max"])
    return x


@onnx_op("Clip", since=11)
def clip(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    for op, bound in (("max", node.optional(1)), ("min", node.optional(2))):
        if bound is not None:
            x = b.map(op, x, b.reshape(bound, ()))
    return x
