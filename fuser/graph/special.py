"""The error function's complement and gamma's relatives, as compositions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.terms import Term, polynomial, where

INFINITY = math.inf

# exp(x^2) erfc(x) (1 + 2x) for x >= 0 as a polynomial of q = (x - 2) / (x + 2) on [-1, 1]:
# relative error 5e-18. Chebyshev interpolation of our own.
SCALED_ERFC = (
    1.2769783815525286, -0.09276382658574592, -0.16603039761528934, 0.16405128003343042,
    -0.05422000099204234, -0.008034015081975533, 0.008722653875874401, 0.0012713389581147643,
    -0.001456813949121386, -0.00045434075633128744, 0.00020636722443216252, 0.0001510387426502302,
    -1.5098920338669367e-06, -3.642170073643014e-05, -1.3492686972960392e-05,
    3.706495698274427e-06, 5.222674722557211e-06, 1.5114342942950548e-06, -6.905650233345399e-07,
    -8.437047048388203e-07, -2.742976342933388e-07, 1.4417788470704708e-07, 1.7788199852014453e-07,
    2.6128005652434826e-08, -4.416076720688187e-08, -1.717113591988555e-08, 4.458956309673816e-09,
    2.5783078758946625e-09, 3.812834568068442e-11,
)  # fmt: skip
# log gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2 = sum of these / x^(2k + 1), Stirling's series
STIRLING = (
    1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400,
)  # fmt: skip
# log gamma(2 + t) / t on [-1/2, 1/2]: relative error 6e-17. Chebyshev interpolation of our own.
NEAR_TWO = (
    0.42278433509846713, 0.3224670334241132, -0.06735230105319563, 0.02058080842778338,
    -0.007385551028935545, 0.002890510330865901, -0.0011927539009983087, 0.0005096695196526673,
    -0.00022315497746292723, 9.945761692157133e-05, -4.4923727564247656e-05,
    2.050601970174762e-05, -9.45628851510172e-06, 4.3828545383846665e-06, -1.9743106888421067e-06,
    9.242852225162277e-07, -5.811277768921246e-07, 2.7475390051909663e-07,
)  # fmt: skip
# log x - digamma(x) - 1 / (2x) = sum of these / x^(2k + 2), the series of its derivative
DIGAMMA = tuple(coefficient * (2 * k + 1) for k, coefficient in enumerate(STIRLING))
# trigamma(x) - 1 / x - 1 / (2 x^2) = sum of these / x^(2k + 3)
TRIGAMMA = tuple(coefficient * (2 * k + 2) for k, coefficient in enumerate(DIGAMMA))
ENOUGH = 10
"""From where Stirling's series has the digits of float64."""


def _in_double(function: Callable[[Term], Term]) -> Callable[[Builder, Value], Value]:
    def call(b: Builder, x: Value) -> Value:
        return b.cast(function(Term(b, b.cast(x, dtypes.f64))).value, x.dtype)

    call.__doc__ = function.__doc__
    return call


@_in_double
def erfc(x: Term) -> Term:
    """1 - erf(x), with the relative accuracy of float64 where it is small."""
    size = x.map("abs")
    bounded = size.map("min", 28.0)  # beyond it erfc is 0; NaN stays
    q = (bounded - 2.0) / (bounded + 2.0)
    scaled = polynomial(q, SCALED_ERFC) / (bounded * 2.0 + 1.0)
    # exp(-x^2) with what the square lost: of the upper half of the digits it is exact.
    upper = (bounded * 2.0**20).map("floor") * 2.0**-20
    lost = (bounded - upper) * (bounded + upper)
    tail = (-(upper * upper)).map("exp") * (-lost).map("exp") * scaled
    tail = where(size > 28.0, 0.0, tail)
    far = where(x < 0.0, 2.0 - tail, tail)
    return where(size < 0.25, 1.0 - x.map("erf"), far)


@_in_double
def lgamma(x: Term) -> Term:
    """The logarithm of |gamma(x)|; infinite at 0, -1, -2, ... Of positive x it has nearly all of
    float64's digits, near its roots as well."""
    reflected = x < 0.5
    now = where(reflected, 1.0 - x, x)
    # Within [3/2, 5/2), by gamma(x + 1) = x gamma(x).
    below = now < 1.5
    rest = where(below, now + 1.0, now)
    product = now * 0.0 + 1.0
    for _ in range(ENOUGH - 2):
        large = rest >= 2.5
        rest = where(large, rest - 1.0, rest)
        product = where(large, product * rest, product)
    away = where(below, now - 1.0, rest - 2.0)
    log = where(below, now, product).map("log")
    near = away * polynomial(away, NEAR_TWO) + where(below, -log, log)
    inverse = 1.0 / now
    log = now.map("log")
    series = polynomial(inverse * inverse, STIRLING) * inverse
    far = (now - 0.5) * log - now + math.log(2 * math.pi) / 2 + series
    far = where(now > 1e300, now * (log - 1.0), far)
    right = where(now < float(ENOUGH), near, where(now == INFINITY, INFINITY, far))
    sine = ((x - x.map("round")).map("abs") * math.pi).map("sin")
    pole = (x <= 0.0) & (x.map("floor") == x)
    left = (math.pi / where(pole, 1.0, sine)).map("log") - right
    found = where(reflected, left, right)
    return where(pole | (x.map("abs") == INFINITY), INFINITY, found)


@_in_double
def digamma(x: Term) -> Term:
    """The derivative of log gamma(x): of either zero an infinity of the other sign, NaN at the
    other poles."""
    reflected = x < 0.5
    now = where(reflected, 1.0 - x, x)
    less = now * 0.0
    for _ in range(ENOUGH):  # digamma(x + 1) = digamma(x) + 1 / x
        small = now < float(ENOUGH)
        less = where(small, less + 1.0 / now, less)
        now = where(small, now + 1.0, now)
    inverse = 1.0 / now
    square = inverse * inverse
    right = now.map("log") - inverse * 0.5 - polynomial(square, DIGAMMA) * square - less
    right = where(now == INFINITY, INFINITY, right)
    away = x - x.map("round")
    pole = (x <= 0.0) & (x.map("floor") == x)
    cotangent = math.pi / (where(pole, 1.0, away) * math.pi).map("tan")
    found = where(reflected, right - cotangent, right)
    found = where(pole, math.nan, found)
    return where(x == 0.0, -(1.0 / x), found)


@_in_double
def trigamma(x: Term) -> Term:
    """The derivative of digamma; infinite at 0, -1, -2, ..."""
    reflected = x < 0.5
    now = where(reflected, 1.0 - x, x)
    more = now * 0.0
    for _ in range(ENOUGH):  # trigamma(x + 1) = trigamma(x) - 1 / x^2
        small = now < float(ENOUGH)
        more = where(small, more + 1.0 / (now * now), more)
        now = where(small, now + 1.0, now)
    inverse = 1.0 / now
    square = inverse * inverse
    right = inverse + square * 0.5 + polynomial(square, TRIGAMMA) * square * inverse + more
    right = where(now == INFINITY, 0.0, right)
    sine = ((x - x.map("round")) * math.pi).map("sin")
    return where(reflected, (math.pi / sine) * (math.pi / sine) - right, right)
