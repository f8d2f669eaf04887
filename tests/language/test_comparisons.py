"""Chains of comparisons: of what is known while compiling, of numbers, of tiles, and of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch


@triton.jit
def known(out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    if A < B <= C:
        tl.store(out, 1.0)
    elif A >= B > C:
        tl.store(out, 2.0)
    else:
        tl.store(out, 3.0)


@pytest.mark.parametrize(
    ("numbers", "want"),
    [((0, 16, 16), 1), ((0, 17, 16), 3), ((5, 5, 4), 2), ((5, 6, 4), 3), ((0.5, 1, 1.5), 1),
     ((3, 2, 1), 2), ((-1, 0, 0), 1)],
)  # fmt: skip
def test_constants(numbers: tuple[Any, ...], want: int) -> None:
    out = np.zeros(1, np.float32)
    known[(1,)](out, *numbers)
    assert out[0] == want


@fuser.kernel
def numbers_of_a_launch(out, a, n, c, B: fl.constexpr):
    fl.store(out, 1.0 if a < n < c else 0.0)
    if 0 < n <= B:
        fl.store(out + 1, 1.0)
    fl.store(out + 2, fl.where(a < n == c, 1.0, 0.0))
    fl.store(out + 3, fl.where(a != n > c >= 3, 1.0, 0.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("a", "n", "c"), [(3, 7, 9), (7, 7, 9), (3, 9, 9), (3, 70, 9), (9, 7, 3), (2, 7, 2)]
)
def test_numbers(a: int, n: int, c: int, device: str) -> None:
    out = np.zeros(4, np.float32)
    launch(numbers_of_a_launch, device, out, a, n, c, B=16)
    assert out.tolist() == [a < n < c, 0 < n <= 16, a < n == c, a != n > c >= 3]


@fuser.kernel
def tiles(x, out, low, N: fl.constexpr, HIGH: fl.constexpr):
    at = fl.arange(0, N)
    value = fl.load(x + at)
    inside = low <= at < N - 2
    fl.store(out + at, fl.where(low < value <= HIGH, value, -100.0), inside)
    fl.store(out + N + at, fl.where(low < value < HIGH > at, 1.0, 0.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [16, 32, 128])
def test_tiles_and_masks(size: int, device: str) -> None:
    x = np.random.default_rng(size).integers(-20, 20, size).astype(np.float32)
    x[-1] = np.nan
    out = np.zeros(2 * size, np.float32)
    launch(tiles, device, x, out, 3, N=size, HIGH=9)
    at = np.arange(size)
    want = np.where((x > 3) & (x <= 9), x, -100)
    want[(at < 3) | (at >= size - 2)] = 0
    np.testing.assert_array_equal(out[:size], want)
    np.testing.assert_array_equal(out[size:], (x > 3) & (x < 9) & (at < 9))


@fuser.kernel
def counted(counter, out, n):
    fl.store(out, 1.0 if 0 <= fl.atomic_add(counter, 1) < n else 0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_an_operand_is_computed_once(device: str) -> None:
    counter, out = np.array([4], np.int32), np.zeros(1, np.float32)
    launch(counted, device, counter, out, 5)
    assert (counter[0], out[0]) == (5, 1)
    launch(counted, device, counter, out, 5)
    assert (counter[0], out[0]) == (6, 0)


def test_what_follows_a_known_false_is_not_computed() -> None:
    @triton.jit
    def kernel(counter, out, A: tl.constexpr):
        if A < 3 < tl.atomic_add(counter, 1):
            tl.store(out, 1.0)

    counter, out = np.array([7], np.int32), np.zeros(1, np.float32)
    kernel[(1,)](counter, out, A=3)
    assert (counter[0], out[0]) == (7, 0)
    kernel[(1,)](counter, out, A=2)
    assert (counter[0], out[0]) == (8, 1)


def test_identity_and_membership_in_a_chain() -> None:
    @triton.jit
    def kernel(out, A: tl.constexpr, B: tl.constexpr):
        if A is not None in (None, 3):
            tl.store(out, 1.0)
        if 0 < B in (2, 3):
            tl.store(out + 1, 1.0)

    for a, b in ((None, 2), (3, 2), (3, 5), (3, -2)):
        out = np.zeros(2, np.float32)
        kernel[(1,)](out, A=a, B=b)
        assert out.tolist() == [a is not None, 0 < b in (2, 3)]


def test_a_loop_goes_on_while_a_chain_holds() -> None:
    @fuser.kernel
    def kernel(out, n, most):
        i = 0
        while 0 <= i < n != most:
            i += 1
        fl.store(out, i)

    out = np.zeros(1, np.int32)
    kernel[(1,)](out, 6, 7)
    assert out[0] == 6
    kernel[(1,)](out, 6, 6)
    assert out[0] == 0


def test_a_chain_of_what_does_not_compare_points_at_it() -> None:
    @triton.jit
    def kernel(out, n):
        if 0 < n < "text":
            tl.store(out, 1.0)

    with pytest.raises(LanguageError, match="'text' is not a number"):
        kernel[(1,)](np.zeros(1, np.float32), 5)
