"""Functions that are compositions, beside NumPy: many share one compiled trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser

RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 7)).astype(np.float32)
Y = RNG.standard_normal((3, 7)).astype(np.float32)
D = X.astype(np.float64)
H = X.astype(np.float16)
B = RNG.standard_normal((2, 3, 5)).astype(np.float32)
N = X.copy()
N[0, 1] = N[0, 4] = N[2, 6] = np.nan
N[1] = np.nan
F = np.where(np.isnan(N), np.float32(0), X)
F[0, 0] = np.nan
I = RNG.integers(-4, 5, (3, 7))  # noqa: E741
U = RNG.integers(0, 9, 13).astype(np.uint8)
T = X > 0
W = RNG.random((3, 7)).astype(np.float32)
S = np.sort(RNG.standard_normal(9)).astype(np.float32)
L = np.sort(RNG.standard_normal(77))
E = np.zeros((0, 3), np.float32)
Z = np.array([1.0, np.nan, -np.inf, np.inf, -0.0, 2.0], np.float32)
QS = np.array([0.0, 0.3, 0.5, 1.0])
Q = np.quantile

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "median": (
        lambda x, h, i, n, t: (
            np.median(x), np.median(x, 0), np.median(x, axis=(0, 1), keepdims=True),
            np.median(h, 1), np.median(i, axis=0), np.median(n, axis=1), np.median(t),
        ),
        (X, H, I, N, T),
    ),
    "quantile": (
        lambda x, d, i, n, h: (
            Q(x, 0.3), Q(x, QS, axis=1), Q(d, [0.1, 0.9], 0, keepdims=True), Q(i, 0.4, 1),
            Q(n, 0.5, 1), np.percentile(x, 30, axis=0), np.percentile(i, [25, 75]), Q(h, 0.25, 0),
        ),
        (X, D, I, N, H),
    ),
    "quantile methods": (
        lambda d, i: tuple(
            Q(y, QS, axis=1, method=m)
            for m in ("lower", "higher", "nearest", "midpoint", "hazen", "weibull",
                      "median_unbiased", "normal_unbiased", "interpolated_inverted_cdf")
            for y in (d, i)
        ),
        (D, I),
    ),
    "quantile of an argument": (lambda x, q: (Q(x, q, axis=1), Q(x, q)), (X, 0.7)),
    "without nan": (
        lambda n, f: (
            np.nansum(n, 1), np.nansum(n), np.nanprod(n, 0), np.nanmean(n, 1), np.nanmean(n),
            np.nanmax(n, 1), np.nanmin(n, axis=0, keepdims=True), np.nanstd(n, 0), np.nanvar(n),
            np.nanvar(n, 1, ddof=1), np.nancumsum(n, 1), np.nancumprod(n, 0),
            np.nanargmax(f, 1), np.nanargmin(f), np.nanmedian(n, 1), np.nanmedian(n),
            np.nanquantile(n, QS, axis=1), np.nanpercentile(n, 40, axis=0),
        ),
        (N, F),
    ),
    "without nan of other dtypes": (
        lambda i, t, h: (
            np.nansum(i, 0), np.nanmax(i, 1), np.nanmean(i), np.nansum(t), np.nanmedian(i, 0),
            np.nansum(h), np.nanmean(h, 1), np.nanstd(h),
        ),
        (I, T, H),
    ),
    "where and initial": (
        lambda x, i, t: (
            np.sum(x, where=t), x.sum(1, initial=2), np.prod(x, 0, where=t, initial=3),
            np.max(x, 1, initial=0.5), x.min(initial=0, where=t), np.mean(x, 1, where=t),
            np.var(x, where=t), np.std(x, 0, where=T[0]), np.any(x > 1, 1, where=t),
            np.all(x > 0, where=t), np.max(i, initial=2, axis=0), np.sum(i, where=t, axis=1),
            np.ptp(x, 1), np.max(t, 0, where=t, initial=False),
        ),
        (X, I, T),
    ),
    "empty": (
        lambda e: (
            e.sum(0), e.prod(), e.mean(0), np.median(e, 0), np.nansum(e, 1), np.cumprod(e, 0),
            e.max(0, initial=-1), np.nanmean(e), np.searchsorted(e[:, 0], e), np.any(e),
        ),
        (E,),
    ),
    "scans": (
        lambda x, i, u: (
            np.cumprod(x), x.cumprod(1), np.cumulative_prod(x, axis=0, include_initial=True),
            np.cumprod(i % 3, 0), np.cumprod(u % 3), np.cumsum(u), np.cumprod(x, dtype=np.float64),
            np.multiply.accumulate(x, 1), np.ediff1d(x), np.ediff1d(i, to_end=[3, 4]),
        ),
        (X, I, U),
    ),
    "average": (
        lambda x, w, i: (
            np.average(x), np.average(x, 1, w), *np.average(x, axis=0, weights=w, returned=True),
            np.average(i, weights=w), np.average(x, axis=1, weights=w[0], keepdims=True),
            *np.average(i, 1, returned=True), np.cov(x), np.cov(x, w, ddof=0), np.corrcoef(x),
        ),
        (X, W, I),
    ),
    "select": (
        lambda x, i: (
            np.select([x > 1, x > 0], [x, i], -1), np.select([i == 0], [x[0]]),
            np.select([x > 1, x > 0], [0, 1], 7), np.select([x > 0, x > -9], [i, 2.5], i),
        ),
        (X, I),
    ),
    "searchsorted": (
        lambda s, w, x, i, z: (
            np.searchsorted(s, x), np.searchsorted(s, x, "right"), np.searchsorted(w, x),
            np.searchsorted(w, w, side="right"), np.searchsorted(np.sort(i[0]), i),
            np.searchsorted(s, z), np.searchsorted(w, z, side="right"), s.searchsorted(0.25),
            np.searchsorted(z, s, sorter=np.argsort(z)), np.searchsorted(np.sort(z), z),
            np.digitize(x, [-1, 0, 0.5]), np.digitize(i, [3, 1, -2], right=True),
        ),
        (S, L, X, I, Z),
    ),
    "interp": (
        lambda x, s, w, z: (
            np.interp(x, s, s**2), np.interp(x, w, np.cos(w), left=-5, right=7.5),
            np.interp(z, s, s), np.interp(x * 9, [5, 1, 3], [2.0, 4, 8], period=6),
            np.interp(1, s, s), np.interp(x, [0.5], [3]), np.interp([-2, 2], [-2, 0, 2], z[:3]),
        ),
        (X, S, L, Z),
    ),
    "counts": (
        lambda u, x, i: (
            np.bincount(u, minlength=9), np.bincount(u, u / 7, 10), *np.histogram(x, 5),
            *np.histogram(x, bins=[-2, -1, 0.5, 3]), *np.histogram(i, 4, (-3, 3), density=True),
            np.histogram(x, 3, weights=x)[0], *np.histogram(x * 0, 2), np.isin(i, [1, -2]),
            np.isin(x, x[0, :3], invert=True), np.isin(u, u[:0]),
        ),
        (U, X, I),
    ),
    "choices": (
        lambda x, i: (
            np.choose(abs(i) % 3, [x, i, 7]), np.choose(i, [x, -x], mode="clip"),
            np.choose(i, [1, 2], mode="wrap"), np.lexsort((i, x)), np.lexsort((x[0], i[0])),
            *np.unravel_index(abs(i) * 3, (4, 6)), np.piecewise(x, [x < 0, x > 1], [np.exp, 3]),
            np.piecewise(x, [x < 0], [lambda v: -v, lambda v: v * 2]),
        ),
        (X, I),
    ),
    "orders": (
        lambda x: (np.sort(np.partition(x, 3), 1), np.argpartition(x, 2, 0) * 0, np.fix(x)), (X,)
    ),
    "equality": (
        lambda x, y, n: (
            np.allclose(x, y), np.allclose(x, x + 1e-9), np.array_equal(x, x),
            np.array_equal(n, n), np.array_equal(n, n, equal_nan=True), np.array_equal(x, y[0]),
            np.array_equiv(x, x[None]), np.isneginf(-n / 0), np.isposinf(x), np.isreal(x),
        ),
        (X, Y, N),
    ),
    "signs": (
        lambda x, z, i: (
            np.copysign(x, -2), np.copysign(z, z[::-1]), np.signbit(x), np.signbit(z), *np.modf(x),
            *np.modf(z), np.ldexp(x, i), np.logaddexp2(x, x * 3), np.sinc(x), x.conj(), x.imag,
        ),
        (X, Z, I),
    ),
    "rows and columns": (
        lambda x, b: (
            np.fliplr(x), np.flipud(x), *(np.rot90(x, k) for k in range(4)), np.rot90(b, 1, (1, 2)),
            np.atleast_3d(x), np.dstack([x, x]), np.column_stack([x[0], x[1], x.T]),
            np.append(x, 3), np.append(x, x, 0), *np.vsplit(x, 3), *np.hsplit(x, [2, 4]),
            *np.dsplit(b, 5), np.rollaxis(b, 2), np.rollaxis(b, 0, 3), np.diag(x), np.diag(x, 2),
            np.diag(x[0]), np.diag(x[0], -2), np.diagflat(x, 1), np.delete(x, [0, 3], 1),
            np.delete(x, 2), np.insert(x, [1, 3], 9, axis=1), np.insert(x[0], 2, [4, 5]),
            np.resize(x, (4, 6)), np.block([[x, x], [x[:1], x[1:2]]]),
        ),
        (X, B),
    ),
    "products": (
        lambda x, b, i: (
            np.trapezoid(x), np.trapezoid(x, dx=0.5, axis=0), np.trapezoid(x, np.arange(7.0) ** 2),
            np.cross(x[:, :3], x[:, 1:4]), np.polyval([2, -1, 3], x), np.polyval(x[0, :3], x),
            np.vander(x[0], 4), np.vander(i[0], 3, increasing=True), np.convolve(x[0], x[1, :3]),
            np.convolve(x[0, :2], x[1], "same"), np.convolve(x[0], i[0, :4], mode="valid"),
            np.correlate(x[0], x[1, :3]), np.correlate(x[0, :3], x[1], "same"),
            np.linalg.matrix_power(b[:, :, :3], 3), np.linalg.matrix_power(x[:, :3], 0),
            np.linalg.multi_dot([x, x.T, x]), *np.gradient(x), np.gradient(x[0], 0.5),
            np.gradient(x, axis=1),
        ),
        (X, B, I),
    ),
}  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def _assert_same(found: Any, wanted: Any, at: str = "") -> None:
    wanted = np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), at
    loose = 2e-3 if wanted.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(found, wanted, rtol=loose, atol=loose, err_msg=at)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_matches_numpy(name: str, device: str) -> None:
    function, arrays = CASES[name]
    with np.errstate(all="ignore"):
        expected = function(*arrays)
    found = fuser.jit(function, device=device)(*arrays)
    for place, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        _assert_same(got, wanted, f"{name}, result {place}")
