"""sort, topk, bitonic_merge, histogram, swizzle2d against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(11)
KINDS = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8, np.int64]


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    return RNG.standard_normal(shape).astype(dtype)


@fuser.kernel
def sorted_rows(x, out, M: fl.constexpr, N: fl.constexpr, DIM: fl.constexpr, DOWN: fl.constexpr):
    at = fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :]
    fl.store(out + at, fl.sort(fl.load(x + at), DIM, descending=DOWN))


SMALL = (4, 16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "down", "dtype"),
    [
        *((SMALL, down, dtype) for dtype in KINDS for down in (False, True)),
        ((4, 64), False, np.float32), ((1, 512), True, np.float32),
        ((8, 2), False, np.float32), ((2, 1), True, np.float32),
    ],
)  # fmt: skip
def test_sort(shape: tuple[int, int], down: bool, dtype: Any, device: str) -> None:
    x = numbers(shape, dtype)
    out = np.zeros_like(x)
    launch(sorted_rows, device, x, out, M=shape[0], N=shape[1], DIM=None, DOWN=down)
    want = np.sort(x, 1)
    np.testing.assert_array_equal(out, want[:, ::-1] if down else want)


@pytest.mark.parametrize("device", DEVICES)
def test_sort_of_another_axis(device: str) -> None:
    x = numbers((32, 8), np.float32)
    out = np.zeros_like(x)
    launch(sorted_rows, device, x, out, M=32, N=8, DIM=0, DOWN=False)
    np.testing.assert_array_equal(out, np.sort(x, 0))


@fuser.kernel
def sorted_codes(x, out, N: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, fl.sort(fl.load(x + at).to(fl.float8e5)).to(fl.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_sort_of_8_bit_floats_compiles_in_seconds(device: str) -> None:
    x = numbers((64,), np.float32)
    out = np.zeros_like(x)
    launch(sorted_codes, device, x, out, N=64)
    np.testing.assert_array_equal(out, np.sort(x.astype(ml_dtypes.float8_e5m2).astype(np.float32)))


def test_sort_needs_a_power_of_two() -> None:
    x = numbers((2, 48), np.float32)
    with pytest.raises(LanguageError, match="power of 2"):
        sorted_rows[(1,)](x, x.copy(), M=2, N=48, DIM=None, DOWN=False)


@fuser.kernel
def greatest(x, out, M: fl.constexpr, N: fl.constexpr, K: fl.constexpr, DOWN: fl.constexpr):
    at = fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :]
    found = fl.topk(fl.load(x + at), K, descending=DOWN)
    fl.store(out + fl.arange(0, M)[:, None] * K + fl.arange(0, K)[None, :], found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("k", [1, 2, 8, 64])
def test_topk(k: int, down: bool, dtype: Any, device: str) -> None:
    x = numbers((4, 64), dtype)
    out = np.zeros((4, k), dtype)
    launch(greatest, device, x, out, M=4, N=64, K=k, DOWN=down)
    ordered = np.sort(x, 1)
    np.testing.assert_array_equal(out, (ordered[:, ::-1] if down else ordered)[:, :k])


def test_topk_gives_the_greatest_where_nothing_is_said() -> None:
    @fuser.kernel
    def kernel(x, out):
        at = fl.arange(0, 16)
        fl.store(out + fl.arange(0, 4), fl.topk(fl.load(x + at), 4))
        fl.store(out + 4 + fl.arange(0, 2), fl.topk(fl.load(x + at), 2, 0, False))

    x = numbers((16,), np.float32)
    out = np.zeros(6, np.float32)
    kernel[(1,)](x, out)
    np.testing.assert_array_equal(out, [*np.sort(x)[::-1][:4], *np.sort(x)[:2]])


@pytest.mark.parametrize("down", [True, False])
def test_topk_takes_no_more_than_there_are(down: bool) -> None:
    x = numbers((1, 4), np.float32)
    with pytest.raises(LanguageError, match=f"the 8 {'greatest' if down else 'least'} of 4"):
        greatest[(1,)](x, x.copy(), M=1, N=4, K=8, DOWN=down)


@fuser.kernel
def merged(x, out, N: fl.constexpr, DOWN: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, fl.bitonic_merge(fl.load(x + at), descending=DOWN))


@pytest.mark.parametrize("down", [False, True])
def test_bitonic_merge(down: bool) -> None:
    x = np.sort(numbers((64,), np.int32))
    x = np.concatenate([x[::2], x[1::2][::-1]])
    out = np.zeros_like(x)
    launch(merged, "cpu", x, out, N=64, DOWN=down)
    np.testing.assert_array_equal(out, np.sort(x)[::-1] if down else np.sort(x))


@fuser.kernel
def counts(x, out, n, N: fl.constexpr, BINS: fl.constexpr, MASKED: fl.constexpr):
    at = fl.arange(0, N)
    data = fl.load(x + at)
    if MASKED:
        found = fl.histogram(data, BINS, mask=at < n)
    else:
        found = data.histogram(BINS)
    fl.store(out + fl.arange(0, BINS), found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
@pytest.mark.parametrize("masked", [False, True])
def test_histogram(masked: bool, dtype: Any, device: str) -> None:
    x = RNG.integers(0, 127, 512).astype(dtype)
    out = np.zeros(256, np.int32)
    launch(counts, device, x, out, 300, N=512, BINS=256, MASKED=masked)
    want = np.bincount(x[: 300 if masked else 512].astype(np.int64), minlength=256)
    np.testing.assert_array_equal(out, want)


def test_histogram_does_not_count_what_has_no_bin() -> None:
    x = np.array([-1, -128, 5, 127] * 4, np.int8)
    out = np.zeros(256, np.int32)
    launch(counts, "cpu", x, out, 16, N=16, BINS=256, MASKED=False)
    assert {n: int(c) for n, c in enumerate(out) if c} == {5: 4, 127: 4}


@fuser.kernel
def swizzled(out, M: fl.constexpr, N: fl.constexpr, G: fl.constexpr):
    i = fl.arange(0, M)[:, None]
    j = fl.arange(0, N)[None, :]
    row, column = fl.swizzle2d(i, j, M, N, G)
    fl.store(out + row * N + column, i * N + j)


@pytest.mark.parametrize(("rows", "columns", "group"), [(4, 4, 2), (8, 4, 3), (5, 7, 2)])
def test_swizzle_goes_down_the_columns_of_each_group(rows: int, columns: int, group: int) -> None:
    out = np.full((rows, columns), -1, np.int32)
    launch(swizzled, "cpu", out, M=rows, N=columns, G=group)
    want = [
        np.arange(first * columns, min(first + group, rows) * columns).reshape(columns, -1).T
        for first in range(0, rows, group)
    ]
    np.testing.assert_array_equal(out, np.concatenate(want))


@fuser.kernel
def middle(x, out, N: fl.constexpr):
    ordered = fl.sort(fl.load(x + fl.arange(0, N)))
    fl.store(out, fl.sum(fl.where(fl.arange(0, N) == N // 2, ordered, 0.0)))
    fl.store(out + 1, fl.max(ordered))


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_sorted_is_folded(device: str) -> None:
    """Each exchange is computed once, though two of the next read it."""
    x = numbers((64,), np.float32)
    out = np.zeros(2, np.float32)
    launch(middle, device, x, out, N=64)
    assert out.tolist() == [np.sort(x)[32], x.max()]
