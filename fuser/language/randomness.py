"""Random numbers from counters: Philox 4x32-10 and 4x64-10, and what is made of their words.

Bits depend on the seed and the offset alone, so a program may compute any of them at any time.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (constants, rounds).
The counter of an element is (low word of its offset, high word, 0, 0), the key the two halves of
the seed, and a word becomes a float by its distance from zero as a signed number: as in Triton.
"""

from __future__ import annotations

from typing import Any

from fuser.language import shapes
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin, static_int
from fuser.language.tensors import Tensor
from fuser.language.terms import Formula, Term
from fuser.language.types import ElementType, float32, int32, int64, uint32, uint64

ROUNDS = 10
MULTIPLIERS = {32: (0xD2511F53, 0xCD9E8D57), 64: (0xD2E7470EE14C6C93, 0xCA5A826395121157)}
KEY_STEPS = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}
WORDS: dict[int, ElementType] = {32: uint32, 64: uint64}
TO_UNIT = {32: 4.6566127342e-10, 64: 1.0842020432385337e-19}
"""Just under 2**-31 and 2**-63: the greatest word stays below 1 after rounding."""
LEAST_UNIFORM = 1.0e-7
"""What the logarithm of Box and Muller is taken of at least."""


def _rounds(t: Formula, counter: list[Term], key: list[Term], rounds: int) -> list[Term]:
    bits = counter[0].dtype.bits
    word = WORDS[bits]
    first, second = (t(n, word) if bits == 32 else _word64(t, n) for n in MULTIPLIERS[bits])
    steps = [t(n, word) if bits == 32 else _word64(t, n) for n in KEY_STEPS[bits]]
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(rounds):
        if number:
            k0, k1 = k0 + steps[0], k1 + steps[1]
        c0, c1, c2, c3 = (
            t.umulhi(second, c2) ^ c1 ^ k0,
            second * c2,
            t.umulhi(first, c0) ^ c3 ^ k1,
            first * c0,
        )
    return [c0, c1, c2, c3]


def _word64(t: Formula, number: int) -> Term:
    return Term(t.e, t.e.constant(number, uint64))


@builtin("philox_impl")
def philox_impl(
    e: Emitter, c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = ROUNDS
) -> tuple[Tensor, ...]:
    """Four words from a counter and a key of unsigned words, 32 or 64 bits each."""
    t = Formula(e)
    counter = [t(item) for item in (c0, c1, c2, c3)]
    word = counter[0].dtype
    if word not in (uint32, uint64):
        e.fail(f"philox_impl of {counter[0].value.type}", "its words are uint32 or uint64")
    key = [t(item, word) for item in (k0, k1)]
    rounds = static_int(e, n_rounds, "the number of rounds")
    return tuple(item.value for item in _rounds(t, counter, key, rounds))


@builtin("philox")
def philox(
    e: Emitter, seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: Any = ROUNDS
) -> tuple[Tensor, ...]:
    """Four words from a seed and a counter of four words, 32 or 64 bits each."""
    t = Formula(e)
    given = t(seed)
    if not given.dtype.is_int():
        e.fail(f"a seed that is a {given.value.type}", "it is a whole number")
    wide = given.to(uint64)
    counter = [t(item) for item in (c0, c1, c2, c3)]
    bits = counter[0].dtype.bits
    if bits not in WORDS or not counter[0].dtype.is_int():
        e.fail(f"philox of {counter[0].value.type}", "its counters have 32 or 64 bits")
    word = WORDS[bits]
    words = [item.bits(word) if item.dtype.bits == bits else item.to(word) for item in counter]
    if bits == 32:
        key = [wide.to(uint32), (wide >> t(32, uint64)).to(uint32)]
    else:
        key = [wide, t(0, uint64)]
    rounds = static_int(e, n_rounds, "the number of rounds")
    return tuple(item.value for item in _rounds(t, words, key, rounds))


@builtin("randint4x")
def randint4x(e: Emitter, seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> tuple[Tensor, ...]:
    """Four random words of 32 bits for each offset."""
    t = Formula(e)
    at = t(offset)
    if not at.dtype.is_int():
        e.fail(f"offsets that are {at.value.type}", "they are whole numbers")
    low = at.to(uint32)
    zero = shapes.broadcast_to(e, e.constant(0, uint32), low.value.shape)
    high = zero
    if at.dtype.bits > 32:
        high = (at >> t(32, at.dtype)).to(uint32).value
    return philox(e, seed, low.value, high, zero, zero, n_rounds)  # type: ignore[no-any-return]


@builtin("randint")
def randint(e: Emitter, seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> Tensor:
    """A random word of 32 bits for each offset."""
    return randint4x(e, seed, offset, n_rounds)[0]  # type: ignore[no-any-return]


@builtin("uint_to_uniform_float")
def uint_to_uniform_float(e: Emitter, x: Any) -> Tensor:
    """A random word as a float in [0, 1)."""
    t = Formula(e)
    word = t(x)
    if word.dtype not in (uint32, int32, uint64, int64):
        e.fail(f"uint_to_uniform_float of {word.value.type}", "a word has 32 or 64 bits")
    bits = word.dtype.bits
    signed = word.bits(int32 if bits == 32 else int64)
    size = t.where(signed < 0, -signed - 1, signed)
    return (size.to(float32) * TO_UNIT[bits]).value


@builtin("rand4x")
def rand4x(e: Emitter, seed: Any, offsets: Any, n_rounds: Any = ROUNDS) -> tuple[Tensor, ...]:
    """Four random floats in [0, 1) for each offset."""
    words = randint4x(e, seed, offsets, n_rounds)
    return tuple(uint_to_uniform_float(e, word) for word in words)


@builtin("rand")
def rand(e: Emitter, seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> Tensor:
    """A random float in [0, 1) for each offset."""
    return uint_to_uniform_float(e, randint(e, seed, offset, n_rounds))  # type: ignore[no-any-return]


@builtin("pair_uniform_to_normal")
def pair_uniform_to_normal(e: Emitter, u1: Any, u2: Any) -> tuple[Tensor, Tensor]:
    """Two numbers of the normal distribution from two of the uniform one (Box and Muller)."""
    t = Formula(e)
    first, angle = t(u1), t(u2) * 6.283185307179586
    least = t.map("fmax", *_alike(t, first, t(LEAST_UNIFORM, first.dtype)))
    radius = t.map("sqrt", t.map("log", least) * -2.0)
    return (radius * t.map("cos", angle)).value, (radius * t.map("sin", angle)).value


def _alike(t: Formula, a: Term, b: Term) -> tuple[Term, Term]:
    x, y = shapes.broadcast_together(t.e, a.value, b.value)
    return Term(t.e, x), Term(t.e, y)


@builtin("randn4x")
def randn4x(e: Emitter, seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> tuple[Tensor, ...]:
    """Four random floats of the normal distribution for each offset."""
    u1, u2, u3, u4 = rand4x(e, seed, offset, n_rounds)
    return *pair_uniform_to_normal(e, u1, u2), *pair_uniform_to_normal(e, u3, u4)


@builtin("randn")
def randn(e: Emitter, seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> Tensor:
    """A random float of the normal distribution for each offset."""
    words = randint4x(e, seed, offset, n_rounds)
    u1, u2 = (uint_to_uniform_float(e, word) for word in words[:2])
    return pair_uniform_to_normal(e, u1, u2)[0]  # type: ignore[no-any-return]
