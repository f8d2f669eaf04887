"""float32 functions in pairs of float32: the second number is what the first one lost.

On a GPU float64 costs 2 to 64 times as much as float32. A pair has 48 digits, of which a function
needs those that are near the last place of its result: what is small beside the result is computed
in single numbers. Products are taken apart by fma, sums by Dekker's and Knuth's two-sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fuser.language.libdevice.bits import bits_of, number, real
from fuser.language.terms import Formula, Term
from fuser.language.types import float32

INFINITY = float("inf")
LN2 = 0.693359375, -0.00021219444170128554, 1.6465949697480609e-12
"""log 2 in three parts, the first of 10 bits: its multiples by an exponent are exact."""
THIRD = 0.3333333432674408, -9.934107758624577e-09
TWO_THIRDS = 0.6666666865348816, -1.9868215517249155e-08
LOG10_E = 0.4342944920063019, -1.0103049952192578e-08
ATANH = 0.4000000059604645, 0.2857153117656708, 0.2220471352338791, 0.19121593236923218
"""(2 atanh(s) / s - 2 - 2/3 z) / z**2 by powers of z = s**2, |s| to 0.172."""
EXP = (
    0.0416666679084301, 0.00833332072943449, 0.0013888865942135453, 0.00019882794003933668,
    2.4851413400028832e-05,
)  # fmt: skip
"""(exp(r) - 1 - r - r**2 / 2 - r**3 / 6) / r**4 by powers of r, |r| to log(2) / 2."""
ROOT_HALF_BITS = 0x3F3504F3
TINY = 2.0**-30
"""Below it these functions are their argument, to less than a hundredth of the last place."""


class Pair(NamedTuple):
    """high + low, low below the last place of high or not much above."""

    high: Term
    low: Term


def _sum(a: Term, b: Term) -> Pair:
    """a + b, of any sizes."""
    high = a + b
    part = high - a
    return Pair(high, (a - (high - part)) + (b - part))


def _sum_of_sorted(a: Term, b: Term) -> Pair:
    """a + b of |a| >= |b|, or a = 0."""
    high = a + b
    return Pair(high, b - (high - a))


def _product(t: Formula, a: Term, b: Term | float) -> Pair:
    high = t.fma(a, b, -0.0)  # a plain product may become one step with a sum that takes it
    return Pair(high, t.fma(a, b, -high))


def _polynomial(t: Formula, x: Term, coefficients: tuple[float, ...]) -> Term:
    found = t.fma(x, coefficients[-1], coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        found = t.fma(found, x, coefficient)
    return found


def _log_of(
    t: Formula, x: Term, near: Pair | None = None, turns: Term | None = None
) -> Pair:  # fmt: skip
    """log(x + near.low) - turns * log 2 of a positive normal x, turns a whole int32. near.low: at
    most half of the last place of x; near.high: x + near.low - 1 where x is near 1.

    x = 2**e m, m from sqrt(1/2) to sqrt(2): e log 2 + 2 atanh(s), s = (m - 1) / (m + 1).
    """
    word = bits_of(x)
    exponent = (word - ROOT_HALF_BITS) >> number(t, 23, word)
    fraction = (word - (exponent << number(t, 23, word))).bits(float32)
    r = fraction - 1.0
    if near is not None:
        r = t.where(exponent == 0, near.high, r)
    q = _sum_of_sorted(real(t, 2.0, r), r)
    s = r / q.high
    rest = t.fma(-s, q.high, r)
    low = -(s * q.low)
    if near is not None:
        # 2**-e; where e is large, it is of no account
        scale = t.where(exponent < 100, number(t, 127, word) - exponent, number(t, 1, word))
        more = t.where(exponent == 0, 0.0, near.low)
        added = more * (scale << number(t, 23, word)).bits(float32)
        low = t.fma(-s, added, low) + added
    s_low = (rest + low) / q.high
    z = s * s
    cube = _product(t, s, z)
    third = _product(t, cube.high, TWO_THIRDS[0])
    tail = t.fma(cube.low, TWO_THIRDS[0], t.fma(cube.high, TWO_THIRDS[1], third.low))
    z_low = t.fma(s, s, -z)
    tail = t.fma(s * z_low, TWO_THIRDS[0], tail)
    tail = t.fma(cube.high, z * _polynomial(t, z, ATANH), tail)
    series = _sum_of_sorted(s * 2.0, third.high)
    e = (exponent if turns is None else exponent - turns).to(float32)
    high = _sum_of_sorted(e * LN2[0], series.high)
    # the slope of 2 atanh(s) is 2 / (1 - z)
    tail = t.fma(s_low * 2.0, z, tail) + t.fma(s_low, 2.0, series.low)
    tail = t.fma(e, LN2[1], tail) + high.low
    return Pair(high.high, tail)


def log1p(t: Formula, x: Term) -> Term:
    """log(1 + x)."""
    total = _sum(x, real(t, 1.0, x))
    ordinary = (x > -1.0) & (x < INFINITY)
    near = Pair(x, t.where(ordinary, total.low, 0.0))
    found = _log_of(t, t.where(ordinary, total.high, 1.0), near)
    result = t.where(ordinary, found.high + found.low, x)
    result = t.where(x == -1.0, -INFINITY, t.where(x < -1.0, math.nan, result))
    return t.where(t.map("abs", x) < TINY, x, result)


def log10(t: Formula, x: Term) -> Term:
    """The logarithm to the base 10."""
    ordinary = (x > 0.0) & (x < INFINITY)
    tiny = x < 2.0**-126
    scaled = t.where(ordinary, t.where(tiny, x * 2.0**24, x), 1.0)
    found = _log_of(t, scaled, turns=t.where(tiny, 24, number(t, 0, bits_of(x))))
    turned = _product(t, found.high, LOG10_E[0])
    low = t.fma(found.low, LOG10_E[0], t.fma(found.high, LOG10_E[1], turned.low))
    result = t.where(ordinary, turned.high + low, x)
    return t.where(x == 0.0, -INFINITY, t.where(x < 0.0, math.nan, result))


def expm1(t: Formula, x: Term) -> Term:
    """exp(x) - 1: 2**n (1 + p) - 1, x = n log 2 + r, p = exp(r) - 1."""
    bounded = t.where(x > 89.0, 89.0, t.where(x < -30.0, -30.0, x))
    n = t.map("round", bounded * (1 / math.log(2)))
    first = t.fma(n, -LN2[0], bounded)
    turn = _product(t, n, -LN2[1])
    r, rest = _sum(first, turn.high)
    r_low = t.fma(n, -LN2[2], rest + turn.low)
    square = _product(t, r * 0.5, r)
    third = _product(t, r, THIRD[0])
    cube = _product(t, square.high, third.high)
    low = t.fma(square.high, t.fma(r, THIRD[1], third.low), cube.low)
    low = t.fma(square.low, third.high, low)
    low = t.fma((square.high * square.high) * 4.0, _polynomial(t, r, EXP), low)
    low = low + square.low
    near = _sum_of_sorted(square.high, cube.high)
    power = _sum_of_sorted(r, near.high)
    low = low + near.low + power.low + t.fma(r_low, power.high, r_low)
    # 2**(n - 1), so that the greatest results do not overflow before the last step
    word = n.to(bits_of(x).dtype)
    half = ((word + 126) << number(t, 23, word)).bits(float32)
    whole = _sum(half, real(t, -0.5, half))
    total = _sum_of_sorted(whole.high, half * power.high)
    result = (total.high + t.fma(half, low, total.low + whole.low)) * 2.0
    result = t.where(x < -30.0, -1.0, result)
    return t.where(t.map("abs", x) < TINY, x, t.where(x != x, x, result))
