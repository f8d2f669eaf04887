"""sin, cos, tan and their inverses as LLVM IR, for doubles; math.py says how accurate they are."""

from __future__ import annotations

import math

from fuser.backend import math_tables as tables
from fuser.backend.function import Function
from fuser.backend.math_steps import (
    add,
    copysign,
    div,
    fma,
    horner,
    magnitude,
    mul,
    odd_series,
    pick,
    sub,
    test,
)
from fuser.backend.text import Reg, integer, like

_PI_2 = (math.pi / 2, 6.123233995736766e-17, -1.4973849048591833e-33)


def _quadrant(f: Function, x: Reg) -> tuple[Reg, Reg]:
    """(q as i64, x - q pi / 2) with q = round(2 x / pi), for doubles."""
    q = f.intrinsic("roundeven", mul(f, x, 2 / math.pi))
    r = x
    for part in _PI_2:
        r = fma(f, q, -part, r)
    type = like(x.type, "i64")
    # Out of range (|x| > 2**60, infinite, NaN) the quadrant does not matter.
    whole = f.op(type, f"fptosi {q.typed} to {type}")
    return f.op(type, f"freeze {whole.typed}"), r


def _sin_cos(f: Function, r: Reg) -> tuple[Reg, Reg]:
    z = mul(f, r, r)
    cosine = fma(f, mul(f, z, z), horner(f, z, tables.COS_F64), fma(f, z, -0.5, 1.0))
    return odd_series(f, r, tables.SIN_F64), cosine


def _bit_set(f: Function, x: Reg, bit: int) -> Reg:
    return f.icmp("ne", f.binary("and", x, integer(bit, x.type)), integer(0, x.type))


def _wave(f: Function, x: Reg, shift: int) -> Reg:
    q, r = _quadrant(f, x)
    q = f.binary("add", q, integer(shift, q.type))
    sine, cosine = _sin_cos(f, r)
    result = f.select(_bit_set(f, q, 1), cosine, sine)
    return f.select(_bit_set(f, q, 2), f.fneg(result), result)


def sin(f: Function, x: Reg) -> Reg:
    return _wave(f, x, 0)


def cos(f: Function, x: Reg) -> Reg:
    return _wave(f, x, 1)


def tan(f: Function, x: Reg) -> Reg:
    q, r = _quadrant(f, x)
    sine, cosine = _sin_cos(f, r)
    odd = _bit_set(f, q, 1)
    top = f.select(odd, f.fneg(cosine), sine)
    return div(f, top, f.select(odd, sine, cosine))


def atan(f: Function, x: Reg) -> Reg:
    size = magnitude(f, x)
    # Fold [0, inf) onto [0, tan(pi / 8)]: 1/x first, then (t - 1) / (t + 1).
    inverted = test(f, "ogt", size, 1.0)
    t = pick(f, inverted, div(f, 1.0, size), size)
    middle = test(f, "ogt", t, math.tan(math.pi / 8))
    folded = pick(f, middle, div(f, add(f, t, -1.0), add(f, t, 1.0)), t)
    result = odd_series(f, folded, tables.ATAN_F64)
    result = pick(f, middle, add(f, result, math.pi / 4), result)
    turned = sub(f, math.pi / 2, add(f, result, -6.123233995736766e-17))
    return copysign(f, pick(f, inverted, turned, result), x)


def _asin_parts(f: Function, x: Reg) -> tuple[Reg, Reg, Reg]:
    """(|x| > 1/2, asin of the folded argument, that argument's sign taken off)."""
    size = magnitude(f, x)
    folded = test(f, "ogt", size, 0.5)
    z = fma(f, size, -0.5, 0.5)
    t = pick(f, folded, f.intrinsic("sqrt", z), size)
    return folded, odd_series(f, t, tables.ASIN_F64), size


def asin(f: Function, x: Reg) -> Reg:
    folded, part, _ = _asin_parts(f, x)
    far = sub(f, math.pi / 2, add(f, add(f, part, part), -6.123233995736766e-17))
    return copysign(f, pick(f, folded, far, part), x)


def acos(f: Function, x: Reg) -> Reg:
    folded, part, _ = _asin_parts(f, x)
    negative = test(f, "olt", x, 0.0)
    twice = add(f, part, part)
    far = pick(f, negative, sub(f, math.pi, add(f, twice, -1.2246467991473532e-16)), twice)
    near = sub(f, math.pi / 2, add(f, copysign(f, part, x), -6.123233995736766e-17))
    return pick(f, folded, far, near)
