"""Tiles of any extent; constant indices and slices of tiles and of pointers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch

EVERY = pytest.mark.parametrize("device", DEVICES)
EXTENTS = [1, 3, 48, 96, 100, 7168]


@fuser.kernel
def row_statistics(x: Any, sums: Any, tops: Any, places: Any, scan: Any, N: fl.constexpr) -> Any:
    row = fl.program_id(0)
    at = fl.arange(0, N)
    tile = fl.load(x + row * N + at)
    fl.store(sums + row, fl.sum(tile, 0))
    fl.store(tops + row, fl.max(tile, 0))
    fl.store(places + row, fl.argmin(tile, 0))
    fl.store(scan + row * N + at, fl.cumsum(tile, 0))


@EVERY
@pytest.mark.parametrize("n", EXTENTS)
def test_folds_and_scans(device: str, n: int) -> None:
    x = np.random.default_rng(n).integers(-50, 50, (3, n)).astype(np.float32)
    sums, tops, scan = np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros_like(x)
    places = np.zeros(3, np.int32)
    launch(row_statistics, device, x, sums, tops, places, scan, grid=(3,), N=n)
    np.testing.assert_array_equal(sums, x.sum(1))
    np.testing.assert_array_equal(tops, x.max(1))
    np.testing.assert_array_equal(places, x.argmin(1))
    np.testing.assert_array_equal(scan, x.cumsum(1))


@fuser.kernel
def product(a: Any, b: Any, out: Any, M: fl.constexpr, N: fl.constexpr, K: fl.constexpr) -> Any:
    rows, cols, k = fl.arange(0, M), fl.arange(0, N), fl.arange(0, K)
    x = fl.load(a + rows[:, None] * K + k[None, :])
    y = fl.load(b + k[:, None] * N + cols[None, :])
    fl.store(out + rows[:, None] * N + cols[None, :], fl.dot(x, y, input_precision="ieee"))


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(48, 96, 80), (1, 48, 7), (100, 3, 36), (16, 24, 17), (33, 65, 129)]
)
def test_products(device: str, m: int, n: int, k: int, dtype: Any) -> None:
    rng = np.random.default_rng(m)
    a = rng.integers(-8, 8, (m, k)).astype(dtype)
    b = rng.integers(-8, 8, (k, n)).astype(dtype)
    out = np.zeros((m, n), np.float32)
    launch(product, device, a, b, out, M=m, N=n, K=k)
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


@fuser.kernel
def reshaped(x: Any, out: Any) -> Any:
    tile = fl.load(x + fl.arange(0, 90)).reshape(6, 15)
    turned = tile.trans().reshape(5, 3, 6)
    fl.store(out + fl.arange(0, 30), fl.sum(turned, 1).reshape(30))


@EVERY
def test_reshapes(device: str) -> None:
    x = np.arange(90, dtype=np.int32) ** 2
    out = np.zeros(30, np.int32)
    launch(reshaped, device, x, out)
    want = x.reshape(6, 15).T.reshape(5, 3, 6).sum(1).reshape(30)
    np.testing.assert_array_equal(out, want)


@fuser.kernel
def own_fold(x: Any, out: Any, N: fl.constexpr) -> Any:
    tile = fl.load(x + fl.arange(0, N))
    fl.store(out, fl.reduce(tile, 0, larger))


@fuser.kernel
def larger(a: Any, b: Any) -> Any:
    return fl.maximum(a, b)


@fuser.kernel
def last_of(a: Any, b: Any) -> Any:
    return b


@fuser.kernel
def own_last(x: Any, out: Any, N: fl.constexpr) -> Any:
    tile = fl.load(x + fl.arange(0, N))
    fl.store(out, fl.reduce(tile, 0, last_of))


@EVERY
@pytest.mark.parametrize("n", [1, 2, 5, 48, 49])
def test_folds_with_a_function(device: str, n: int) -> None:
    x = np.random.default_rng(n).permutation(n).astype(np.int32)
    out = np.full(1, -1, np.int32)
    launch(own_fold, device, x, out, N=n)
    assert out[0] == n - 1
    launch(own_last, device, x, out, N=n)  # the elements keep their order
    assert out[0] == x[-1]


# slices -------------------------------------------------------------------------------------------


@fuser.kernel
def sliced(x: Any, out: Any, loaded: fl.constexpr) -> Any:
    rows, cols = fl.arange(0, 6), fl.arange(0, 10)
    tile = fl.load(x + rows[:, None] * 10 + cols[None, :])
    if not loaded:
        tile = rows[:, None] * 10 + cols[None, :]
    fl.store(out + fl.arange(0, 10), tile[3])
    fl.store(out + 10 + fl.arange(0, 6), tile[:, 1])
    fl.store(out + 16 + fl.arange(0, 6), tile[..., -1])
    part = tile[2:6, ::3]
    fl.store(out + 22 + fl.arange(0, 4)[:, None] * 4 + fl.arange(0, 4)[None, :], part)
    fl.store(out + 38 + fl.arange(0, 5), tile[-2, 1::2])
    fl.store(out + 43, tile[4, 7])
    fl.store(out + 44 + fl.arange(0, 6), tile[::-1, 4])
    fl.store(out + 50 + fl.arange(0, 3)[None, :], tile[1, None, 2:5])
    fl.store(out + 53 + fl.arange(0, 1), tile[0:1, 5].reshape(1))


def sliced_by_numpy(x: np.ndarray) -> np.ndarray:
    parts = (
        x[3], x[:, 1], x[..., -1], x[2:6, ::3], x[-2, 1::2], x[4, 7], x[::-1, 4], x[1, None, 2:5],
        x[0:1, 5],
    )  # fmt: skip
    return np.concatenate([np.ravel(part) for part in parts])


@EVERY
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16, np.float64, np.bool_, np.int8])
def test_slices_of_tiles(device: str, dtype: Any) -> None:
    x = np.random.default_rng(1).integers(0, 2, (6, 10)).astype(dtype)
    out = np.zeros(54, dtype)
    launch(sliced, device, x, out, loaded=True)
    np.testing.assert_array_equal(out, sliced_by_numpy(x))


@EVERY
def test_slices_of_index_expressions(device: str) -> None:
    x, out = np.zeros((6, 10), np.int32), np.zeros(54, np.int32)
    launch(sliced, device, x, out, loaded=False)
    np.testing.assert_array_equal(out, sliced_by_numpy(np.arange(60).reshape(6, 10)))


@fuser.kernel
def sliced_pointers(x: Any, ids: Any, out: Any, n: Any) -> Any:
    rows = fl.load(ids + fl.arange(0, 4))
    where = x + rows[:, None] * n + fl.arange(0, 8)[None, :]
    inside = fl.arange(0, 8) < n
    fl.store(out + fl.arange(0, 8), fl.load(where[2], inside))
    fl.store(out + 8 + fl.arange(0, 4), fl.load(where[:, 3]))
    fl.store(out + 12 + fl.arange(0, 2)[:, None] * 2 + fl.arange(0, 2), fl.load(where[1:3, ::4]))
    fl.store(out + 16 + fl.arange(0, 3), fl.load(where[3, 1:4], inside[4:7]))
    fl.store(out + 19, fl.load(where[3, 0]))


@EVERY
def test_slices_of_pointers_and_masks(device: str) -> None:
    x = np.arange(50, dtype=np.float32).reshape(10, 5)
    ids = np.array([7, 2, 9, 0], np.int32)
    out = np.zeros(20, np.float32)
    launch(sliced_pointers, device, x, ids, out, 5)
    row = np.append(x[9], [0, 0, 0])
    pairs = [x[2, 0], x[2, 4], x[9, 0], x[9, 4]]
    want = [*row, *x[ids, 3], *pairs, x[0, 1], 0, 0, x[0, 0]]
    np.testing.assert_array_equal(out, want)


@fuser.kernel
def bad_index(out: Any, at: fl.constexpr) -> Any:
    tile = fl.arange(0, 6)
    fl.store(out, tile[at])


@pytest.mark.parametrize("at", [6, -7])
def test_an_index_outside_of_a_tile(at: int) -> None:
    with pytest.raises(LanguageError, match=f"the index {at} of an axis of 6"):
        bad_index[(1,)](np.zeros(1, np.int32), at=at)
