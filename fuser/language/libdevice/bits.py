"""Bits of integers and floats: counts, orders, signs, neighbours."""

from __future__ import annotations

from typing import Any

from fuser.language.emitter import Emitter
from fuser.language.libdevice.registry import floats, plain, whole
from fuser.language.tensors import Tensor
from fuser.language.terms import Formula, Term
from fuser.language.types import (
    ElementType,
    float32,
    float64,
    int1,
    int32,
    int64,
    uint32,
    uint64,
)

WORDS: dict[int, ElementType] = {32: uint32, 64: uint64}
SIGNED: dict[int, ElementType] = {32: int32, 64: int64}
MANTISSA = {32: 23, 64: 52}


def number(t: Formula, value: int, like: Term) -> Term:
    """A constant of a term's type."""
    return Term(t.e, t.e.constant(value, like.dtype, like.value.shape))


def real(t: Formula, value: float, like: Term) -> Term:
    """A float of a term's type."""
    return Term(t.e, t.e.constant(value, like.dtype, like.value.shape))


def _unsigned(x: Term) -> Term:
    return x.bits(WORDS[x.dtype.bits])


def _ones(x: Term) -> int:
    return (1 << x.dtype.bits) - 1


def _repeated(x: Term, byte: int) -> int:
    return _ones(x) // 0xFF * byte


# integers -----------------------------------------------------------------------------------------


def ones_in(t: Formula, x: Term) -> Term:
    """How many bits are set: sums of 2, 4, 8 bits in place, then of all bytes by a product."""
    word = _unsigned(x)

    def n(value: int) -> Term:
        return number(t, value, word)

    pairs = word - ((word >> n(1)) & n(_repeated(word, 0x55)))
    fours = (pairs & n(_repeated(word, 0x33))) + ((pairs >> n(2)) & n(_repeated(word, 0x33)))
    bytes_ = (fours + (fours >> n(4))) & n(_repeated(word, 0x0F))
    return ((bytes_ * n(_repeated(word, 0x01))) >> n(word.dtype.bits - 8)).to(int32)


@whole(result=int32)
def popc(t: Formula, x: Term) -> Term:
    """How many bits are set."""
    return ones_in(t, x)


@whole(result=int32)
def clz(t: Formula, x: Term) -> Term:
    """How many bits are 0 before the first that is set."""
    word = _unsigned(x)
    shift = 1
    while shift < word.dtype.bits:
        word = word | (word >> number(t, shift, word))
        shift *= 2
    return ones_in(t, ~word)


@whole(result=int32)
def ffs(t: Formula, x: Term) -> Term:
    """The place of the lowest bit that is set, from 1 on; 0 where none is."""
    word = _unsigned(x)
    below = (word & (~word + number(t, 1, word))) - number(t, 1, word)
    return t.where(word == number(t, 0, word), 0, ones_in(t, below) + 1)


@whole()
def brev(t: Formula, x: Term) -> Term:
    """The bits in reverse order."""
    word = _unsigned(x)
    bits = word.dtype.bits
    shift = 1
    while shift < bits:
        mask = sum(1 << n for n in range(bits) if not n & shift)
        low, step = number(t, mask, word), number(t, shift, word)
        word = ((word & low) << step) | ((word >> step) & low)
        shift *= 2
    return word.bits(x.dtype)


@whole(bits=(32,))
def byte_perm(t: Formula, x: Term, y: Term, s: Term) -> Term:
    """Four of the eight bytes of x and y: those that the lower bits of each half byte of s name."""
    both = _unsigned(x).to(uint64) | (_unsigned(y).to(uint64) << number(t, 32, _zero64(t, x)))
    chosen = _unsigned(s).to(uint64)
    found = _zero64(t, x)
    for place in range(4):
        which = (chosen >> number(t, 4 * place, chosen)) & number(t, 7, chosen)
        byte = (both >> (which << number(t, 3, which))) & number(t, 0xFF, both)
        found = found | (byte << number(t, 8 * place, byte))
    return found.to(uint32).bits(x.dtype)


def _zero64(t: Formula, x: Term) -> Term:
    return Term(t.e, t.e.constant(0, uint64, x.value.shape))


@whole()
def mulhi(t: Formula, x: Term, y: Term) -> Term:
    """The upper half of a product, signed as its operands are."""
    return t.map("mul_high", x, y)


@whole(bits=(32,))
def mul24(t: Formula, x: Term, y: Term) -> Term:
    """The product of the lower 24 bits."""
    eight = number(t, 8, x)
    return ((x << eight) >> eight) * ((y << eight) >> eight)


@plain("sad")
def sad(e: Emitter, x: Any, y: Any, z: Any) -> Tensor:
    """|x - y| + z, the last unsigned."""
    t = Formula(e)
    a, b = t(x), t(y)
    if a.dtype not in (int32, uint32) or a.dtype != b.dtype:
        e.fail(f"libdevice.sad of {a.value.type} and {b.value.type}", "it takes 32-bit integers")
    gap = t.where(a > b, a - b, b - a).bits(uint32)
    return (gap + t(z).bits(uint32)).bits(a.dtype).value


@whole(bits=(32,))
def hadd(t: Formula, x: Term, y: Term) -> Term:
    """The mean of two, rounded down."""
    return (x & y) + ((x ^ y) >> number(t, 1, x))


@whole(bits=(32,))
def rhadd(t: Formula, x: Term, y: Term) -> Term:
    """The mean of two, rounded up."""
    return (x | y) - ((x ^ y) >> number(t, 1, x))


# bits of floats -----------------------------------------------------------------------------------


def bits_of(x: Term) -> Term:
    return x.bits(SIGNED[x.dtype.bits])


def with_sign(t: Formula, x: Term, sign: Term) -> Term:
    """|x| with the sign of another."""
    a, b = bits_of(x), bits_of(sign)
    top = number(t, -(1 << (a.dtype.bits - 1)), a)
    return ((a & ~top) | (b & top)).bits(x.dtype)


@floats()
def copysign(t: Formula, x: Term, y: Term) -> Term:
    """|x| with the sign of y."""
    return with_sign(t, x, y)


@floats(result=int32)
def signbit(t: Formula, x: Term) -> Term:
    """1 where the sign is set, else 0."""
    return t.where(bits_of(x) < 0, 1, 0)


@floats(result=int1)
def isnan(t: Formula, x: Term) -> Term:
    """Whether it is NaN."""
    return x != x


@floats(result=int1)
def isinf(t: Formula, x: Term) -> Term:
    """Whether it is an infinity."""
    return t.map("abs", x) == float("inf")


@floats("finitef", "isfinited", result=int1)
def _finite(t: Formula, x: Term) -> Term:
    """Whether it is neither NaN nor an infinity."""
    return t.map("abs", x) < float("inf")


def stepped(t: Formula, x: Term, up: Term) -> Term:
    """The next number above where `up` holds, else below; of zeros and infinities, too."""
    word = bits_of(x)
    least = t.where(up, real(t, 0.0, x), real(t, -0.0, x))
    word = t.where(x == 0.0, bits_of(least), word)
    grows = up == (bits_of(t.where(x == 0.0, least, x)) >= 0)
    return t.where(grows, word + 1, word - 1).bits(x.dtype)


@floats()
def nextafter(t: Formula, x: Term, y: Term) -> Term:
    """The next number from x toward y."""
    found = t.where(x == y, y, stepped(t, x, y > x))
    return t.where((x != x) | (y != y), x + y, found)


def _as(name: str, source: tuple[ElementType, ...], target: ElementType) -> None:
    @plain(name)
    def call(e: Emitter, x: Any) -> Tensor:
        t = Formula(e)
        given = t(x)
        if given.dtype not in source:
            e.fail(f"libdevice.{name} of {given.value.type}", f"it takes {source[0]}")
        return given.bits(target).value

    call.__doc__ = f"The bits as {target}."


_as("int_as_float", (int32,), float32)
_as("uint_as_float", (uint32, int32), float32)
_as("float_as_int", (float32,), int32)
_as("float_as_uint", (float32,), uint32)
_as("longlong_as_double", (int64,), float64)
_as("double_as_longlong", (float64,), int64)


@floats(result=int32, only="fp64")
def double2loint(t: Formula, x: Term) -> Term:
    """The lower 32 bits."""
    return x.bits(uint64).to(uint32).bits(int32)


@floats(result=int32, only="fp64")
def double2hiint(t: Formula, x: Term) -> Term:
    """The upper 32 bits."""
    word = x.bits(uint64)
    return (word >> number(t, 32, word)).to(uint32).bits(int32)


@whole(bits=(32,), result=float64)
def hiloint2double(t: Formula, high: Term, low: Term) -> Term:
    """A float64 of two halves of its bits."""
    upper = _unsigned(high).to(uint64)
    return ((upper << number(t, 32, upper)) | _unsigned(low).to(uint64)).bits(float64)
