"""8-bit floats against ml_dtypes, and rounding toward zero against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.language.launching import DEVICES, launch

KINDS: dict[str, Any] = {
    "float8e5": ml_dtypes.float8_e5m2, "float8e4nv": ml_dtypes.float8_e4m3fn,
    "float8e4b8": ml_dtypes.float8_e4m3fnuz, "float8e5b16": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
CODES = np.arange(256, dtype=np.uint8)
RNG = np.random.default_rng(7)


@fuser.kernel
def decode(codes, out, N: fl.constexpr, KIND: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, fl.load(codes + at).to(KIND, bitcast=True).to(out.dtype.element_ty))


@fuser.kernel
def encode(x, codes, N: fl.constexpr, KIND: fl.constexpr, HOW: fl.constexpr):
    at = fl.arange(0, N)
    small = fl.load(x + at).to(KIND, fp_downcast_rounding=HOW)
    fl.store(codes + at, small.to(fl.uint8, bitcast=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("wide", [np.float32, np.float16, np.float64])
def test_every_code_is_the_number_that_ml_dtypes_says(device: str, name: str, wide: Any) -> None:
    out = np.zeros(256, wide)
    launch(decode, device, CODES, out, N=256, KIND=getattr(fl, name))
    np.testing.assert_array_equal(out, CODES.view(KINDS[name]).astype(wide))


def numbers(name: str) -> np.ndarray[Any, Any]:
    """Numbers at, between and beyond those of an 8-bit float: 4096 of them."""
    every = CODES.view(KINDS[name]).astype(np.float32)
    known = np.unique(every[np.isfinite(every)])
    ties = (known[1:] + known[:-1]) / 2
    near = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, -1e-40, 1e30, -1e30], np.float32)
    found = np.concatenate([known, ties, *near, special])
    rest = RNG.standard_normal(4096 - found.size) * 2.0 ** RNG.integers(-20, 18, 4096 - found.size)
    return np.concatenate([found, rest]).astype(np.float32)


def saturated(x: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    every = CODES.view(KINDS[name]).astype(np.float32)
    most = every[np.isfinite(every)].max()
    return np.clip(x, -most, most).astype(KINDS[name])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_numbers_round_to_the_nearest_code_and_stop_at_the_largest(device: str, name: str) -> None:
    x = numbers(name)
    codes = np.zeros(4096, np.uint8)
    launch(encode, device, x, codes, N=4096, KIND=getattr(fl, name), HOW=None)
    want = saturated(x, name)
    nan = np.isnan(x)
    np.testing.assert_array_equal(codes[~nan], want.view(np.uint8)[~nan])
    assert np.isnan(codes[nan].view(KINDS[name]).astype(np.float32)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_toward_zero_is_the_largest_code_that_is_not_beyond(device: str, name: str) -> None:
    x = numbers(name)
    x = x[np.isfinite(x)]
    x = np.resize(x, 4096)
    codes = np.zeros(4096, np.uint8)
    launch(encode, device, x, codes, N=4096, KIND=getattr(fl, name), HOW="rtz")
    every = CODES.view(KINDS[name]).astype(np.float32)
    sizes = np.unique(np.abs(every[np.isfinite(every)]))
    want = sizes[np.searchsorted(sizes, np.abs(x), side="right") - 1] * np.sign(x)
    np.testing.assert_array_equal(codes.view(KINDS[name]).astype(np.float32), want)


def test_e4b15_is_half_a_float16() -> None:
    out = np.zeros(256, np.float16)
    launch(decode, "cpu", CODES, out, N=256, KIND=fl.float8e4b15)
    bits = (CODES.astype(np.uint16) & 0x7F) << 7 | (CODES.astype(np.uint16) & 0x80) << 8
    np.testing.assert_array_equal(out.view(np.uint16), bits)
    back = np.zeros(256, np.uint8)
    launch(encode, "cpu", out, back, N=256, KIND=fl.float8e4b15, HOW=None)
    want = np.where(CODES & 0x7F == 0x7F, CODES - 1, CODES)  # 1.75 is the greatest that is made
    np.testing.assert_array_equal(back, want)


@fuser.kernel
def narrow_float(x, out, N: fl.constexpr):
    at = fl.arange(0, N)
    small = fl.load(x + at).to(out.dtype.element_ty, fp_downcast_rounding="rtz")
    fl.store(out + at, small)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("wide", "small"),
    [
        (np.float32, np.float16), (np.float32, ml_dtypes.bfloat16), (np.float64, np.float32),
        (np.float64, np.float16),
    ],
)  # fmt: skip
def test_floats_are_cut(device: str, wide: Any, small: Any) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 65519.0, 65520.0, 65535.0, 1e-8]
    x = np.concatenate([special, RNG.standard_normal(1013) * 2.0 ** RNG.integers(-30, 30, 1013)])
    x = x.astype(wide)
    out = np.zeros(1024, small)
    launch(narrow_float, device, x, out, N=1024)
    with np.errstate(over="ignore"):
        near = x.astype(small)
    beyond = np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64))
    word = f"i{near.itemsize}"
    want = (near.view(word) - beyond.astype(word)).view(small)
    exact = np.float64  # ml_dtypes' own NaN is not equal to itself in NumPy's assertion
    np.testing.assert_array_equal(out.astype(exact), want.astype(exact))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(want))


@fuser.kernel
def arithmetic_of_codes(x, y, out, less, N: fl.constexpr):
    at = fl.arange(0, N)
    a = fl.load(x + at)
    b = fl.load(y + at)
    fl.store(out + at, a * b + 1.0)
    fl.store(less + at, a < b)


@pytest.mark.parametrize("name", ["float8e5", "float8e4nv"])
def test_arithmetic_rounds_after_every_operation(name: str) -> None:
    kind = KINDS[name]
    x, y = (RNG.standard_normal(256).astype(kind) for _ in range(2))
    out, less = np.zeros(256, kind), np.zeros(256, bool)
    launch(arithmetic_of_codes, "cpu", x, y, out, less, N=256)
    product = (x.astype(np.float32) * y.astype(np.float32)).astype(kind)
    want = (product.astype(np.float32) + 1).astype(kind)
    np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))
    np.testing.assert_array_equal(less, x.astype(np.float32) < y.astype(np.float32))


@fuser.kernel
def padded(x, out, n, N: fl.constexpr, OTHER: fl.constexpr):
    at = fl.arange(0, N)
    fl.store(out + at, fl.load(x + at, at < n, other=OTHER))


def test_other_of_codes_is_a_number() -> None:
    kind = ml_dtypes.float8_e4m3fn
    x = RNG.standard_normal(64).astype(kind)
    out = np.zeros(64, kind)
    launch(padded, "cpu", x, out, 40, N=64, OTHER=-1.5)
    np.testing.assert_array_equal(out[:40].view(np.uint8), x[:40].view(np.uint8))
    assert (out[40:].astype(np.float32) == -1.5).all()


@fuser.kernel
def full_of(out, N: fl.constexpr, NUMBER: fl.constexpr):
    fl.store(out + fl.arange(0, N), fl.full((N,), NUMBER, out.dtype.element_ty))


@pytest.mark.parametrize("name", ["float8e5", "float8e4nv"])
@pytest.mark.parametrize("number", [0.3, -448.0, 1e9, float("nan")])
def test_known_numbers_become_the_same_codes(name: str, number: float) -> None:
    out = np.zeros(16, KINDS[name])
    launch(full_of, "cpu", out, N=16, NUMBER=number)
    want = saturated(np.full(16, number, np.float32), name)
    np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32))


@fuser.kernel
def signs(codes, absolute, negative, N: fl.constexpr, KIND: fl.constexpr):
    at = fl.arange(0, N)
    x = fl.load(codes + at).to(KIND, bitcast=True)
    fl.store(absolute + at, fl.abs(x).to(fl.uint8, bitcast=True))
    fl.store(negative + at, (-x).to(fl.uint8, bitcast=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*KINDS, "float8e4b15"])
def test_abs_and_neg_change_signs_alone(device: str, name: str) -> None:
    """Infinities stay infinite, and NaN keeps its other bits; 0x80 is the one NaN of some."""
    absolute, negative = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
    launch(signs, device, CODES, absolute, negative, N=256, KIND=getattr(fl, name))
    single = CODES & 0x7F == 0 if name in ("float8e4b8", "float8e5b16") else CODES != CODES
    np.testing.assert_array_equal(absolute, np.where(single, CODES, CODES & 0x7F))
    np.testing.assert_array_equal(negative, np.where(single, CODES, CODES ^ 0x80))
    if name in KINDS:
        number = CODES.view(KINDS[name]).astype(np.float32)
        np.testing.assert_array_equal(absolute.view(KINDS[name]).astype(np.float32), np.abs(number))
