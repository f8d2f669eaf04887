"""Elementary functions that are no primitives, as compositions of them."""

from __future__ import annotations

import math

import numpy as np

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


def floor_divide(b: Builder, x: Value, y: Value) -> Value:
    """Rounded down; of integers by 0 it is 0. Of floats, the quotient that belongs to the
    remainder, as NumPy has it."""
    if not x.dtype.is_float:
        quotient = b.map("div", x, y)
        if x.dtype.kind == "uint":
            return quotient
        rest = b.map("sub", x, b.map("mul", quotient, y))
        if y.constant is None or not np.all(y.constant):
            rest = b.map("select", b.map("eq", y, 0), 0, rest)
        apart = b.map("logical_xor", b.map("lt", rest, 0), b.map("lt", y, 0))
        below = b.map("logical_and", b.map("ne", rest, 0), apart)
        return b.map("sub", quotient, b.cast(below, x.dtype))
    # As C's fmod has it, with a quotient of one less where the remainder takes the divisor's sign.
    rest = b.map("fmod", x, y)
    exact = b.map("div", b.map("sub", x, rest), y)
    apart = b.map("logical_xor", b.map("lt", rest, 0), b.map("lt", y, 0))
    below = b.map("logical_and", b.map("ne", rest, 0), apart)
    exact = b.map("sub", exact, b.cast(below, x.dtype))
    floor = b.map("floor", exact)
    up = b.map("gt", b.map("sub", exact, floor), 0.5)
    whole = b.map("add", floor, b.cast(up, x.dtype))
    quotient = b.map("div", x, y)
    signed = b.map("select", b.map("eq", exact, 0), b.map("mul", quotient, 0), whole)
    return b.map("select", b.map("eq", y, 0), quotient, signed)


def power(b: Builder, x: Value, y: Value) -> Value:
    """Small constant exponents are products, and a root: what people write them for."""
    exponent = y.constant.item() if y.constant is not None and y.constant.size == 1 else None
    if exponent == 1:
        return x
    if exponent == 2:
        return b.map("mul", x, x)
    if exponent == 3:
        return b.map("mul", b.map("mul", x, x), x)
    if exponent == 0.5 and x.dtype.is_float:
        return b.map("sqrt", x)
    return b.map("pow", x, y)


def trunc(b: Builder, x: Value) -> Value:
    if not x.dtype.is_float:
        return x
    return b.map("select", b.map("lt", x, 0), b.map("ceil", x), b.map("floor", x))


def expm1(b: Builder, x: Value) -> Value:
    """exp(x) - 1 without cancellation: (u - 1) * x / log(u), u = exp(x) (Kahan's device)."""
    u = b.map("exp", x)
    y = b.map("sub", u, 1)
    fine = b.map("div", b.map("mul", y, x), b.map("log", u))
    far = b.map("logical_or", b.map("gt", x, 20), b.map("lt", x, -20))
    result = b.map("select", far, y, fine)
    return b.map("select", b.map("eq", u, 1), x, result)


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x) without cancellation: log(u) * x / (u - 1), u = 1 + x (Kahan's device)."""
    u = b.map("add", x, 1)
    log = b.map("log", u)
    fine = b.map("div", b.map("mul", log, x), b.map("sub", u, 1))
    result = b.map("select", b.map("gt", x, 1e4), log, fine)
    return b.map("select", b.map("eq", u, 1), x, result)


def arctan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of (x, y), of magnitudes first; zeros count as what their sign says."""
    size, width = b.map("abs", y), b.map("abs", x)
    both = b.map("logical_and", b.map("is_inf", y), b.map("is_inf", x))
    still = b.map("logical_and", b.map("eq", y, 0), b.map("eq", x, 0))
    ratio = b.map("select", both, 1, b.map("div", size, width))
    angle = b.map("atan", b.map("select", still, 0, ratio))
    turned = b.map("sub", b.scalar(math.pi, y.dtype), angle)
    angle = b.map("select", is_negative(b, x), turned, angle)
    return b.map("select", is_negative(b, y), b.map("neg", angle), angle)


def is_negative(b: Builder, x: Value) -> Value:
    """Whether the sign is set, that of a zero and of NaN too."""
    if not x.dtype.is_float:
        return b.map("lt", x, 0)
    wide = b.cast(x, x.dtype.compute)
    whole = dtypes.i64 if wide.dtype is dtypes.f64 else dtypes.i32
    return b.map("lt", b.emit("float_bits", wide, dtype=whole), 0)


def copysign(b: Builder, x: Value, y: Value) -> Value:
    """The magnitude of x with the sign of y, that of a zero and of NaN too."""
    size = b.map("abs", x)
    return b.map("select", is_negative(b, y), b.map("neg", size), size)


def without_nan(b: Builder, op: str, x: Value, y: Value) -> Value:
    """max or min of floats; NaN where both are."""
    plain = b.map("select", b.map("is_nan", y), x, b.map(op, x, y))
    return b.map("select", b.map("is_nan", x), y, plain)


def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) without overflow."""
    gap = b.map("neg", b.map("abs", b.map("sub", x, y)))
    same = b.map("eq", x, y)  # covers infinities, whose difference is nan
    tail = b.map("select", same, math.log(2), log1p(b, b.map("exp", gap)))
    return b.map("add", b.map("max", x, y), tail)


def hypot(b: Builder, x: Value, y: Value) -> Value:
    """sqrt(x^2 + y^2) of floats over the whole range of their dtype. An infinity wins over NaN.

    The squares of the narrower floats are those of float64, which neither over- nor underflow;
    float64 is computed in parts of the greater magnitude.
    """
    size, width = (b.map("abs", b.cast(side, side.dtype.compute)) for side in (x, y))
    if x.dtype is dtypes.f64:
        most, least = b.map("max", size, width), b.map("min", size, width)
        usual = b.map("logical_and", b.map("gt", most, 0), b.map("lt", most, math.inf))
        ratio = b.map("div", least, b.map("select", usual, most, 1))
        root = b.map("sqrt", b.map("add", b.map("mul", ratio, ratio), 1))
        found = b.map("select", usual, b.map("mul", most, root), most)
    else:
        long, wide = b.cast(size, dtypes.f64), b.cast(width, dtypes.f64)
        squares = b.map("add", b.map("mul", long, long), b.map("mul", wide, wide))
        found = b.map("sqrt", squares)
    endless = b.map("logical_or", b.map("is_inf", size), b.map("is_inf", width))
    return b.cast(b.map("select", endless, math.inf, found), x.dtype)
