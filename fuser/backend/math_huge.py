"""The quadrant of a huge angle as LLVM IR, by integers: the method of Payne and Hanek.

x is m * 2**e with a whole m below 2**53. Of x * 2 / pi only what is left of a division by 4 counts,
so the digits of 2 / pi that m * 2**e makes multiples of 4 need not be looked at: the product of m
with the 192 binary digits after them has the quadrant in its first two bits, and its fraction to
137 bits more. No double comes nearer to a multiple of pi / 2 than 2**-62 of it, so that 75 of them
are good. Code for vectors and scalars, on any target, without a table in memory.
"""

from __future__ import annotations

import itertools
import math

from fuser.backend.function import Function
from fuser.backend.math_steps import add, bits_of, fma, magnitude, mul, sub
from fuser.backend.text import Reg, integer, like

_DIGITS = (
    0,
    0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484,
    0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
)  # fmt: skip
"""64 zeros, then 2 / pi in binary."""
_MANTISSA = (1 << 52) - 1
_LOW = (1 << 32) - 1


def quadrant_of_huge(f: Function, x: Reg, most: int) -> tuple[Reg, Reg]:
    """(an i64 with q in its low bits, x - q pi / 2) with q = round(2 x / pi), for finite doubles
    of at least 2**30. most: the greatest e that occurs."""
    word = like(x.type, "i64")

    def whole(value: int) -> Reg:
        return integer(value, word)

    bits = bits_of(f, magnitude(f, x))
    m = f.binary("or", f.binary("and", bits, whole(_MANTISSA)), whole(_MANTISSA + 1))
    # m * 2**e is x for e = exponent - 1075; the digits begin 62 after it.
    place = f.binary("sub", f.binary("lshr", bits, whole(52)), whole(1075 - 62))
    words = _words(f, f.binary("lshr", place, whole(6)), (most + 62) >> 6)
    shift = f.binary("and", place, whole(63))
    halves: list[Reg] = []
    for first, second in itertools.pairwise(words):
        # Funnel shifts of vectors are slow on some targets, and a shift by 64 is none.
        rest = f.binary(
            "lshr", f.binary("lshr", second, whole(1)), f.binary("xor", shift, whole(63))
        )
        moved = f.binary("or", f.binary("shl", first, shift), rest)
        halves += [f.binary("lshr", moved, whole(32)), f.binary("and", moved, whole(_LOW))]
    product = _product(f, m, halves)
    first, second, third = (
        f.binary("or", f.binary("shl", product[i], whole(32)), product[i + 1]) for i in (0, 2, 4)
    )

    def without_quadrant(high: Reg, low: Reg) -> Reg:
        return f.binary("or", f.binary("shl", high, whole(2)), f.binary("lshr", low, whole(62)))

    high, low = without_quadrant(first, second), without_quadrant(second, third)
    # A fraction of a half or more belongs to the next quadrant: as a signed number it is negative.
    q = f.binary("add", f.binary("lshr", first, whole(62)), f.binary("lshr", high, whole(63)))
    r = _times_half_pi(f, high, low, x.type)
    negative = f.icmp("slt", bits_of(f, x), 0)
    q = f.select(negative, f.binary("sub", whole(0), q), q)
    return q, f.select(negative, f.fneg(r), r)


def _words(f: Function, first: Reg, most: int) -> list[Reg]:
    """Four words of the digits from `first` (at most `most`) on, chosen bit by bit."""
    found = [integer(digits, first.type) for digits in _DIGITS[: most + 4]]
    for bit in reversed(range(most.bit_length())):
        step = 1 << bit
        wanted = f.icmp("ne", f.binary("and", first, integer(step, first.type)), 0)
        count = step + 3  # what the lower bits can still choose from
        found = [
            f.select(wanted, found[i + step], found[i]) if i + step < len(found) else found[i]
            for i in range(min(count, len(found)))
        ]
    return found


def _product(f: Function, m: Reg, halves: list[Reg]) -> list[Reg]:
    """m times a number of 32-bit digits, the highest first, without what overflows it."""
    low, high = integer(_LOW, m.type), integer(32, m.type)
    parts = f.binary("and", m, low), f.binary("lshr", m, high)
    columns: list[list[Reg]] = [[] for _ in halves]
    for k, digit in enumerate(halves):
        for up, part in enumerate(parts):
            total = f.binary("mul", part, digit)
            if k - up >= 0:
                columns[k - up].append(f.binary("and", total, low))
            if k - up - 1 >= 0:
                columns[k - up - 1].append(f.binary("lshr", total, high))
    result: list[Reg] = []
    carry: Reg | None = None
    for column in reversed(columns):
        total = column[0]
        for part in (*column[1:], *([carry] if carry else [])):
            total = f.binary("add", total, part)
        result.append(f.binary("and", total, low))
        carry = f.binary("lshr", total, high)
    return result[::-1]


def _times_half_pi(f: Function, high: Reg, low: Reg, type: str) -> Reg:
    """(high + low * 2**-64) * 2**-64 * pi / 2, high signed and low not."""

    def scaled(name: str, digits: Reg, power: int) -> Reg:
        return mul(f, f.convert(name, digits, type), 2.0**power)

    mask, half = integer(_LOW, high.type), integer(32, high.type)
    a = scaled("sitofp", f.binary("ashr", high, half), -32)
    b = scaled("uitofp", f.binary("and", high, mask), -64)
    c = scaled("uitofp", f.binary("lshr", low, half), -96)
    d = scaled("uitofp", f.binary("and", low, mask), -128)
    # As a sum of two doubles; where a cancels b, what is left moves up.
    near = add(f, a, b)
    rest = add(f, sub(f, b, sub(f, near, a)), add(f, c, d))
    top = add(f, near, rest)
    rest = sub(f, rest, sub(f, top, near))
    product = mul(f, top, math.pi / 2)
    lost = fma(f, top, math.pi / 2, f.fneg(product))
    lost = fma(f, top, 6.123233995736766e-17, lost)
    return add(f, product, fma(f, rest, math.pi / 2, lost))
