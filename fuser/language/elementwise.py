"""Functions of single elements: exp, sqrt, maximum, clamp, fma..."""

from __future__ import annotations

import enum
from typing import Any

from fuser.language import shapes
from fuser.language.arithmetic import (
    arithmetic,
    as_tensor,
    binary,
    cast,
    is_number,
    mapped,
    operands,
)
from fuser.language.emitter import Emitter, is_nonnegative
from fuser.language.tensors import Tensor
from fuser.language.types import float32, float64
from fuser.language.wholes import is_whole


class PropagateNan(enum.Enum):
    """Whether maximum, minimum and clamp give NaN where an operand is: ALL, or a number: NONE."""

    NONE = 0
    ALL = 0xFFFF


FLOAT_MAPS = (
    "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "sqrt", "rsqrt", "erf", "floor", "ceil", "exp2", "log2",
)  # fmt: skip


def float_map(e: Emitter, fn: str, x: Any) -> Tensor:
    """A function of floats, computed in float32 or float64."""
    value = as_tensor(e, x)
    if not value.dtype.is_floating():
        e.fail(f"{fn} of {value.type}", "cast it to float32 first")
    return mapped(e, fn, value.dtype, value)


def abs_(e: Emitter, x: Any) -> Any:
    if is_number(x):
        return abs(x)
    value = as_tensor(e, x)
    if value.dtype.kind == "uint" or (is_whole(value) and is_nonnegative(e.index_of(value))):
        return value
    return mapped(e, "abs", value.dtype, value)


def extreme(e: Emitter, largest: bool, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """maximum and minimum: NaN gives way to the other operand unless it is to be propagated."""
    if is_number(x) and is_number(y):
        return max(x, y) if largest else min(x, y)
    propagate = propagate_nan is PropagateNan.ALL
    a, b = operands(e, x, y)
    if a.dtype.is_bf16():
        a, b = cast(e, a, float32), cast(e, b, float32)
    fn = ("" if propagate else "f") + ("max" if largest else "min")
    return arithmetic(e, fn, a, b)


def clamp(e: Emitter, x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Any:
    """x between min and max; where x is NaN it is min, unless NaN is to be propagated."""
    lower = extreme(e, True, x, min, propagate_nan)
    return extreme(e, False, lower, max, propagate_nan)


def fma(e: Emitter, x: Any, y: Any, z: Any) -> Any:
    """x * y + z; of floats rounded once."""
    a, b = operands(e, x, y)
    both, c = operands(e, a, z)
    if not both.dtype.is_floating():
        return binary(e, "+", binary(e, "*", a, b), c)
    a, b = (shapes.broadcast_to(e, cast(e, item, c.dtype), c.shape) for item in (a, b))
    return mapped(e, "fma", c.dtype, a, b, c)


def div_rn(e: Emitter, x: Any, y: Any) -> Tensor:
    """x / y, rounded to nearest; of float32 through float64, whose quotient rounds to the same."""
    a, b = operands(e, x, y, "/")
    if not a.dtype.is_floating():
        a, b = cast(e, a, float32), cast(e, b, float32)
    if a.dtype.is_fp64():
        return mapped(e, "div", a.dtype, a, b)
    wide = mapped(e, "div", float64, cast(e, a, float64), cast(e, b, float64))
    return cast(e, wide, a.dtype)


def fdiv(e: Emitter, x: Any, y: Any, ieee_rounding: bool = False, approx: bool = False) -> Any:
    """x / y of floats; ieee_rounding: rounded to nearest. approx: of float32 only, where a result
    may be off by 2 units in the last place; `/` is no slower and off by less, so it is taken."""
    if ieee_rounding and approx:
        e.fail("fdiv with ieee_rounding and approx", "give one of them")
    for item in (x, y):
        if isinstance(item, Tensor) and not item.dtype.is_floating():
            e.fail(f"fdiv of {item.type}", "it divides floats; use / or //")
        if approx and isinstance(item, Tensor) and not item.dtype.is_fp32():
            e.fail(f"fdiv of {item.type} with approx", "it is for float32; leave approx out")
    return div_rn(e, x, y) if ieee_rounding else binary(e, "/", x, y)


def sigmoid(e: Emitter, x: Any) -> Any:
    """1 / (1 + exp(-x)), of 16-bit floats in float32: exp(-x) may not fit 16 bits."""
    value = as_tensor(e, x)
    if not value.dtype.is_floating():
        e.fail(f"sigmoid of {value.type}", "cast it to float32 first")
    wide = cast(e, value, float32) if value.dtype.bits < 32 else value
    exponential = float_map(e, "exp", binary(e, "-", 0.0, wide))
    return cast(e, binary(e, "/", 1.0, binary(e, "+", exponential, 1.0)), value.dtype)


def softmax(
    e: Emitter, x: Any, dim: Any = None, keep_dims: bool = False, ieee_rounding: bool = False
) -> Any:
    """exp(x - max) / sum of it, along an axis (the first)."""
    from fuser.language.folds import max_, sum_

    value = as_tensor(e, x)
    axis = 0 if dim is None else int(dim)
    centred = binary(e, "-", value, max_(e, value, axis, keep_dims=True))
    exponential = float_map(e, "exp", centred)
    total = sum_(e, exponential, axis, keep_dims=True)
    return binary(e, "/", exponential, total)


def cdiv(e: Emitter, x: Any, y: Any) -> Any:
    """x / y rounded up, of whole numbers that are not negative."""
    return binary(e, "//", binary(e, "+", x, binary(e, "-", y, 1)), y)


def umulhi(e: Emitter, x: Any, y: Any) -> Tensor:
    """The upper half of a product of integers."""
    a, b = operands(e, x, y)
    if not a.dtype.is_int() or a.dtype.bits < 32:
        e.fail(f"umulhi of {a.type}", "it takes integers of 32 or 64 bits")
    from fuser.language.types import uint32, uint64

    unsigned = uint32 if a.dtype.bits == 32 else uint64
    wide = mapped(e, "mul_high", unsigned, bits_as(e, a, unsigned), bits_as(e, b, unsigned))
    return bits_as(e, wide, a.dtype)


def bits_as(e: Emitter, x: Tensor, dtype: Any) -> Tensor:
    """The same bits as another type of as many bits."""
    if x.dtype == dtype:
        return x
    if x.dtype.is_bool() or dtype.is_bool():
        return cast(e, x, dtype)
    if x.dtype.bits != dtype.bits:
        e.fail(
            f"a bit cast of {x.type} to {dtype}", f"both must have {x.dtype.bits} bits an element"
        )
    return e.tensor(e.builder.bitcast(e.value_of(x), dtype.ir), dtype)
