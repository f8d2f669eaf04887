"""Random numbers from counters (`fuser/frontends/torch/draws.py`): Philox 4x32-10.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The counter of an
element is (its index, 0, the number of the draw, 0), the key the two halves of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser import dtypes
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import aten
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, product
from fuser.graph.ir import Value

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


@aten("random_uniform")
def random_uniform(b: Builder, seed: Value, number: int, shape: Sequence[Dim], bits: int) -> Value:
    first, second = _words(b, seed, number, shape)
    if bits > 24:
        high = b.map("mul", b.cast(b.map("shift_right", first, 5), dtypes.f64), 2.0**-27)
        low = b.map("mul", b.cast(b.map("shift_right", second, 6), dtypes.f64), 2.0**-53)
        return b.reshape(b.map("add", high, low), shape)
    whole = b.cast(b.map("shift_right", first, 32 - bits), dtypes.f32)
    return b.reshape(b.map("mul", whole, 2.0**-bits), shape)


@aten("random_normal")
def random_normal(b: Builder, seed: Value, number: int, shape: Sequence[Dim]) -> Value:
    first, second = _words(b, seed, number, shape)
    size = b.cast(b.map("add", b.map("shift_right", first, 8), 1), dtypes.f32)
    angle = b.cast(b.map("shift_right", second, 8), dtypes.f32)
    radius = b.map("sqrt", b.map("mul", b.map("log", b.map("mul", size, 2.0**-24)), -2.0))
    turn = b.map("cos", b.map("mul", angle, 2.0**-24 * 6.283185307179586))
    return b.reshape(b.map("mul", radius, turn), shape)


def _words(b: Builder, seed: Value, number: int, shape: Sequence[Dim]) -> tuple[Value, Value]:
    """Two words for each element, in one axis."""
    count = product(tuple(shape))
    if isinstance(count, int) and count >= 1 << 32:
        raise UnsupportedError("random numbers for more than 2**32 elements")
    word = dtypes.u32
    low = b.cast(b.map("bitwise_and", seed, 0xFFFFFFFF), word)
    high = b.cast(b.map("bitwise_and", b.map("shift_right", seed, 32), 0xFFFFFFFF), word)
    c0 = b.iota((count,), 0, word)
    c1: Value = b.scalar(0, word)
    c2: Value = b.scalar(number, word)
    c3: Value = b.scalar(0, word)
    first, second = (b.scalar(n, word) for n in MULTIPLIERS)
    for at in range(ROUNDS):
        if at:
            low, high = b.map("add", low, KEY_STEPS[0]), b.map("add", high, KEY_STEPS[1])
        above, below = b.map("mul_high", second, c2), b.map("mul", second, c2)
        left, right = b.map("mul_high", first, c0), b.map("mul", first, c0)
        c0 = b.map("bitwise_xor", b.map("bitwise_xor", above, c1), low)
        c2 = b.map("bitwise_xor", b.map("bitwise_xor", left, c3), high)
        c1, c3 = below, right
    whole = (count,)
    return b.broadcast_to(c0, whole), b.broadcast_to(c1, whole)
