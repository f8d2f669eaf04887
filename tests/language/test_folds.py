"""Folds, scans and maps with users' functions; argmax and argmin; pieces of tiles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(5)


@fuser.kernel
def extreme_places(x, value, place, M: fl.constexpr, N: fl.constexpr, LEFT: fl.constexpr):
    rows = fl.arange(0, M)
    data = fl.load(x + rows[:, None] * N + fl.arange(0, N)[None, :])
    high, at = fl.max(data, 1, return_indices=True, return_indices_tie_break_left=LEFT)
    fl.store(value + rows, high)
    fl.store(place + rows, at)
    fl.store(place + M + rows, fl.argmax(data, 1, tie_break_left=LEFT))
    fl.store(place + 2 * M + rows, data.argmin(1, tie_break_left=LEFT))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("left", [True, False])
def test_ties_go_to_the_side_that_was_asked_for(left: bool, dtype: Any, device: str) -> None:
    x = RNG.integers(0, 4, (8, 32)).astype(dtype)
    value, place = np.zeros(8, dtype), np.zeros((3, 8), np.int32)
    launch(extreme_places, device, x, value, place, M=8, N=32, LEFT=left)
    flat = x if left else x[:, ::-1]
    high, low = flat.argmax(1), flat.argmin(1)
    if not left:
        high, low = 31 - high, 31 - low
    np.testing.assert_array_equal(place, [high, high, low])
    np.testing.assert_array_equal(value, x.max(1))


def test_nan_is_no_extreme_and_all_nan_has_a_place() -> None:
    x = np.array([[np.nan, 1, 3, 2], [np.nan] * 4], np.float32)
    value, place = np.zeros(2, np.float32), np.zeros((3, 2), np.int32)
    launch(extreme_places, "cpu", x, value, place, M=2, N=4, LEFT=True)
    assert place.tolist() == [[2, 0], [2, 0], [1, 0]]
    assert value[0] == 3 and np.isnan(value[1])


@fuser.kernel
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@fuser.kernel
def recurrence(a, b, out, M: fl.constexpr, N: fl.constexpr, REVERSE: fl.constexpr):
    at = fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :]
    pair = (fl.load(a + at), fl.load(b + at))
    _, state = fl.associative_scan(pair, 1, affine, reverse=REVERSE)
    fl.store(out + at, state)
    _, last = fl.reduce(pair, 1, affine)
    fl.store(out + M * N + fl.arange(0, M), last)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence_is_a_scan_of_pairs(reverse: bool, device: str) -> None:
    a, b = (RNG.uniform(0.5, 1, (4, 32)).astype(np.float32) for _ in range(2))
    out = np.zeros(4 * 33, np.float32)
    launch(recurrence, device, a, b, out, M=4, N=32, REVERSE=reverse)

    def states(a: Any, b: Any) -> Any:
        state, found = np.zeros(4), []
        for k in range(32):
            state = a[:, k] * state + b[:, k]
            found.append(state)
        return np.stack(found, 1)

    forward = states(a, b)
    want = states(a[:, ::-1], b[:, ::-1])[:, ::-1] if reverse else forward
    np.testing.assert_allclose(out[:128].reshape(4, 32), want, rtol=1e-5)
    np.testing.assert_allclose(out[128:], forward[:, -1], rtol=1e-5)


@fuser.kernel
def running(x, out, N: fl.constexpr, REVERSE: fl.constexpr):
    at = fl.arange(0, N)
    data = fl.load(x + at)
    fl.store(out + at, fl.cumsum(data, 0, reverse=REVERSE))
    fl.store(out + N + at, data.cumprod(0, reverse=REVERSE))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32, np.int8])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_and_cumprod(reverse: bool, dtype: Any, device: str) -> None:
    x = RNG.choice([-1, 1, 2], 16).astype(dtype)
    out = np.zeros((2, 16), np.float32)
    launch(running, device, x, out, N=16, REVERSE=reverse)
    wide = x.astype(np.int64)
    flat = wide[::-1] if reverse else wide
    product = np.cumprod(flat)
    if np.dtype(dtype) == np.int8:
        product = product.astype(np.int8)
    want = np.stack([np.cumsum(flat), product])
    np.testing.assert_array_equal(out, want[:, ::-1] if reverse else want)


@fuser.kernel
def bit_folds(x, out, N: fl.constexpr):
    data = fl.load(x + fl.arange(0, N))
    fl.store(out, fl.xor_sum(data, 0))
    fl.store(out + 1, data.reduce_or(0))
    fl.store(out + 2, fl.sum(data, 0))
    fl.store(out + 3, fl.max(data, 0))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int16, np.uint16])
def test_folds_of_integers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = RNG.integers(info.min // 64, info.max // 64, 64).astype(dtype)
    out = np.zeros(4, np.int32)
    launch(bit_folds, "cpu", x, out, N=64)
    wide = x.astype(np.int64)
    found = [np.bitwise_xor.reduce(x), np.bitwise_or.reduce(x), wide.sum(), wide.max()]
    assert out.tolist() == [int(n) for n in found]


@fuser.kernel
def selu(x, alpha):
    if x > 0:
        result = x
    elif x < -4.0:
        result = -alpha
    else:
        result = alpha * (fl.exp(x) - 1)
    return result


@fuser.kernel
def early(x, y):
    if x > y:
        return x - y, x
    return y - x, y


@fuser.kernel
def swap_pairs(a0, a1, b0, b1):
    return a1 + b0, a0 + b1


@fuser.kernel
def maps(x, y, out, N: fl.constexpr):
    at = fl.arange(0, N)
    a = fl.load(x + at)
    b = fl.load(y + at)
    fl.store(out + at, fl.map_elementwise(selu, a, 1.5))
    gap, most = fl.map_elementwise(early, a, b)
    fl.store(out + N + at, gap)
    fl.store(out + 2 * N + at, most)
    fl.store(out + 3 * N + at, fl.map_elementwise(swap_pairs, a, b, pack=2))


@pytest.mark.parametrize("device", DEVICES)
def test_map_elementwise(device: str) -> None:
    x, y = ((RNG.standard_normal(64) * 4).astype(np.float32) for _ in range(2))
    out = np.zeros((4, 64), np.float32)
    launch(maps, device, x, y, out, N=64)
    with np.errstate(over="ignore"):
        want = np.where(x > 0, x, np.where(x < -4, -1.5, 1.5 * (np.exp(x) - 1)))
    np.testing.assert_allclose(out[0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out[1], np.abs(x - y))
    np.testing.assert_array_equal(out[2], np.maximum(x, y))
    np.testing.assert_array_equal(out[3], x.reshape(-1, 2)[:, ::-1].ravel() + y)


@fuser.kernel
def rearranged(x, y, out, M: fl.constexpr, N: fl.constexpr):
    at = fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :]
    wide = fl.arange(0, M)[:, None] * (2 * N) + fl.arange(0, 2 * N)[None, :]
    a = fl.load(x + at)
    b = fl.load(y + at)
    fl.store(out + wide, fl.interleave(a, b))
    out += 2 * M * N
    fl.store(out + wide, fl.cat(a, b, dim=1))
    out += 2 * M * N
    left, right = fl.join(a, b).split()
    fl.store(out + at, left - right)
    out += M * N
    fl.store(out + at, a.flip(0))
    out += M * N
    fl.store(out + at, fl.flip(a, -1))
    out += M * N
    fl.store(out + at, a.gather((fl.arange(0, N)[None, :] * 3 + fl.arange(0, M)[:, None]) % N, 1))
    out += M * N
    fl.store(out + at, fl.squeeze(a.unsqueeze(1), 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
def test_pieces_and_places(dtype: Any, device: str) -> None:
    x, y = (RNG.integers(-60, 60, (4, 8)).astype(dtype) for _ in range(2))
    out = np.zeros(9 * 32, dtype)
    launch(rearranged, device, x, y, out, M=4, N=8)
    places = (np.arange(8)[None, :] * 3 + np.arange(4)[:, None]) % 8
    want = [
        np.stack([x, y], -1), np.concatenate([x, y], 1), x - y, x[::-1], x[:, ::-1],
        np.take_along_axis(x, places, 1), x,
    ]  # fmt: skip
    np.testing.assert_array_equal(out, np.concatenate([item.ravel() for item in want]))
