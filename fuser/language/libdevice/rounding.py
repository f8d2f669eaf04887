"""Rounding: to whole numbers, between types, and arithmetic in directions.

_rn rounds to nearest even, _rz toward zero, _rd down, _ru up. A result in a direction is the
nearest one, or its neighbour where that lies on the wrong side: what the nearest one lost is known
exactly, from float64 for float32.
"""

from __future__ import annotations

from typing import Any

from fuser.language.emitter import Emitter
from fuser.language.libdevice.bits import number, real, stepped, with_sign
from fuser.language.libdevice.registry import floats, plain
from fuser.language.tensors import Tensor
from fuser.language.terms import Formula, Term
from fuser.language.types import (
    ElementType,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)

MODES = ("rn", "rz", "rd", "ru")
INFINITY = float("inf")


# to whole numbers ---------------------------------------------------------------------------------


def whole_part(t: Formula, x: Term) -> Term:
    return with_sign(t, t.map("floor", t.map("abs", x)), x)


def nearest_away(t: Formula, x: Term) -> Term:
    """The nearest whole number; halves away from zero."""
    size = t.map("abs", x)
    low = t.map("floor", size)
    return with_sign(t, t.where(size - low >= 0.5, low + 1.0, low), x)


@floats()
def trunc(t: Formula, x: Term) -> Term:
    """The whole part."""
    return whole_part(t, x)


@floats("rint", "nearbyint")
def _rint(t: Formula, x: Term) -> Term:
    """The nearest whole number, halves to even."""
    return t.map("round", x)


@floats()
def round(t: Formula, x: Term) -> Term:
    """The nearest whole number, halves away from zero."""
    return nearest_away(t, x)


@floats(result=int64)
def llrint(t: Formula, x: Term) -> Term:
    """The nearest whole number as int64, halves to even."""
    return as_integer(t, t.map("round", x), int64)


@floats(result=int64)
def llround(t: Formula, x: Term) -> Term:
    """The nearest whole number as int64, halves away from zero."""
    return as_integer(t, nearest_away(t, x), int64)


def as_integer(t: Formula, x: Term, dtype: ElementType) -> Term:
    """A whole number as an integer; what is too large is the largest. NaN is 0 of 32 bits, and only
    the highest bit of 64."""
    low, high = int(dtype.ir.lowest), int(dtype.ir.highest)
    inside = (x >= float(low)) & (x < float(high + 1))
    kept = t.where(inside, x, real(t, 0.0, x)).to(dtype)
    ends = t.where(x > 0.0, number(t, high, kept), number(t, low, kept))
    if dtype.bits == 64:
        none = t.e.constant(-(1 << 63), int64)
        nan = Term(t.e, none).bits(dtype) if dtype is uint64 else Term(t.e, none)
    else:
        nan = number(t, 0, kept)
    return t.where(x != x, nan, t.where(inside, kept, ends))


def _to_whole(t: Formula, x: Term, mode: str) -> Term:
    if mode == "rz":
        return whole_part(t, x)
    return t.map({"rn": "round", "rd": "floor", "ru": "ceil"}[mode], x)


def _integer_of(name: str, source: ElementType, dtype: ElementType, mode: str) -> None:
    def convert(t: Formula, x: Term) -> Term:
        return as_integer(t, _to_whole(t, x, mode), dtype)

    convert.__doc__ = f"The float as {dtype}."
    floats(name, result=dtype, only=source.name)(convert)


for _mode in MODES:
    for _start, _source in (("float", float32), ("double", float64)):
        for _end, _dtype in (("int", int32), ("uint", uint32), ("ll", int64), ("ull", uint64)):
            _integer_of(f"{_start}2{_end}_{_mode}", _source, _dtype, _mode)


# in directions ------------------------------------------------------------------------------------


def directed(t: Formula, near: Term, lost: Term, mode: str) -> Term:
    """The nearest result, or its neighbour. lost: a number with the sign of what the exact result
    is more than it."""
    if mode == "rn":
        return near
    up, down = lost > 0.0, lost < 0.0
    positive = near > 0.0
    match mode:
        case "ru":
            moves, higher = up, up
        case "rd":
            moves, higher = down, up
        case _:
            higher = ~positive & (near < 0.0)
            moves = t.where(positive, down, up & higher)
    return t.where(moves, stepped(t, near, higher), near)


def _beyond(t: Formula, near: Term, lost: Term, *given: Term) -> Term:
    """`lost`, where a finite result became an infinity."""
    finite = t.map("abs", near) == INFINITY
    for item in given:
        finite = finite & (t.map("abs", item) < INFINITY)
    toward = t.where(near > 0.0, real(t, -1.0, lost), real(t, 1.0, lost))
    return t.where(finite, toward, lost)


def lost_of_sum(a: Term, b: Term, total: Term) -> Term:
    """a + b - total, exactly."""
    back = total - a
    return (a - (total - back)) + (b - back)


def _sum(t: Formula, a: Term, b: Term, mode: str) -> Term:
    near = a + b
    if a.dtype is float64:
        return directed(t, near, _beyond(t, near, lost_of_sum(a, b, near), a, b), mode)
    x, y = a.to(float64), b.to(float64)
    wide = x + y
    lost = (wide - near.to(float64)) + lost_of_sum(x, y, wide)
    return directed(t, near, _beyond(t, near, lost, a, b), mode)


def _product(t: Formula, a: Term, b: Term, mode: str) -> Term:
    wide = a.to(float64) * b.to(float64)
    near = wide.to(float32)
    return directed(t, near, _beyond(t, near, wide - near.to(float64), a, b), mode)


def _quotient(t: Formula, a: Term, b: Term, mode: str) -> Term:
    x, y = a.to(float64), b.to(float64)
    near = t.map("div", x, y).to(float32)
    rest = t.map("fma", -near.to(float64), y, x)
    lost = t.where(y < 0.0, -rest, rest)
    found = directed(t, near, _beyond(t, near, lost, a, b), mode)
    return t.where((b == 0.0) | (t.map("abs", b) == INFINITY), near, found)


def _root(t: Formula, x: Term, mode: str) -> Term:
    wide = x.to(float64)
    near = t.map("sqrt", wide).to(float32)
    back = near.to(float64)
    lost = t.map("fma", -back, back, wide)
    ordinary = (x > 0.0) & (x < INFINITY)
    return t.where(ordinary, directed(t, near, lost, mode), near)


def _fused(t: Formula, a: Term, b: Term, c: Term, mode: str) -> Term:
    near = t.map("fma", a, b, c)
    product, more = a.to(float64) * b.to(float64), c.to(float64)
    wide = product + more
    lost = (wide - near.to(float64)) + lost_of_sum(product, more, wide)
    return directed(t, near, _beyond(t, near, lost, a, b, c), mode)


def _define(mode: str) -> None:
    only = "" if mode == "rn" else "fp32"

    @floats(f"add_{mode}")
    def add(t: Formula, a: Term, b: Term) -> Term:
        """a + b, rounded in a direction."""
        return _sum(t, a, b, mode)

    @floats(f"sub_{mode}")
    def sub(t: Formula, a: Term, b: Term) -> Term:
        """a - b, rounded in a direction."""
        return _sum(t, a, -b, mode)

    @floats(f"mul_{mode}", only=only)
    def mul(t: Formula, a: Term, b: Term) -> Term:
        """a * b, rounded in a direction."""
        return a * b if mode == "rn" else _product(t, a, b, mode)

    @floats(f"div_{mode}", only=only)
    def div(t: Formula, a: Term, b: Term) -> Term:
        """a / b, rounded in a direction."""
        if a.dtype is float64:
            return a / b
        return _quotient(t, a, b, mode)

    @floats(f"rcp_{mode}", only=only)
    def rcp(t: Formula, x: Term) -> Term:
        """1 / x, rounded in a direction."""
        one = real(t, 1.0, x)
        return one / x if x.dtype is float64 else _quotient(t, one, x, mode)

    @floats(f"sqrt_{mode}", only=only)
    def sqrt(t: Formula, x: Term) -> Term:
        """The square root, rounded in a direction."""
        return t.map("sqrt", x) if x.dtype is float64 else _root(t, x, mode)

    @floats(f"fma_{mode}", only=only)
    def fma(t: Formula, a: Term, b: Term, c: Term) -> Term:
        """a * b + c, rounded once in a direction."""
        return t.map("fma", a, b, c) if mode == "rn" else _fused(t, a, b, c, mode)

    @floats(f"double2float_{mode}", only="fp64", result=float32)
    def narrow(t: Formula, x: Term) -> Term:
        """A float64 as float32, rounded in a direction."""
        near = x.to(float32)
        return directed(t, near, _beyond(t, near, x - near.to(float64), x), mode)


for _mode in MODES:
    _define(_mode)


# from integers ------------------------------------------------------------------------------------


def _float_of(name: str, source: ElementType, dtype: ElementType, mode: str) -> None:
    @plain(name)
    def call(e: Emitter, x: Any) -> Tensor:
        t = Formula(e)
        given = t(x).to(source)
        near = given.to(dtype)
        if source.bits == 32:
            wide = given.to(float64)
            lost = wide - near.to(float64)
        else:
            edge = float(int(source.ir.highest) + 1)
            over = near >= edge
            back = t.where(over, real(t, 0.0, near), near).to(source)
            below, above = given < back, given > back
            lost = t.where(over | below, -1.0, t.where(above, 1.0, 0.0)).to(dtype)
        return directed(t, near, lost, mode).value

    call.__doc__ = f"The integer as {dtype}."


for _mode in MODES:
    for _start, _source in (("int", int32), ("uint", uint32), ("ll", int64), ("ull", uint64)):
        _float_of(f"{_start}2float_{_mode}", _source, float32, _mode)
        if _source.bits == 64 or _mode == "rn":
            _float_of(f"{_start}2double_{_mode}", _source, float64, _mode)
