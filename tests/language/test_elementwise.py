"""Functions of single elements against NumPy, in every float that they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton.language as tl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(3)
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
ULPS = 4


def close(have: Any, want: Any) -> None:
    """Equal to a few units in the last place of have's type."""
    wide = have.astype(np.float64)
    with np.errstate(all="ignore"):
        near = want.astype(have.dtype).astype(np.float64)
        bits = np.finfo(have.dtype).nmant if have.dtype.kind == "f" else 7
        step = np.maximum(np.abs(near) * 2.0**-bits, np.float64(np.finfo(np.float32).tiny))
        fits = (wide == near) | (np.abs(wide - want) <= ULPS * step)
    assert (fits | (np.isnan(wide) & np.isnan(near))).all()


@fuser.kernel
def unary(x, out, N: fl.constexpr, FN: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, FN(fl.load(x + at)))


ONE: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos,
    "sqrt": np.sqrt, "sqrt_rn": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf), "floor": np.floor, "ceil": np.ceil, "abs": np.abs,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fn", ONE)
def test_unary(fn: str, dtype: Any, device: str) -> None:
    x = (RNG.standard_normal(512) * 4).astype(dtype)
    x = np.abs(x) if fn in ("log", "log2", "sqrt", "sqrt_rn", "rsqrt") else x
    out = np.zeros(512, dtype)
    launch(unary, device, x, out, N=512, FN=getattr(fl, fn))
    close(out, ONE[fn](x.astype(np.float64)))


@pytest.mark.parametrize("device", DEVICES)
def test_sigmoid_where_its_exponential_does_not_fit(device: str) -> None:
    x = np.linspace(-16, 16, 512).astype(np.float16)
    out = np.zeros(512, np.float16)
    launch(unary, device, x, out, N=512, FN=fl.sigmoid)
    close(out, 1 / (1 + np.exp(-x.astype(np.float64))))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32])
def test_abs_of_integers(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max, 256, dtype, endpoint=True)
    out = np.zeros(256, dtype)
    launch(unary, "cpu", x, out, N=256, FN=fl.abs)
    np.testing.assert_array_equal(out, np.abs(x))


def test_exp2_keeps_denormals_and_limits() -> None:
    x = np.array([-149, -149.9, -126.5, 127.9, 128, -np.inf, np.inf, np.nan], np.float32)
    out = np.zeros(8, np.float32)
    launch(unary, "cpu", x, out, N=8, FN=fl.exp2)
    with np.errstate(over="ignore"):
        want = np.exp2(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(out, want, rtol=2e-7)
    assert out[0] == np.float32(2.0**-149)


@fuser.kernel
def binary(x, y, out, N: fl.constexpr, FN: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, FN(fl.load(x + at), fl.load(y + at)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_div_rn_is_the_nearest_quotient(dtype: Any, device: str) -> None:
    x, y = (RNG.standard_normal(4096).astype(dtype) for _ in range(2))
    y[:4], x[:4] = [0, np.inf, 1e-40, 3], [1, 1, 1e-41, 1e-44]
    out = np.zeros(4096, dtype)
    launch(binary, device, x, y, out, N=4096, FN=fl.div_rn)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, x / y)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_umulhi_is_the_upper_half_of_unsigned_products(dtype: Any, device: str) -> None:
    info = np.iinfo(dtype)
    x, y = (RNG.integers(info.min, info.max, 256, dtype, endpoint=True) for _ in range(2))
    out = np.zeros(256, dtype)
    launch(binary, device, x, y, out, N=256, FN=fl.umulhi)
    bits = 8 * x.itemsize
    word = f"u{x.itemsize}"
    want = (x.view(word).astype(object) * y.view(word).astype(object)) >> bits
    np.testing.assert_array_equal(out.view(word), want.astype(word))


@fuser.kernel
def extremes(x, y, out, N: fl.constexpr, NAN: fl.constexpr):
    at = fl.arange(0, N)
    a = fl.load(x + at)
    b = fl.load(y + at)
    fl.store(out + at, fl.maximum(a, b, propagate_nan=NAN))
    fl.store(out + N + at, fl.minimum(a, b, NAN))
    fl.store(out + 2 * N + at, fl.clamp(a, -1.0, b, propagate_nan=NAN))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spelling", [fl, tl])
@pytest.mark.parametrize("keep", [False, True])
def test_extremes_and_nan(spelling: Any, keep: bool, dtype: Any, device: str) -> None:
    x, y = (RNG.standard_normal(64).astype(dtype) for _ in range(2))
    x[::5], y[::7] = np.nan, np.nan
    y = np.where(np.isnan(y), y, np.abs(y) + dtype(0.5)).astype(dtype)
    out = np.zeros((3, 64), dtype)
    kind = spelling.PropagateNan.ALL if keep else spelling.PropagateNan.NONE
    launch(extremes, device, x, y, out, N=64, NAN=kind)
    a, b = x.astype(np.float64), y.astype(np.float64)
    high, low = (np.maximum, np.minimum) if keep else (np.fmax, np.fmin)
    want = np.stack([high(a, b), low(a, b), low(high(a, -1.0), b)])
    np.testing.assert_array_equal(out.astype(np.float64), want)


@fuser.kernel
def fused(x, y, z, out, N: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, fl.fma(fl.load(x + at), fl.load(y + at), fl.load(z + at)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype: Any, device: str) -> None:
    from fractions import Fraction

    x, y = (RNG.standard_normal(1024).astype(dtype) for _ in range(2))
    z = (-(x * y)).astype(dtype)  # what is left is what the product lost
    out = np.zeros(1024, dtype)
    launch(fused, device, x, y, z, out, N=1024)
    terms = zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
    want = [float(Fraction(a) * Fraction(b) + Fraction(c)) for a, b, c in terms]
    np.testing.assert_array_equal(out, np.array(want, dtype))
    assert np.count_nonzero(out) > 900


@fuser.kernel
def softmax_rows(x, out, M: fl.constexpr, N: fl.constexpr):
    at = fl.arange(0, M)[:, None] * N + fl.arange(0, N)[None, :]
    fl.store(out + at, fl.softmax(fl.load(x + at), dim=1, keep_dims=True))


@pytest.mark.parametrize("device", DEVICES)
def test_softmax(device: str) -> None:
    x = RNG.standard_normal((8, 32)).astype(np.float32)
    out = np.zeros_like(x)
    launch(softmax_rows, device, x, out, M=8, N=32)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_functions_work_in_kernels_only() -> None:
    for function in (fl.exp2, fl.load, fl.dot, fl.static_print):
        with pytest.raises(LanguageError, match="outside of a kernel"):
            function(1.0)


@fuser.kernel
def quotient(x, y, out, N: fl.constexpr, IEEE: fl.constexpr, APPROX: fl.constexpr):
    at = fl.arange(0, N)
    found = fl.fdiv(fl.load(x + at), fl.load(y + at), ieee_rounding=IEEE, approx=APPROX)
    fl.store(out + at, found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("approx", [False, True])
@pytest.mark.parametrize("size", [1, 16, 96, 512])
def test_fdiv(size: int, approx: bool, device: str) -> None:
    x, y = (RNG.standard_normal(size).astype(np.float32) for _ in range(2))
    out = np.zeros(size, np.float32)
    launch(quotient, device, x, y, out, N=size, IEEE=False, APPROX=approx)
    close(out, x.astype(np.float64) / y)


def test_approximate_division_of_special_values() -> None:
    x = np.array([0, -0.0, 1, -1, np.inf, np.nan, 0, 1], np.float32)
    y = np.array([1, 1, 0, 0, 2, 1, 0, np.inf], np.float32)
    out = np.ones(8, np.float32)
    launch(quotient, "cpu", x, y, out, N=8, IEEE=False, APPROX=True)
    with np.errstate(all="ignore"):
        want = x / y
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(np.signbit(out[:5]), np.signbit(want[:5]))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_approximate_division_is_for_float32(dtype: Any) -> None:
    x = np.ones(16, dtype)
    with pytest.raises(LanguageError, match=r"fdiv of .* with approx"):
        quotient[(1,)](x, x, x.copy(), N=16, IEEE=False, APPROX=True)


def test_one_rounding_of_a_division_is_chosen() -> None:
    x = np.ones(16, np.float32)
    with pytest.raises(LanguageError, match="ieee_rounding and approx"):
        quotient[(1,)](x, x, x.copy(), N=16, IEEE=True, APPROX=True)
