"""The error function's relatives, and gamma, through float64."""

from __future__ import annotations

import math

from fuser.graph.special import ENOUGH, SCALED_ERFC, STIRLING
from fuser.language.libdevice.bits import real, with_sign
from fuser.language.libdevice.registry import floats, refused
from fuser.language.terms import Formula, Term

INFINITY = float("inf")
NAN = float("nan")

ROOT_HALF = math.sqrt(0.5)
ROOT_HALF_REST = -4.833646656726457e-17


def polynomial(t: Formula, x: Term, coefficients: tuple[float, ...]) -> Term:
    """sum of coefficients[i] * x**i."""
    result = real(t, coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = t.map("fma", result, x, real(t, coefficient, x))
    return result


# error functions ----------------------------------------------------------------------------------


def _of_positive(t: Formula, x: Term) -> Term:
    """exp(x^2) erfc(x) of x >= 0."""
    bounded = t.where(x < 1e150, x, 1e150)
    q = (bounded - 2.0) / (bounded + 2.0)
    return polynomial(t, q, SCALED_ERFC) / (bounded * 2.0 + 1.0)


def _square_exp(t: Formula, x: Term, sign: float) -> Term:
    """exp(sign x^2), with what the square lost."""
    square = x * x
    lost = t.map("fma", x, x, -square)
    power = t.map("exp", square * sign)
    corrected = t.map("fma", power, lost * sign, power)
    return t.where(t.map("abs", square) < 1000.0, corrected, power)


def erfc_of(t: Formula, x: Term) -> Term:
    """1 - erf(x) of float64."""
    size = t.map("abs", x)
    tail = _square_exp(t, size, -1.0) * _of_positive(t, size)
    tail = t.where(size > 28.0, 0.0, tail)
    far = t.where(x < 0.0, 2.0 - tail, tail)
    return t.where(size < 0.25, 1.0 - t.map("erf", x), far)


@floats(double=True)
def erfc(t: Formula, x: Term) -> Term:
    """1 - erf(x)."""
    return erfc_of(t, x)


@floats(double=True)
def erfcx(t: Formula, x: Term) -> Term:
    """exp(x^2) erfc(x)."""
    size = t.map("abs", x)
    positive = _of_positive(t, size)
    negative = _square_exp(t, size, 1.0) * 2.0 - positive
    found = t.where(x < 0.0, t.where(x < -27.0, INFINITY, negative), positive)
    return t.where(x == INFINITY, 0.0, t.where(x != x, x, found))


@floats(double=True)
def normcdf(t: Formula, x: Term) -> Term:
    """The probability that a normal number is below x."""
    scaled = x * -ROOT_HALF
    # What the product lost matters far out, where erfc falls by its square.
    lost = -t.map("fma", x, real(t, ROOT_HALF, x), scaled) - x * ROOT_HALF_REST
    slope = _square_exp(t, scaled, -1.0) * (2 / math.sqrt(math.pi))
    near = erfc_of(t, scaled)
    return t.where(t.map("abs", x) < 40.0, near - lost * slope, near) * 0.5


def _inverse_tail(t: Formula, y: Term) -> Term:
    """x > 0 with erfc(x) = y, of y from 0 to 1: Hastings' estimate (Abramowitz and Stegun 26.2.23)
    and three steps of Halley's."""
    safe = t.where(y > 0.0, y, 1.0)
    root = t.map("sqrt", t.map("log", safe * 0.5) * -2.0)
    top = polynomial(t, root, (2.515517, 0.802853, 0.010328))
    bottom = polynomial(t, root, (1.0, 1.432788, 0.189269, 0.001308))
    x = (root - top / bottom) * math.sqrt(0.5)
    for _ in range(3):
        # (erfc(x) - y) / erfc'(x), scaled by exp(x^2) so that nothing underflows
        scaled = _of_positive(t, t.map("abs", x)) - t.map("exp", t.map("log", safe) + x * x)
        step = scaled * (-math.sqrt(math.pi) / 2)
        x = x - step / (1.0 + x * step)
    return t.where(y > 0.0, x, INFINITY)


def _inverse_near(t: Formula, x: Term) -> Term:
    """erfinv of |x| up to 1/2, by steps of Newton's."""
    factor = math.sqrt(math.pi) / 2
    square = x * x
    found = x * polynomial(t, square, (factor, 0.2320136665, 0.1275561753, 0.0865521292))
    for _ in range(3):
        slope = t.map("exp", found * found) * factor
        found = found - (t.map("erf", found) - x) * slope
    return found


def erfinv_of(t: Formula, x: Term) -> Term:
    """The inverse of erf, of float64."""
    size = t.map("abs", x)
    near = _inverse_near(t, t.where(size < 0.5, x, 0.0))
    far = with_sign(t, _inverse_tail(t, t.where(size < 0.5, 0.5, 1.0 - size)), x)
    return t.where(size > 1.0, NAN, t.where(size < 0.5, near, far))


@floats(double=True)
def erfinv(t: Formula, x: Term) -> Term:
    """The inverse of erf."""
    return erfinv_of(t, x)


def erfcinv_of(t: Formula, y: Term) -> Term:
    """The inverse of erfc, of float64."""
    middle = (y > 0.5) & (y < 1.5)
    near = _inverse_near(t, t.where(middle, 1.0 - y, 0.0))
    above = y >= 1.5
    tail = _inverse_tail(t, t.where(middle, 0.5, t.where(above, 2.0 - y, y)))
    found = t.where(middle, near, t.where(above, -tail, tail))
    return t.where((y < 0.0) | (y > 2.0), NAN, found)


@floats(double=True)
def erfcinv(t: Formula, y: Term) -> Term:
    """The inverse of erfc."""
    return erfcinv_of(t, y)


@floats(double=True)
def normcdfinv(t: Formula, p: Term) -> Term:
    """The number that a normal one is below with probability p."""
    return erfcinv_of(t, p * 2.0) * -math.sqrt(2.0)


# gamma --------------------------------------------------------------------------------------------


def _log_gamma_of_positive(t: Formula, x: Term) -> Term:
    """log gamma(x) of x > 0: Stirling's series, after steps of gamma(x + 1) = x gamma(x)."""
    product, now = real(t, 1.0, x), x
    for _ in range(ENOUGH):
        small = now < float(ENOUGH)
        product = t.where(small, product * now, product)
        now = t.where(small, now + 1.0, now)
    inverse = 1.0 / now
    series = polynomial(t, inverse * inverse, STIRLING) * inverse
    log = t.map("log", now)
    found = (now - 0.5) * log - now + math.log(2 * math.pi) / 2 + series
    return t.where(now > 1e300, t.where(now == INFINITY, now, now * (log - 1.0)),
                   found - t.map("log", product))  # fmt: skip


def _sine_of_part(t: Formula, x: Term) -> Term:
    """|sin(pi x)| from the distance to the nearest whole number, which is exact."""
    away = t.map("abs", x - t.map("round", x))
    return t.map("sin", away * math.pi)


@floats(double=True, only="fp32")
def lgamma(t: Formula, x: Term) -> Term:
    """The logarithm of |gamma(x)|."""
    reflected = x < 0.5
    positive = t.where(reflected, 1.0 - x, x)
    right = _log_gamma_of_positive(t, positive)
    sine = _sine_of_part(t, x)
    left = t.map("log", math.pi / t.where(sine == 0.0, 1.0, sine)) - right
    pole = (x <= 0.0) & (t.map("floor", x) == x)
    found = t.where(reflected, left, right)
    found = t.where((x == 1.0) | (x == 2.0), 0.0, found)
    return t.where(pole | (t.map("abs", x) == INFINITY), INFINITY, found)


@floats(double=True, only="fp32")
def tgamma(t: Formula, x: Term) -> Term:
    """gamma(x)."""
    reflected = x < 0.5
    positive = t.where(reflected, 1.0 - x, x)
    right = t.map("exp", _log_gamma_of_positive(t, positive))
    sine = _sine_of_part(t, x)
    left = math.pi / (t.where(sine == 0.0, 1.0, sine) * right)
    floor = t.map("floor", x)
    odd = floor - t.map("floor", floor * 0.5) * 2.0 == 1.0
    left = t.where((x < 0.0) & odd, -left, left)
    found = t.where(reflected, left, right)
    found = t.where(x == 0.0, with_sign(t, real(t, INFINITY, x), x), found)
    pole = (x < 0.0) & (floor == x)
    return t.where(pole, NAN, t.where(x == INFINITY, x, found))


for _name in ("j0", "j1", "y0", "y1", "jn", "yn", "cyl_bessel_i0", "cyl_bessel_i1"):
    refused(_name, "Bessel functions have none yet: compute them before the launch")
