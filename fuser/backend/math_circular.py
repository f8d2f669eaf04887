"""sin, cos, tan and their inverses as LLVM IR, for doubles; math.py says how accurate they are."""

from __future__ import annotations

import math
from collections.abc import Callable

from fuser.backend import math_tables as tables
from fuser.backend.function import SELDOM, Function
from fuser.backend.math_huge import quadrant_of_huge
from fuser.backend.math_steps import (
    add,
    bits_of,
    copysign,
    div,
    float_of,
    fma,
    horner,
    is_double,
    magnitude,
    mul,
    odd_series,
    pick,
    sub,
    test,
)
from fuser.backend.text import Reg, integer, lanes, like, mangle, real

_PI_2 = (math.pi / 2, 6.123233995736765e-17, 1.082856673921914e-32)
"""All are positive, so that no product with a quadrant of 0 takes the sign from -0."""
NEAR = 2.0**30
"""The quadrants up to here are products that `_PI_2` takes off exactly enough."""
_ROUND = 1.5 * 2.0**52


def _quadrant(f: Function, x: Reg) -> tuple[Reg, Reg]:
    """(an i64 with q in its low bits, x - q pi / 2) with q = round(2 x / pi), for doubles.

    x: of floats or doubles. Where any element is huge, its reduction is by integers.
    """
    near = like(x.type, "double")
    wide = f.convert("fpext", x, near)
    # Adding 1.5 * 2**52 rounds to a whole number and leaves it in the low bits; -0 gives q = 0,
    # so that the sign of a zero stays in r.
    shifted = fma(f, wide, 2 / math.pi, _ROUND)
    q = sub(f, shifted, real(_ROUND, near))
    r = wide
    for part in _PI_2:
        r = fma(f, q, -part, r)
    whole = bits_of(f, shifted)
    far = test(f, "uge", magnitude(f, x), NEAR)
    some = far if lanes(x.type) == 1 else f.intrinsic("vector.reduce.or", far, type="i1")
    before, slow, done = f.at, f.block("huge"), f.block("huge.end")
    f.cbr(some, slow, done, SELDOM)
    f.enter(slow)
    whole_far, r_far = _with_huge(f, x, whole, r)
    after = f.at
    f.br(done)
    f.enter(done)
    found = f.phi(whole.type, (whole, before), (whole_far, after))
    rest = f.phi(r.type, (r, before), (r_far, after))
    return found.reg, rest.reg


def _with_huge(f: Function, x: Reg, whole: Reg, r: Reg) -> tuple[Reg, Reg]:
    """The quadrants and rests of x with those of huge elements in place of what was found."""

    def choose(f: Function, x: Reg, whole: Reg, r: Reg) -> tuple[Reg, Reg]:
        size = magnitude(f, x)
        # An infinity stays the NaN that it has become.
        finite = test(f, "one", size, math.inf)
        chosen = f.binary("and", test(f, "uge", size, NEAR), finite)
        wide = f.convert("fpext", x, r.type)
        far, rest = quadrant_of_huge(f, wide, 971 if is_double(x) else 75)
        return f.select(chosen, far, whole), f.select(chosen, rest, r)

    if f.module is None:
        return choose(f, x, whole, r)
    # In a function of its own: loops around would keep its many literals in registers.
    pair = f"{{ {whole.type}, {r.type} }}"

    def write(helper: Function) -> None:
        found = choose(helper, *helper.args)
        first = helper.op(pair, f"insertvalue {pair} poison, {found[0].typed}, 0")
        helper.ret(helper.op(pair, f"insertvalue {first.typed}, {found[1].typed}, 1"))

    name = f"huge.{mangle(x.type)}"
    f.module.helper(name, pair, [(x.type, "x"), (whole.type, "whole"), (r.type, "r")], write)
    both = f.op(pair, f"call fastcc {pair} @{name}({x.typed}, {whole.typed}, {r.typed})")
    return (
        f.op(whole.type, f"extractvalue {both.typed}, 0"),
        f.op(r.type, f"extractvalue {both.typed}, 1"),
    )


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
    # The second bit of the quadrant is the sign.
    sign = f.binary("and", f.binary("shl", q, integer(62, q.type)), integer(1 << 63, q.type))
    signed = float_of(f, f.binary("xor", bits_of(f, result), sign), result.type)
    return signed if is_double(x) else f.convert("fptrunc", signed, x.type)


IN_LINE = 16
"""Places in a function with these branches; further ones call a function, as code with very many
branches takes long to compile."""


def _called(name: str, f: Function, x: Reg, write: Callable[[Function, Reg], Reg]) -> Reg:
    """What `write` writes, in line or, after many, in a function of the module."""
    f.seldom += 1
    if f.module is None or f.seldom <= IN_LINE:
        return write(f, x)

    def body(helper: Function) -> None:
        helper.ret(write(helper, helper.args[0]))

    name = f"{name}.{mangle(x.type)}"
    f.module.helper(name, x.type, [(x.type, "x")], body)
    return f.op(x.type, f"call fastcc {x.type} @{name}({x.typed})")


def sin(f: Function, x: Reg) -> Reg:
    """Of floats or doubles, like cos and tan; floats are computed as doubles and rounded once."""
    return _called("sin", f, x, lambda f, x: _wave(f, x, 0))


def cos(f: Function, x: Reg) -> Reg:
    return _called("cos", f, x, lambda f, x: _wave(f, x, 1))


def tan(f: Function, x: Reg) -> Reg:
    return _called("tan", f, x, _tan)


def _tan(f: Function, x: Reg) -> Reg:
    q, r = _quadrant(f, x)
    sine, cosine = _sin_cos(f, r)
    odd = _bit_set(f, q, 1)
    top = f.select(odd, f.fneg(cosine), sine)
    result = div(f, top, f.select(odd, sine, cosine))
    return result if is_double(x) else f.convert("fptrunc", result, x.type)


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
