"""dot and dot_scaled in every type, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(9)
E4, E5 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@fuser.kernel
def product(a, b, out, M: fl.constexpr, N: fl.constexpr, K: fl.constexpr, AS: fl.constexpr,
            HOW: fl.constexpr):  # fmt: skip
    row = fl.arange(0, M)[:, None]
    column = fl.arange(0, N)[None, :]
    x = fl.load(a + row * K + fl.arange(0, K)[None, :])
    y = fl.load(b + fl.arange(0, K)[:, None] * N + column)
    found = fl.dot(x, y, input_precision=HOW, out_dtype=AS)
    fl.store(out + row * N + column, found)


def operand(shape: tuple[int, ...], dtype: Any) -> Any:
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("left", "right", "out", "how", "error"),
    [
        (np.float32, np.float32, np.float32, "ieee", 1e-5),
        (np.float32, np.float32, np.float32, "tf32x3", 1e-5),
        (np.float32, np.float32, np.float32, "tf32", 1e-2),
        (np.float16, np.float16, np.float32, None, 1e-5),
        (np.float16, np.float16, np.float16, None, 1e-3),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32, None, 1e-5),
        (np.float64, np.float64, np.float64, None, 1e-14),
        (np.int8, np.int8, np.int32, None, 0),
        (np.uint8, np.uint8, np.int32, None, 0),
        (E4, E4, np.float32, None, 1e-3),
        (E5, E5, np.float32, None, 1e-3),
        (E4, E5, np.float32, None, 1e-5),
    ],
)
def test_products(left: Any, right: Any, out: Any, how: Any, error: float, device: str) -> None:
    a, b = operand((32, 64), left), operand((64, 16), right)
    found = np.zeros((32, 16), out)
    kind = fl.float16 if out == np.float16 else fl.float32
    launch(product, device, a, b, found, M=32, N=16, K=64, AS=kind, HOW=how)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(found - want).max() <= error * np.abs(want).max()


@fuser.kernel
def sums(a, b, c, out, K: fl.constexpr):
    row = fl.arange(0, 16)[:, None]
    column = fl.arange(0, 16)[None, :]
    acc = fl.load(c + row * 16 + column)
    for k in range(0, K, 32):
        inner = k + fl.arange(0, 32)
        x = fl.load(a + row * K + inner[None, :])
        y = fl.load(b + inner[:, None] * 16 + column)
        acc = fl.dot(x, y, acc)
    fl.store(out + row * 16 + column, acc)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "acc"), [(np.float16, np.float32), (np.float16, np.float16), (np.int8, np.int32)]
)
def test_acc_keeps_its_type(kind: Any, acc: Any, device: str) -> None:
    a, b, c = operand((16, 128), kind), operand((128, 16), kind), operand((16, 16), np.int8)
    c = c.astype(acc)
    found = np.zeros((16, 16), acc)
    launch(sums, device, a, b, c, found, K=128)
    want = a.astype(np.float64) @ b.astype(np.float64) + c
    bound = {np.float32: 1e-5, np.float16: 2e-3, np.int32: 0}[acc]
    assert np.abs(found - want).max() <= bound * np.abs(want).max()


@fuser.kernel
def batches(a, b, c, out, B: fl.constexpr, M: fl.constexpr, N: fl.constexpr, K: fl.constexpr):
    item = fl.arange(0, B)[:, None, None]
    row = fl.arange(0, M)
    column = fl.arange(0, N)
    inner = fl.arange(0, K)
    x = fl.load(a + item * M * K + row[None, :, None] * K + inner[None, None, :])
    y = fl.load(b + item * K * N + inner[None, :, None] * N + column[None, None, :])
    at = item * M * N + row[None, :, None] * N + column[None, None, :]
    found = fl.dot(x, y, fl.load(c + at), input_precision="ieee")
    fl.store(out + at, found + fl.dot(x, y, input_precision="ieee"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_batches(count: int, device: str) -> None:
    a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((count, 16, 32), (count, 32, 16)))
    c = RNG.standard_normal((count, 16, 16)).astype(np.float32)
    found = np.zeros((count, 16, 16), np.float32)
    launch(batches, device, a, b, c, found, B=count, M=16, N=16, K=32)
    np.testing.assert_allclose(found, 2 * (a @ b) + c, rtol=1e-4, atol=1e-4)


@fuser.kernel
def scaled(a, sa, b, sb, out, M: fl.constexpr, N: fl.constexpr, K: fl.constexpr, A: fl.constexpr,
           B: fl.constexpr, BY_K: fl.constexpr):  # fmt: skip
    ROWS: fl.constexpr = M // 2 if A == "e2m1" and not BY_K else M
    LEFT: fl.constexpr = K // 2 if A == "e2m1" and BY_K else K
    RIGHT: fl.constexpr = K // 2 if B == "e2m1" and BY_K else K
    COLUMNS: fl.constexpr = N // 2 if B == "e2m1" and not BY_K else N
    x = fl.load(a + fl.arange(0, ROWS)[:, None] * LEFT + fl.arange(0, LEFT)[None, :])
    y = fl.load(b + fl.arange(0, RIGHT)[:, None] * COLUMNS + fl.arange(0, COLUMNS)[None, :])
    group = fl.arange(0, K // 32)[None, :]
    p = None
    if sa is not None:
        p = fl.load(sa + fl.arange(0, M)[:, None] * (K // 32) + group)
    q = fl.load(sb + fl.arange(0, N)[:, None] * (K // 32) + group)
    found = fl.dot_scaled(x, p, A, y, q, B, lhs_k_pack=BY_K, rhs_k_pack=BY_K)
    fl.store(out + fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :], found)


def coded(shape: tuple[int, int], format: str, packed: int) -> tuple[Any, Any]:
    """Codes as the kernel reads them, and their numbers; e2m1 packed along an axis."""
    if format == "e2m1":
        codes = RNG.integers(0, 16, shape).astype(np.uint8)
        sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        numbers = sizes[codes & 7] * np.where(codes & 8, -1, 1)
        low, high = (codes[n::2] if packed == 0 else codes[:, n::2] for n in range(2))
        return np.ascontiguousarray(low | high << 4), numbers
    kinds = {"e4m3": E4, "e5m2": E5, "bf16": ml_dtypes.bfloat16, "fp16": np.float16}
    found = RNG.standard_normal(shape).astype(kinds[format])
    return found, found.astype(np.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_k", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [("e2m1", "e2m1"), ("e4m3", "e2m1"), ("e4m3", "e5m2"), ("bf16", "e4m3"), ("fp16", "e2m1")],
)
def test_scaled_products(left: str, right: str, by_k: bool, device: str) -> None:
    if not by_k and "e2m1" not in (left, right):
        pytest.skip("nothing is packed")
    if not by_k and left != right:
        pytest.skip("only e2m1 is packed along another axis")
    a, x = coded((32, 64), left, 1 if by_k else 0)
    b, y = coded((64, 16), right, 0 if by_k else 1)
    sa, sb = (RNG.integers(124, 131, (n, 2)).astype(np.uint8) for n in (32, 16))
    out = np.zeros((32, 16), np.float32)
    kinds = {"A": left, "B": right, "BY_K": by_k}
    first = None if left in ("bf16", "fp16") else sa
    launch(scaled, device, a, first, b, sb, out, M=32, N=16, K=64, **kinds)
    if first is not None:
        x = x * np.repeat(2.0 ** (sa.astype(int) - 127), 32, 1)
    want = x @ (y.T * np.repeat(2.0 ** (sb.astype(int) - 127), 32, 1)).T
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_a_factor_of_255_is_nan() -> None:
    a, _ = coded((32, 64), "e2m1", 1)
    b, _ = coded((64, 16), "e2m1", 0)
    sa, sb = (np.full((n, 2), 127, np.uint8) for n in (32, 16))
    sa[3, 1] = 255
    out = np.zeros((32, 16), np.float32)
    launch(scaled, "cpu", a, sa, b, sb, out, M=32, N=16, K=64, A="e2m1", B="e2m1", BY_K=True)
    assert np.isnan(out[3]).all() and not np.isnan(np.delete(out, 3, 0)).any()


def test_types_that_do_not_go_together() -> None:
    a, b = np.zeros((32, 64), np.float16), np.zeros((64, 16), np.float32)
    out = np.zeros((32, 16), np.float32)
    with pytest.raises(LanguageError, match="fp16 and fp32"):
        product[(1,)](a, b, out, M=32, N=16, K=64, AS=fl.float32, HOW=None)
    with pytest.raises(LanguageError, match="input_precision"):
        product[(1,)](b.T.copy()[:, :], b, out, M=16, N=16, K=64, AS=fl.float32, HOW="tf64")
