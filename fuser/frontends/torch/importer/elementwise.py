"""ATen's elementwise operators."""

from __future__ import annotations

import math
from typing import Any

from fuser import dtypes
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import (
    ATEN,
    Handler,
    as_operands,
    as_values,
    aten,
    dtype_of,
    in_opmath,
    keeps_digits,
    promote,
    to_float,
)
from fuser.graph import compose, numeric
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.rounding import as_stored


def _binary(op: str, boolean: str = "") -> Handler:
    def handler(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
        dtype = promote(x, y)
        left, right = as_operands(b, (x, y), dtype)
        if dtype is dtypes.bool_:
            if not alpha:
                right = b.scalar(False, dtype)
        elif alpha != 1:
            right = b.map("mul", right, alpha) if isinstance(right, Value) else right * alpha
        return b.map(boolean if boolean and dtype is dtypes.bool_ else op, left, right)

    return handler


def _scaled(op: str, boolean: str = "") -> Handler:
    """A product or quotient. A number beside 16-bit floats, or a wider tensor without axes, keeps
    its digits there: PyTorch computes in float32."""

    def handler(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
        dtype = promote(x, y)
        work = dtype if keeps_digits(dtype, y) else dtype.compute
        left, right = as_operands(b, (x, y), work)
        return b.cast(
            b.map(boolean if boolean and dtype is dtypes.bool_ else op, left, right), dtype
        )

    return handler


def _compare(op: str, boolean: str = "") -> Handler:
    def handler(b: Builder, x: Any, y: Any) -> Value:
        dtype = promote(x, y)
        left, right = as_operands(b, (x, y), dtypes.u8 if dtype is dtypes.bool_ else dtype)
        if isinstance(x, Value) and isinstance(y, Value):
            left, right = as_stored(b, left), as_stored(b, right)
        return b.map(op, left, right)

    return handler


def _real(op: str) -> Handler:
    """A function with real results: integers become the default float first."""

    def handler(b: Builder, x: Value) -> Value:
        return b.map(op, b.cast(x, to_float(x.dtype)))

    return handler


def _truth(op: str) -> Handler:
    def handler(b: Builder, *operands: Any) -> Value:
        return b.map(op, *as_values(b, operands, dtypes.bool_))

    return handler


def _rounding(op: str) -> Handler:
    def handler(b: Builder, x: Value) -> Value:
        return b.map(op, x) if x.dtype.is_float else x

    return handler


for _name, _handler in {
    "add": _binary("add", "logical_or"),
    "sub": _binary("sub"),
    "mul": _scaled("mul", "logical_and"),
    "maximum": _binary("max", "logical_or"),
    "minimum": _binary("min", "logical_and"),
    "fmod": _binary("fmod"),
    "bitwise_and": _binary("bitwise_and", "logical_and"),
    "bitwise_or": _binary("bitwise_or", "logical_or"),
    "bitwise_xor": _binary("bitwise_xor", "logical_xor"),
    "bitwise_left_shift": _binary("shift_left"),
    "bitwise_right_shift": _binary("shift_right"),
    "__lshift__": _binary("shift_left"),
    "__rshift__": _binary("shift_right"),
    "logical_and": _truth("logical_and"),
    "logical_or": _truth("logical_or"),
    "logical_xor": _truth("logical_xor"),
    "logical_not": _truth("logical_not"),
    **{name: _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: _real(name) for name in (
        "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    )},
    **{name: _rounding(name) for name in ("floor", "ceil")},
}.items():  # fmt: skip
    ATEN[_name] = _handler


@aten("rsub")
def rsub(b: Builder, x: Value, y: Any, alpha: Any = 1) -> Value:
    return _binary("sub")(b, y, x, alpha)  # type: ignore[no-any-return]


@aten("neg", "negative")
def neg(b: Builder, x: Value) -> Value:
    return b.map("neg", x)


@aten("abs")
def absolute(b: Builder, x: Value) -> Value:
    return x if x.dtype.kind in ("uint", "bool") else b.map("abs", x)


@aten("sign", "sgn")
def sign(b: Builder, x: Value) -> Value:
    if x.dtype is dtypes.bool_:
        return x
    if x.dtype.kind == "uint":
        return b.cast(b.map("ne", x, 0), x.dtype)
    if x.dtype.is_float:  # PyTorch has it 0 for NaN
        x = b.map("select", b.map("is_nan", x), 0, x)
    return b.map("sign", x)


@aten("bitwise_not")
def bitwise_not(b: Builder, x: Value) -> Value:
    return b.map("logical_not" if x.dtype is dtypes.bool_ else "bitwise_not", x)


@aten("round")
def round_(b: Builder, x: Value, decimals: int = 0) -> Value:
    if not x.dtype.is_float:
        return x
    if not decimals:
        return b.map("round", x)
    scale = 10.0 ** abs(decimals)  # exact; its reciprocal is not
    there, back = ("div", "mul") if decimals < 0 else ("mul", "div")
    return b.map(back, b.map("round", b.map(there, x, scale)), scale)


@aten("trunc", "fix")
def trunc(b: Builder, x: Value) -> Value:
    return numeric.trunc(b, x)


@aten("reciprocal")
@in_opmath
def reciprocal(b: Builder, x: Value) -> Value:
    """Rounded at once: PyTorch makes `number / x` of it, whose product is rounded again."""
    return b.map("reciprocal", b.cast(x, to_float(x.dtype)))


@aten("remainder")
def remainder(b: Builder, x: Any, y: Any) -> Value:
    """With the sign of y; where nothing is left, the zero has that of x, as PyTorch has it."""
    left, right = as_values(b, (x, y), promote(x, y))
    if not left.dtype.is_float:
        return b.map("mod", left, right)
    rest = b.map("fmod", left, right)
    apart = b.map("logical_xor", b.map("lt", rest, 0), b.map("lt", right, 0))
    apart = b.map("logical_and", b.map("ne", rest, 0), apart)
    return b.map("select", apart, b.map("add", rest, right), rest)


@aten("div", "true_divide")
def div(b: Builder, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    dtype = promote(x, y)
    if rounding_mode is None:
        dtype = to_float(dtype)
    work = dtype if keeps_digits(dtype, y) else dtype.compute
    if rounding_mode == "floor":
        return b.cast(numeric.floor_divide(b, *as_values(b, (x, y), work)), dtype)
    quotient = b.map("div", *as_operands(b, (x, y), work))
    return b.cast(numeric.trunc(b, quotient) if rounding_mode == "trunc" else quotient, dtype)


@aten("floor_divide")
def floor_divide(b: Builder, x: Any, y: Any) -> Value:
    return div(b, x, y, rounding_mode="floor")


@aten("pow")
def power(b: Builder, x: Any, y: Any) -> Value:
    dtype = promote(x, y)  # PyTorch traces that of booleans as integers
    dtype = dtypes.i64 if dtype is dtypes.bool_ else dtype
    return numeric.power(b, *as_values(b, (x, y), dtype))


@aten("atan2")
def atan2(b: Builder, y: Value, x: Value) -> Value:
    return numeric.arctan2(b, *as_values(b, (y, x), to_float(promote(y, x))))


@aten("expm1")
def expm1(b: Builder, x: Value) -> Value:
    return numeric.expm1(b, b.cast(x, to_float(x.dtype)))


@aten("log1p")
def log1p(b: Builder, x: Value) -> Value:
    return numeric.log1p(b, b.cast(x, to_float(x.dtype)))


@aten("exp2")
def exp2(b: Builder, x: Value) -> Value:
    return b.map("pow", b.scalar(2, to_float(x.dtype)), b.cast(x, to_float(x.dtype)))


@aten("log2")
@in_opmath
def log2(b: Builder, x: Value) -> Value:
    return b.map("mul", b.map("log", b.cast(x, to_float(x.dtype))), 1 / math.log(2))


@aten("log10")
@in_opmath
def log10(b: Builder, x: Value) -> Value:
    return b.map("mul", b.map("log", b.cast(x, to_float(x.dtype))), 1 / math.log(10))


@aten("square")
def square(b: Builder, x: Value) -> Value:
    return b.map("mul", x, x)


@aten("hypot")
def hypot(b: Builder, x: Value, y: Value) -> Value:
    return numeric.hypot(b, *as_values(b, (x, y), to_float(promote(x, y))))


@aten("signbit")
def signbit(b: Builder, x: Value) -> Value:
    return b.cast(
        numeric.is_negative(b, b.cast(x, dtypes.u8) if x.dtype is dtypes.bool_ else x), dtypes.bool_
    )


@aten("copysign")
def copysign(b: Builder, x: Any, y: Any) -> Value:
    return numeric.copysign(b, *as_values(b, (x, y), to_float(promote(x, y))))


def _without_nan(op: str) -> Handler:
    def handler(b: Builder, x: Value, y: Value) -> Value:
        left, right = as_values(b, (x, y), promote(x, y))
        if not left.dtype.is_float:
            return _binary(op, {"max": "logical_or", "min": "logical_and"}[op])(b, left, right)  # type: ignore[no-any-return]
        return numeric.without_nan(b, op, left, right)

    return handler


ATEN["fmax"] = _without_nan("max")
ATEN["fmin"] = _without_nan("min")


def _flags(b: Builder, op: str, x: Value) -> Value:
    if x.dtype.is_float:
        return b.map(op, x)
    return b.full(False, b.cast(x, dtypes.bool_).type)


@aten("isnan")
def isnan(b: Builder, x: Value) -> Value:
    return _flags(b, "is_nan", x)


@aten("isinf")
def isinf(b: Builder, x: Value) -> Value:
    return _flags(b, "is_inf", x)


@aten("isfinite")
def isfinite(b: Builder, x: Value) -> Value:
    odd = b.map("logical_or", _flags(b, "is_nan", x), _flags(b, "is_inf", x))
    return b.map("logical_not", odd)


@aten("where")
def where(b: Builder, condition: Value, x: Any = None, y: Any = None) -> Value:
    if x is None:
        raise UnsupportedError("the shape of where(condition) depends on data")
    return b.map("select", b.cast(condition, dtypes.bool_), *as_values(b, (x, y), promote(x, y)))


@aten("masked_fill")
def masked_fill(b: Builder, x: Value, mask: Value, value: Any) -> Value:
    (fill,) = as_values(b, (value,), x.dtype)
    return b.map("select", mask, fill, x)


@aten("clamp", "clip")
def clamp(b: Builder, x: Value, min: Any = None, max: Any = None) -> Value:
    dtype = promote(*(operand for operand in (x, min, max) if operand is not None))
    x = b.cast(x, dtype)
    if min is not None:
        x = b.map("max", x, *as_values(b, (min,), dtype))
    return x if max is None else b.map("min", x, *as_values(b, (max,), dtype))


@aten("clamp_min")
def clamp_min(b: Builder, x: Value, min: Any) -> Value:
    return clamp(b, x, min)


@aten("clamp_max")
def clamp_max(b: Builder, x: Value, max: Any) -> Value:
    return clamp(b, x, None, max)


@aten("_to_copy", "to.dtype", "_to_copy.default")
def to_copy(b: Builder, x: Value, dtype: Any = None, *_: Any, **__: Any) -> Value:
    return x if dtype is None else b.cast(x, dtype_of(dtype))


@aten("convert_element_type")
def convert_element_type(b: Builder, x: Value, dtype: Any) -> Value:
    return b.cast(x, dtype_of(dtype))


@aten("lerp")
@in_opmath
def lerp(b: Builder, x: Value, y: Value, weight: Any) -> Value:
    """From the nearer end, so that a weight of 1 is y."""
    gap = b.map("sub", y, x)
    if not isinstance(weight, Value):
        if abs(weight) < 0.5:
            return b.map("add", x, b.map("mul", gap, weight))
        return b.map("sub", y, b.map("mul", gap, 1 - weight))
    near = b.map("add", x, b.map("mul", gap, weight))
    far = b.map("sub", y, b.map("mul", gap, b.map("sub", b.scalar(1, weight.dtype), weight)))
    return b.map("select", b.map("lt", b.map("abs", weight), 0.5), near, far)


@aten("addcmul")
@in_opmath
def addcmul(b: Builder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    product = b.map("mul", y, z)
    return b.map("add", x, product if value == 1 else b.map("mul", product, value))


@aten("addcdiv")
@in_opmath
def addcdiv(b: Builder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    quotient = b.map("div", y, z)
    return b.map("add", x, quotient if value == 1 else b.map("mul", quotient, value))


# activations ------------------------------------------------------------------------------------


@aten("relu")
def relu(b: Builder, x: Value) -> Value:
    return b.map("max", x, 0)


@aten("sigmoid")
def sigmoid(b: Builder, x: Value) -> Value:
    return compose.sigmoid(b, b.cast(x, to_float(x.dtype)))


@aten("silu")
def silu(b: Builder, x: Value) -> Value:
    return b.map("mul", x, compose.sigmoid(b, x))


@aten("gelu")
@in_opmath
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    return compose.gelu_tanh(b, x) if approximate == "tanh" else compose.gelu(b, x)


@aten("elu")
@in_opmath
def elu(b: Builder, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    inner = x if input_scale == 1 else b.map("mul", x, input_scale)
    below = compose.exp_minus_one(b, inner)
    below = below if alpha == 1 else b.map("mul", below, alpha)
    result = b.map("select", b.map("gt", x, 0), x, below)
    return result if scale == 1 else b.map("mul", result, scale)


@aten("leaky_relu")
@in_opmath
def leaky_relu(b: Builder, x: Value, negative_slope: Any = 0.01) -> Value:
    return b.map("select", b.map("gt", x, 0), x, b.map("mul", x, negative_slope))


@aten("prelu", "_prelu_kernel")
def prelu(b: Builder, x: Value, weight: Value) -> Value:
    if weight.type.rank == 1 and x.type.rank > 1 and weight.type.size > 1:
        weight = b.broadcast(weight, x.type.shape, (1,))
    return b.map("select", b.map("gt", x, 0), x, b.map("mul", x, weight))


@aten("hardtanh")
def hardtanh(b: Builder, x: Value, low: Any = -1, high: Any = 1) -> Value:
    return b.map("min", b.map("max", x, low), high)


@aten("relu6")
def relu6(b: Builder, x: Value) -> Value:
    return hardtanh(b, x, 0, 6)


@aten("hardsigmoid")
@in_opmath
def hardsigmoid(b: Builder, x: Value) -> Value:
    return b.map("div", hardtanh(b, b.map("add", x, 3), 0, 6), 6)


@aten("hardswish")
@in_opmath
def hardswish(b: Builder, x: Value) -> Value:
    return b.map("mul", x, hardsigmoid(b, x))


@aten("softplus")
@in_opmath
def softplus(b: Builder, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = x if beta == 1 else b.map("mul", x, beta)
    soft = compose.softplus(b, scaled)
    soft = soft if beta == 1 else b.map("div", soft, beta)
    return b.map("select", b.map("gt", scaled, threshold), x, soft)


@aten("mish")
@in_opmath
def mish(b: Builder, x: Value) -> Value:
    return b.map("mul", x, b.map("tanh", compose.softplus(b, x)))


@aten("log_sigmoid_forward")
def log_sigmoid(b: Builder, x: Value) -> tuple[Value, Value]:
    return b.map("neg", compose.softplus(b, b.map("neg", x))), x


@aten("threshold")
@in_opmath
def threshold(b: Builder, x: Value, limit: Any, value: Any) -> Value:
    return b.map("select", b.map("gt", x, limit), x, b.scalar(value, x.dtype))


@aten("threshold_backward")
def threshold_backward(b: Builder, gradient: Value, x: Value, limit: Any) -> Value:
    return b.map("select", b.map("gt", x, limit), gradient, b.scalar(0, gradient.dtype))
