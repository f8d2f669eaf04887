"""Tiles that are used before a branch or loop whose condition is a reduction, and again after it.

What a nest writes on its way (the tile that a reduction reads) is there for all that comes later,
whichever nests were needed first. Memory is poisoned, so that a tile that nobody wrote shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.poison import poisoned

ROWS, COLUMNS = 32, 32
NEVER = 1e4
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
LIMITS = pytest.mark.parametrize("limit", [NEVER, -NEVER], ids=["never", "always"])


def _run(kernel: Any, x: np.ndarray, out: np.ndarray, *scalars: float | int) -> np.ndarray:
    """The result of the compiled kernel, which is that of the interpreter as well."""
    checked = np.zeros_like(out)
    grid = (x.shape[0] // ROWS,)
    with poisoned():
        kernel[grid](x, out, *scalars, D=x.shape[1], B=ROWS)
    kernel[grid](x, checked, *scalars, D=x.shape[1], B=ROWS, check=True)
    _close(out, checked)
    return out


def _close(got: np.ndarray, want: np.ndarray) -> None:
    if got.dtype.kind == "f":
        scale = float(np.abs(want.astype(np.float64)).max())
        inside = np.finfo(np.float32 if got.dtype == np.float16 else got.dtype)
        # A sum of 32 terms, each off by an ulp or two of its own, and the rounding of the store.
        bound = scale * (2 * COLUMNS * float(inside.eps) + float(np.finfo(got.dtype).eps))
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)
    else:
        np.testing.assert_array_equal(got, want)


def _input(dtype: Any, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((2 * ROWS, COLUMNS))
    return values.astype(dtype)


def _parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What most kernels here compute first: the rows in float32, their factors and sums."""
    z = x.astype(np.float32 if x.dtype == np.float16 else x.dtype)
    factor = np.exp(-z.max(1))
    return z, factor, factor + np.exp(z - z.max(1, keepdims=True)).sum(1)


@fuser.kernel
def one_if(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    if fl.max(total, 0) > limit:
        total = total + 1.0
    fl.store(out + at, z * factor[:, None] + total[:, None])


@fuser.kernel
def if_with_else(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    if fl.max(total, 0) > limit:
        total = total + 1.0
    else:
        total = total * 2.0 + factor
    fl.store(out + at, z * factor[:, None] + total[:, None])


@fuser.kernel
def nested_ifs(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    if fl.max(total, 0) > -limit:
        if fl.min(total, 0) > limit:
            total = total + fl.sum(fl.exp(z * factor[:, None]), 1)
        total = total + 1.0
    fl.store(out + at, z * factor[:, None] + total[:, None])


@fuser.kernel
def two_ifs(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    if fl.max(total, 0) > limit:
        total = total + 1.0
    if fl.min(total * factor, 0) > limit:
        total = total + 2.0
    fl.store(out + at, z * factor[:, None] + total[:, None])


@fuser.kernel
def several_tiles(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    shifted = fl.exp(z - fl.max(z, 1)[:, None])
    scaled = fl.exp(shifted * factor[:, None])
    total = 1.0 * factor + fl.sum(shifted, 1)
    other = total + fl.sum(scaled, 1) * factor
    if fl.max(other, 0) > limit:
        total = total + 1.0
    fl.store(out + at, shifted * factor[:, None] + scaled * total[:, None] + other[:, None])


@fuser.kernel
def while_on_a_sum(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    count = 0
    while (fl.max(total, 0) > limit) & (count < 3):
        total = total * 0.5 + factor
        count += 1
    fl.store(out + at, z * factor[:, None] + total[:, None])


@fuser.kernel
def for_with_ifs(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    for turn in range(3):
        more = total * 0.25 + fl.exp(factor * 0.5)
        if fl.max(more, 0) > limit:
            total = total + more
        total = total * 0.5 + factor * turn
    fl.store(out + at, z * factor[:, None] + total[:, None])


def _want(kernel: Any, x: np.ndarray, always: bool) -> np.ndarray:
    z, factor, total = _parts(x)
    shifted = np.exp(z - z.max(1, keepdims=True))
    column = np.s_[:, None]
    if kernel is one_if:
        total = total + always
    elif kernel is if_with_else:
        total = total + 1 if always else total * 2 + factor
    elif kernel is nested_ifs:
        # The outer condition asks for the opposite.
        total = total if always else total + 1
    elif kernel is two_ifs:
        total = total + 3 * always
    elif kernel is several_tiles:
        scaled = np.exp(shifted * factor[column])
        other = total + scaled.sum(1) * factor
        total = total + always
        return np.asarray(shifted * factor[column] + scaled * total[column] + other[column])
    elif kernel is while_on_a_sum:
        for _ in range(3 * always):
            total = total * z.dtype.type(0.5) + factor
    else:
        for turn in range(3):
            more = total * z.dtype.type(0.25) + np.exp(factor * z.dtype.type(0.5))
            total = total + more * always
            total = total * z.dtype.type(0.5) + factor * turn
    return np.asarray(z * factor[column] + total[column])


KERNELS = [one_if, if_with_else, nested_ifs, two_ifs, several_tiles, while_on_a_sum, for_with_ifs]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@DTYPES
@LIMITS
def test_tiles_are_there_after_a_condition_on_a_reduction(
    kernel: Any, dtype: Any, limit: float
) -> None:
    x = _input(dtype)
    got = _run(kernel, x, np.zeros_like(x), limit)
    _close(got, _want(kernel, x, limit < 0).astype(dtype))


@fuser.kernel
def nested_both(x: Any, out: Any, low: Any, high: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    factor = fl.exp(-fl.max(z, 1))
    total = 1.0 * factor + fl.sum(fl.exp(z - fl.max(z, 1)[:, None]), 1)
    if fl.max(total, 0) > low:
        if fl.min(total, 0) > high:
            total = total + fl.sum(fl.exp(z * factor[:, None]), 1)
        else:
            total = total * 2.0
    else:
        total = total + factor
    fl.store(out + at, z * factor[:, None] + total[:, None])


@pytest.mark.parametrize(("low", "high"), [(-NEVER, -NEVER), (-NEVER, NEVER), (NEVER, NEVER)])
def test_every_way_through_nested_branches(low: float, high: float) -> None:
    x = _input(np.float32)
    z, factor, total = _parts(x)
    if low < 0:
        inner = total + np.exp(z * factor[:, None]).sum(1)
        total = inner if high < 0 else total * 2
    else:
        total = total + factor
    got = _run(nested_both, x, np.zeros_like(x), low, high)
    _close(got, z * factor[:, None] + total[:, None])


@fuser.kernel
def whole_numbers(x: Any, out: Any, limit: Any, D: fl.constexpr, B: fl.constexpr) -> Any:
    i = fl.program_id(0) * B + fl.arange(0, B)
    at = i[:, None] * D + fl.arange(0, D)[None, :]
    z = fl.load(x + at)
    least = fl.min(z, 1)
    factor = least // 7 * (least % 5) - (least ^ 3) // 2
    total = factor + fl.sum(z // 3 * (z % 11) + fl.min(z, 1)[:, None] // 2, 1)
    if fl.max(total, 0) > limit:
        total = total + 1
    fl.store(out + at, z * factor[:, None] + total[:, None])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("limit", [1 << 30, -(1 << 30)], ids=["never", "always"])
def test_tiles_of_whole_numbers(dtype: Any, limit: int) -> None:
    x = np.random.default_rng(1).integers(1, 90, (2 * ROWS, COLUMNS)).astype(dtype)
    least = x.min(1)
    factor = least // 7 * (least % 5) - (least ^ 3) // 2
    total = factor + (x // 3 * (x % 11) + least[:, None] // 2).sum(1)
    total = total + (limit < 0)
    got = _run(whole_numbers, x, np.zeros_like(x), limit)
    _close(got, (x * factor[:, None] + total[:, None]).astype(dtype))
