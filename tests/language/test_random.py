"""Random numbers: bits of Philox, and the distributions made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.language.launching import DEVICES, launch

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int], bits: int = 32) -> Words:
    """The ten rounds in whole numbers of Python."""
    mask = (1 << bits) - 1
    m0, m1 = (0xD2511F53, 0xCD9E8D57) if bits == 32 else (0xD2E7470EE14C6C93, 0xCA5A826395121157)
    w0, w1 = (0x9E3779B9, 0xBB67AE85) if bits == 32 else (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (b >> bits) ^ c1 ^ k0, b & mask, (a >> bits) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return c0, c1, c2, c3


KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]  # fmt: skip
"""The known answers of the Random123 library (kat_vectors, philox4x32 10)."""


@fuser.kernel
def rounds(counter, key, out, WORD: fl.constexpr):
    words = fl.philox_impl(
        fl.load(counter).to(WORD), fl.load(counter + 1).to(WORD), fl.load(counter + 2).to(WORD),
        fl.load(counter + 3).to(WORD), fl.load(key).to(WORD), fl.load(key + 1).to(WORD),
    )  # fmt: skip
    for k in fl.static_range(4):
        fl.store(out + k, words[k])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(counter: Words, key: tuple[int, int], want: Words, device: str) -> None:
    assert philox(counter, key) == want
    out = np.zeros(4, np.uint32)
    arrays = np.array(counter, np.uint32), np.array(key, np.uint32), out
    launch(rounds, device, *arrays, WORD=fl.uint32)
    assert tuple(out.tolist()) == want


@pytest.mark.parametrize("device", DEVICES)
def test_words_of_64_bits(device: str) -> None:
    counter, key = (2**64 - 1, 1 << 40, 7, 9), (0x0123456789ABCDEF, 5)
    out = np.zeros(4, np.uint64)
    arrays = np.array(counter, np.uint64), np.array(key, np.uint64), out
    launch(rounds, device, *arrays, WORD=fl.uint64)
    assert tuple(out.tolist()) == philox(counter, key, 64)


@fuser.kernel
def streams(seed, first, ints, floats, normal, N: fl.constexpr):
    at = fl.arange(0, N)
    offset = first + at
    a, b, c, d = fl.randint4x(seed, offset)
    u = fl.rand4x(seed, offset)
    n = fl.randn4x(seed, offset)
    fl.store(ints + at, a)
    fl.store(ints + N + at, b)
    fl.store(ints + 2 * N + at, c)
    fl.store(ints + 3 * N + at, d)
    fl.store(ints + 4 * N + at, fl.randint(seed, offset))
    for k in fl.static_range(4):
        fl.store(floats + k * N + at, u[k])
        fl.store(normal + k * N + at, n[k])
    fl.store(floats + 4 * N + at, fl.rand(seed, offset))
    fl.store(normal + 4 * N + at, fl.randn(seed, offset))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 42, 2**31 + 5, 0x123456789ABCDEF])
@pytest.mark.parametrize("first", [3, 2**31, 2**40])
def test_counters_are_offsets_and_keys_are_seeds(seed: int, first: int, device: str) -> None:
    count = 64
    ints = np.zeros((5, count), np.uint32)
    floats, normal = (np.zeros((5, count), np.float32) for _ in range(2))
    launch(streams, device, seed, first, ints, floats, normal, N=count)
    key = seed & 0xFFFFFFFF, seed >> 32
    offsets = [first + n for n in range(count)]
    want = np.array([philox((n & 0xFFFFFFFF, n >> 32, 0, 0), key) for n in offsets], np.uint32).T
    np.testing.assert_array_equal(ints, want[[0, 1, 2, 3, 0]])
    signed = want.view(np.int32).astype(np.int64)
    size = np.where(signed < 0, -signed - 1, signed).astype(np.float32)
    uniform = size * np.float32(4.6566127342e-10)
    np.testing.assert_array_equal(floats, uniform[[0, 1, 2, 3, 0]])
    wide = uniform.astype(np.float64)
    radius = np.sqrt(-2 * np.log(np.maximum(wide[::2], 1e-7)))
    angle = 2 * np.pi * wide[1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(4, count)
    np.testing.assert_allclose(normal, pairs[[0, 1, 2, 3, 0]], rtol=1e-4, atol=1e-5)


@fuser.kernel
def many(seed, out, N: fl.constexpr):
    at = fl.program_id(0) * N + fl.arange(0, N)
    fl.store(out + at, fl.randn(seed, at))


def test_normal_numbers_are_normal() -> None:
    out = np.zeros(1 << 16, np.float32)
    launch(many, "cpu", 5, out, grid=(64,), N=1024)
    assert abs(out.mean()) < 0.02 and abs(out.std() - 1) < 0.02
    assert abs(np.mean(np.abs(out) < 1) - 0.6827) < 0.01


@fuser.kernel
def converted(x, out, N: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, fl.uint_to_uniform_float(fl.load(x + at)))


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.uint64, np.int64])
def test_every_word_is_below_one(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, info.max // 2, 0, info.max - 1, 1, 2, 3], dtype)
    out = np.zeros(8, np.float32)
    launch(converted, "cpu", x, out, N=8)
    assert (out >= 0).all() and (out < 1).all()
