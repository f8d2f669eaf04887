"""Elementary functions: those of the language by other names, and what a few of them make.

float32 is computed in float64 and rounded once, where more than one step would cost digits, or in
pairs of float32 (pairs.py).
"""

from __future__ import annotations

import math
from typing import Any

from fuser.graph.ops.registry import primitive
from fuser.language import elementwise
from fuser.language.arithmetic import as_tensor
from fuser.language.emitter import Emitter
from fuser.language.libdevice import pairs
from fuser.language.libdevice.bits import bits_of, number, real, with_sign
from fuser.language.libdevice.registry import floats, plain
from fuser.language.tensors import Tensor
from fuser.language.terms import Formula, Term
from fuser.language.types import float32, float64, int32, int64, uint64

INFINITY = float("inf")
NAN = float("nan")
MAPS = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf",
    "floor": "floor", "ceil": "ceil", "rsqrt": "rsqrt", "sqrt": "sqrt", "pow": "pow",
    "fmod": "fmod", "fma": "fma", "fast_sinf": "sin", "fast_cosf": "cos", "fast_tanf": "tan",
    "fast_logf": "log", "fast_log2f": "log2", "fast_expf": "exp", "fast_powf": "pow",
    "fast_tanhf": "tanh",
}  # fmt: skip
"""Primitives of the Tile IR by libdevice's names."""


def _map(name: str, fn: str) -> None:
    arity = primitive(fn).arity

    def call(t: Formula, *args: Term) -> Term:
        if len(args) != arity:
            t.e.fail(f"libdevice.{name} of {len(args)} operands", f"it takes {arity}")
        return t.map(fn, *args)

    call.__doc__ = f"{fn}, as in the language."
    call.__name__ = name
    floats(name, only="fp32" if name.startswith("fast_") else "")(call)


for _name, _fn in MAPS.items():
    _map(_name, _fn)


@plain("abs")
def _abs(e: Emitter, x: Any) -> Any:
    """The absolute value of a float or an integer."""
    return elementwise.abs_(e, as_tensor(e, x))


@floats(only="fp32")
def fast_dividef(t: Formula, x: Term, y: Term) -> Term:
    """x / y."""
    return x / y


@floats(only="fp32")
def saturatef(t: Formula, x: Term) -> Term:
    """Between 0 and 1; NaN is 0."""
    return t.map("fmin", t.map("fmax", x, real(t, 0.0, x)), real(t, 1.0, x))


@floats()
def rsqrt_rn(t: Formula, x: Term) -> Term:
    """1 / sqrt(x), rounded to nearest: float32 from float64."""
    wide = x.to(float64)
    return (1.0 / t.map("sqrt", wide)).to(x.dtype)


@floats(only="fp64")
def rcp64h(t: Formula, x: Term) -> Term:
    """1 / x without its lower 32 bits."""
    word = (1.0 / x).bits(uint64)
    return (word & number(t, 0xFFFFFFFF00000000, word)).bits(float64)


@floats()
def fdim(t: Formula, x: Term, y: Term) -> Term:
    """x - y where that is positive, else 0."""
    return t.where((x > y) | (x != x) | (y != y), x - y, 0.0)


# exponentials and logarithms ----------------------------------------------------------------------


@floats("exp10", "fast_exp10f", double=True)
def _exp10(t: Formula, x: Term) -> Term:
    """10 to the power of x."""
    return t.map("pow", real(t, 10.0, x), x)


@floats("log10", "fast_log10f")
def _log10(t: Formula, x: Term) -> Term:
    """The logarithm to the base 10."""
    if x.dtype == float32:
        return pairs.log10(t, x)
    found = t.map("log", x)
    # 1 / log(10) in two numbers: what one of them lacks is half a unit of the result
    return t.fma(found, 0.4342944819032518, found * 1.098319650216765e-17)


def expm1_of(t: Formula, x: Term) -> Term:
    """exp(x) - 1 of float64: 2 sinh(x / 2) exp(x / 2)."""
    half = x * 0.5
    found = t.map("sinh", half) * t.map("exp", half) * 2.0
    return t.where(x < -50.0, -1.0, found)


@floats()
def expm1(t: Formula, x: Term) -> Term:
    """exp(x) - 1."""
    return pairs.expm1(t, x) if x.dtype == float32 else expm1_of(t, x)


def log1p_of(t: Formula, x: Term) -> Term:
    """log(1 + x) of float64, corrected by what the sum lost (Kahan)."""
    total = x + 1.0
    step = total - 1.0
    found = t.map("log", total) * (x / t.where(step == 0.0, 1.0, step))
    return t.where(step == 0.0, x, t.where(x == INFINITY, x, found))


@floats()
def log1p(t: Formula, x: Term) -> Term:
    """log(1 + x)."""
    return pairs.log1p(t, x) if x.dtype == float32 else log1p_of(t, x)


# roots and norms ----------------------------------------------------------------------------------


def cube_root(t: Formula, x: Term) -> Term:
    """The cube root of float64: a power, and one step of Newton's."""
    size = t.map("abs", x)
    near = t.map("pow", size, real(t, 1 / 3, x))
    rest = t.map("fma", near * near, near, -size)
    better = near - rest / (near * near * 3.0)
    ordinary = (size > 0.0) & (size < 1e300) & (size > 1e-300)
    return with_sign(t, t.where(ordinary, better, t.where(size == 0.0, size, near)), x)


@floats(double=True)
def cbrt(t: Formula, x: Term) -> Term:
    """The cube root."""
    return cube_root(t, x)


@floats(double=True)
def rcbrt(t: Formula, x: Term) -> Term:
    """1 / the cube root."""
    return 1.0 / cube_root(t, x)


def _length(t: Formula, *parts: Term) -> Term:
    """The root of a sum of squares, in parts of the greatest; an infinity wins over NaN."""
    sizes = [t.map("abs", part) for part in parts]
    most = sizes[0]
    for size in sizes[1:]:
        most = t.map("fmax", most, size)
    scale = t.where((most > 0.0) & (most < INFINITY), most, 1.0)
    total = real(t, 0.0, most)
    for size in sizes:
        ratio = size / scale
        total = total + ratio * ratio
    return t.where(most == INFINITY, most, t.map("sqrt", total) * scale)


@floats("hypot", "norm3d", "norm4d", double=True)
def _norm(t: Formula, *parts: Term) -> Term:
    """The root of the sum of the squares."""
    return _length(t, *parts)


@floats("rhypot", "rnorm3d", "rnorm4d", double=True)
def _rnorm(t: Formula, *parts: Term) -> Term:
    """1 / the root of the sum of the squares."""
    return 1.0 / _length(t, *parts)


# angles -------------------------------------------------------------------------------------------


def _half_turns(t: Formula, x: Term, shift: int) -> Term:
    """sin(pi x), or cos for a shift of 1: by the nearest half of a whole number."""
    quarters = t.map("round", x * 2.0)
    rest = (x - quarters * 0.5) * math.pi
    turn = quarters - t.map("floor", quarters * 0.25) * 4.0 + float(shift)
    sine, cosine = t.map("sin", rest), t.map("cos", rest)
    odd = (turn == 1.0) | (turn == 3.0)
    found = t.where(odd, cosine, sine)
    negative = (turn == 2.0) | (turn == 3.0)
    return t.where(negative, -found, found)


@floats(double=True)
def sinpi(t: Formula, x: Term) -> Term:
    """sin(pi x)."""
    found = _half_turns(t, x, 0)
    return t.where(t.map("floor", x) == x, with_sign(t, real(t, 0.0, x), x), found)


@floats(double=True)
def cospi(t: Formula, x: Term) -> Term:
    """cos(pi x)."""
    found = _half_turns(t, x, 1)
    return t.where(t.map("abs", found) == 0.0, 0.0, found)


@floats(double=True)
def atan2(t: Formula, y: Term, x: Term) -> Term:
    """The angle of the point (x, y)."""
    across, along = t.map("abs", y), t.map("abs", x)
    both = (across == INFINITY) & (along == INFINITY)
    steep = across > along
    low, high = t.where(steep, along, across), t.where(steep, across, along)
    ratio = t.where(both, 1.0, t.where(high == 0.0, 0.0, low / t.where(high == 0.0, 1.0, high)))
    angle = t.map("atan", ratio)
    angle = t.where(steep, math.pi / 2 - (angle - 6.123233995736766e-17), angle)
    left = bits_of(x) < 0
    angle = t.where(left, math.pi - (angle - 1.2246467991473532e-16), angle)
    return t.where((x != x) | (y != y), NAN, with_sign(t, angle, y))


# exponents and remainders -------------------------------------------------------------------------


def parts_of(t: Formula, x: Term) -> tuple[Term, Term]:
    """(m, e) of a finite float64 that is not 0: |x| = m * 2**e, m from 1 to 2."""
    size = t.map("abs", x)
    tiny = size < 2.0**-1022
    scaled = t.where(tiny, size * 2.0**54, size)
    word = bits_of(scaled)
    exponent = (word >> number(t, 52, word)) - 1023
    fraction = (word & ((1 << 52) - 1)) | (1023 << 52)
    return fraction.bits(float64), t.where(tiny, exponent - 54, exponent)


def power_of_two(t: Formula, exponent: Term) -> Term:
    """2**e of int64 exponents from -1022 to 1023."""
    return ((exponent + 1023) << number(t, 52, exponent)).bits(float64)


def _scaled(t: Formula, x: Term, by: Term) -> Term:
    """x * 2**by of float64, rounded once."""
    most = t.where(by > 4400, 4400, t.where(by < -4400, -4400, by))
    fraction, exponent = parts_of(t, x)
    total = exponent + most
    total = t.where(total > 1100, 1100, t.where(total < -1200, -1200, total))
    first = total >> number(t, 1, total)
    found = fraction * power_of_two(t, first) * power_of_two(t, total - first)
    ordinary = (t.map("abs", x) < INFINITY) & (x != 0.0)
    return t.where(ordinary, with_sign(t, found, x), x)


def _exponent_of(name: str) -> None:
    @plain(name)
    def call(e: Emitter, x: Any, n: Any) -> Tensor:
        """x * 2**n."""
        t = Formula(e)
        given, by = t(x), t(n)
        if not given.dtype.is_floating() or not by.dtype.is_int():
            e.fail(f"libdevice.{name} of {given.value.type} and {by.value.type}",
                   "it takes a float and an integer")  # fmt: skip
        found = _scaled(t, given.to(float64), by.to(int64))
        return found.to(given.dtype).value


for _name in ("ldexp", "scalbn"):
    _exponent_of(_name)


@floats(result=int32)
def ilogb(t: Formula, x: Term) -> Term:
    """The exponent as an integer; the least integer for 0 and NaN, the greatest for infinity."""
    wide = x.to(float64)
    exponent = parts_of(t, wide)[1].to(int32)
    least = -(1 << 31)
    exponent = t.where(t.map("abs", wide) == INFINITY, (1 << 31) - 1, exponent)
    return t.where((wide == 0.0) | (wide != wide), least, exponent)


@floats(double=True)
def logb(t: Formula, x: Term) -> Term:
    """The exponent as a float."""
    exponent = parts_of(t, x)[1].to(float64)
    size = t.map("abs", x)
    found = t.where(size < INFINITY, exponent, size)
    return t.where(x == 0.0, -INFINITY, t.where(x != x, x, found))


@floats(double=True)
def remainder(t: Formula, x: Term, y: Term) -> Term:
    """x - n y with n the whole number nearest to x / y, even in between."""
    divisor = t.map("abs", y)
    doubled = t.where(divisor < 1e300, divisor * 2.0, INFINITY)
    size = t.map("abs", x)
    rest = t.where(doubled < INFINITY, t.map("fmod", size, doubled), size)

    def above(a: Term) -> tuple[Term, Term]:
        """a > divisor / 2, a >= divisor / 2: without what halving or doubling would lose."""
        small = divisor < 1.0
        left = t.where(small, a + a, a)
        right = t.where(small, divisor, divisor * 0.5)
        return left > right, left >= right

    once = t.where(above(rest)[0], rest - divisor, rest)
    taken = above(rest)[0] & above(once)[1]
    found = t.where(taken, once - divisor, once)
    negative = bits_of(x) < 0
    found = t.where(found == 0.0, t.map("abs", found), found)
    found = t.where(negative, -found, found)
    bad = (x != x) | (y != y) | (size == INFINITY) | (y == 0.0)
    return t.where(bad, NAN, t.where(divisor == INFINITY, x, found))
