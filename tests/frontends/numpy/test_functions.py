"""Traced functions beside NumPy: the same results, dtypes and shapes, compiled on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4)).astype(np.float32)
Y = RNG.standard_normal((3, 4)).astype(np.float32)
M = RNG.standard_normal((4, 5)).astype(np.float32)
B = RNG.standard_normal((2, 3, 4)).astype(np.float32)
P = np.abs(X) + np.float32(0.5)
U = np.clip(X / 4, -0.9, 0.9)
I = RNG.integers(-7, 8, (3, 4))  # noqa: E741
J = np.where(I == 0, 3, I)
K = RNG.integers(0, 3, (2, 5))
N = RNG.integers(0, 100, (3, 4)).astype(np.uint8)
H = X.astype(np.float16)
D = X.astype(np.float64)
T = X > 0
Z = np.array([[0.0, np.nan, np.inf], [-np.inf, 1.5, -2.5]], np.float32)

Case = tuple[Callable[..., Any], tuple[Any, ...]]

CASES: dict[str, Case] = {
    # operators and promotion
    "arithmetic": (lambda x, y: (x + y, x - y, x * y, x / y, -x, abs(x), +x), (X, Y)),
    "reflected": (lambda x: (1 + x, 1 - x, 2 * x, 2 / (abs(x) + 1), 2.0 ** (x / 4)), (X,)),
    "floor division": (lambda x, y: (x // y, x % y, *divmod(x, y)), (X, Y)),
    "integer division": (lambda x, y: (x // y, x % y, x / y, x // 2, -x // 3), (I, J)),
    "unsigned": (lambda x: (x + 1, x // 3, x % 7, x & 12, x | 3, x ^ 5, ~x, x << 1, x >> 2), (N,)),
    "powers": (lambda x, i: (x**2, x**3, abs(x) ** 0.5, abs(x) ** 1.7, i**2, i**1), (X, I)),
    "comparisons": (lambda x, y: (x < y, x <= 0, x > y, x >= 0, x == y, x != y), (X, Y)),
    "bools": (lambda a, b: (a & b, a | b, a ^ b, ~a, a + b, a * b, a == b, a < b), (T, ~T)),
    "int and float": (lambda i, x: (i + x, i * 2, i * 2.5, i / 2, x + 1), (I.astype(np.int8), X)),
    "widths": (lambda h, x, d: (h + x, x + d, h * 2.5, h + 1, np.exp(h)), (H, X, D)),
    "bool arithmetic": (lambda t, x: (t + 1, t * 2.5, t * x, t.sum(), t.mean()), (T, X)),
    "python numbers": (lambda x, n, a: (x * n, x + a, x * (n + 1), x**n), (P, 2, 0.5)),
    "numpy scalars": (lambda x: (x + np.float64(1), x * np.float32(2), np.int8(3) + x), (X,)),
    "array on the left": (lambda x: (Y + x, Y @ x.T, np.float32(2) * x, I - x), (X,)),
    "broadcasting": (lambda x, y: x[:, None] + y[None] - y[0], (X, Y)),
    # ufuncs
    "exponentials": (lambda x: (np.exp(x), np.expm1(x), np.exp2(x), np.exp(x.astype(int))), (X,)),
    "logarithms": (lambda x: (np.log(x), np.log1p(x), np.log2(x), np.log10(x)), (P,)),
    "tiny": (lambda x: (np.expm1(x), np.log1p(x)), (X * np.float32(1e-6),)),
    "roots": (lambda x: (np.sqrt(x), np.cbrt(x), np.square(x), np.reciprocal(x)), (P,)),
    "trigonometry": (lambda x: (np.sin(x), np.cos(x), np.tan(x), np.arctan(x)), (X,)),
    "inverse": (lambda x: (np.arcsin(x), np.arccos(x), np.arctanh(x)), (U,)),
    "hyperbolic": (lambda x: (np.sinh(x), np.cosh(x), np.tanh(x), np.arcsinh(x)), (X,)),
    "angles": (lambda x, y: (np.arctan2(x, y), np.hypot(x, y), np.deg2rad(x)), (X, Y)),
    "rounding": (lambda x: (np.floor(x), np.ceil(x), np.rint(x), np.trunc(x), x.round(1)), (X,)),
    "extremes": (lambda x, y: (np.maximum(x, y), np.minimum(x, 0), np.fmax(x, y)), (X, Y)),
    "not finite": (lambda z: (np.isnan(z), np.isinf(z), np.isfinite(z), np.nan_to_num(z)), (Z,)),
    "nan": (lambda z: (np.maximum(z, 0), np.fmin(z, 0), np.sign(z), np.abs(z)), (Z,)),
    "logic": (lambda x, i: (np.logical_and(x > 0, i), np.logical_not(i)), (X, I)),
    "more": (lambda x, y: (np.logaddexp(x, y), np.heaviside(x, 0.5), np.fmod(x, y)), (X, Y)),
    "ufunc reduce": (lambda x: (np.add.reduce(x), np.maximum.reduce(x, axis=1)), (X,)),
    # reductions
    "sums": (lambda x: (x.sum(), x.sum(0), np.sum(x, axis=(0, 1), keepdims=True)), (X,)),
    "integer sums": (lambda n, i: (n.sum(), i.sum(1), n.prod(0), np.mean(i), n.max()), (N % 3, I)),
    "products": (lambda x: (x.prod(), np.prod(x, axis=1)), (X,)),
    "statistics": (lambda x: (x.mean(1), x.var(), x.std(0), np.var(x, axis=1, ddof=1)), (X,)),
    "half statistics": (lambda x: (x.mean(), x.var(axis=0), x.sum()), (H,)),
    "max and min": (lambda x, t: (x.max(), x.min(1), np.max(x, 0), t.max(0)), (X, T)),
    "truth": (lambda t, x: (t.any(), t.all(1), np.any(x, axis=0), np.count_nonzero(t)), (T, X)),
    "arguments": (lambda x: (x.argmax(), np.argmin(x, axis=1), np.argmax(x, 0)), (X,)),
    "cumulative": (lambda x: (np.cumsum(x), x.cumsum(1), np.cumulative_sum(x, axis=0)), (X,)),
    "norms": (lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=1)), (X,)),
    # products
    "matmul": (lambda a, m, b: (a @ m, b @ m, np.matmul(b, a.T), a[0] @ m), (X, M, B)),
    "dot": (lambda a, m: (np.dot(a, m), np.inner(a, a), np.vdot(a, a), np.outer(a, m[0])), (X, M)),
    "tensordot": (lambda b, x: (np.tensordot(b, x.T, 1), np.tensordot(b, x, ([1], [0]))), (B, X)),
    "einsum": (
        lambda b, x, m: (
            np.einsum("bij,jk->bik", b, m), np.einsum("bij,ij->b", b, x), np.einsum("ij->ji", x),
            np.einsum("...j,jk", b, m), np.einsum("ii->i", x[:, :3]),
            np.einsum("bij,bkj->bik", b, b),
        ),
        (B, X, M),
    ),
    "kron": (lambda x, m: np.kron(x, m), (X, M)),
    # movement
    "reshape": (lambda b: (b.reshape(6, 4), b.reshape((-1, 2)), b.ravel(), b.flatten()), (B,)),
    "transpose": (lambda b: (b.T, b.transpose(1, 0, 2), np.moveaxis(b, 0, -1), b.mT), (B,)),
    "axes": (lambda b: (np.swapaxes(b, 0, 2), np.expand_dims(b, (0, 2)), b[None].squeeze(0)), (B,)),
    "join": (lambda x, y: (np.concatenate([x, y]), np.stack([x, y], 1), np.hstack([x, y])), (X, Y)),
    "join dtypes": (lambda x, i: np.concatenate([x, i, np.ones((1, 4), np.int8)]), (X, I)),
    "split": (lambda x: (*np.split(x, 2, axis=1), *np.array_split(x, [1, 2])), (X,)),
    "broadcast": (lambda x: (np.broadcast_to(x, (2, 3, 4)), *np.broadcast_arrays(x, x[0])), (X,)),
    "flip": (lambda x: (np.flip(x), np.flip(x, 0), np.roll(x, 1), np.roll(x, 1, 0)), (X,)),
    "repeat": (lambda x: (np.repeat(x, 2, axis=1), np.tile(x, (2, 1)), x.repeat(3)), (X,)),
    "pad": (lambda x: (np.pad(x, 1), np.pad(x, ((0, 1), (2, 0)), constant_values=3)), (X,)),
    "pad modes": (lambda x: (np.pad(x, 1, mode="edge"), np.pad(x, 2, mode="reflect")), (X,)),
    "diagonals": (lambda x: (np.diagonal(x), np.trace(x), np.diagonal(x, 1)), (X,)),
    # indexing
    "numbers": (lambda b: (b[0], b[-1, 1], b[1, 2, 3], b[..., 0]), (B,)),
    "slices": (lambda b: (b[:, 1:], b[..., ::-1], b[:, ::2, 1:-1], b[1:1], b[:, 5:]), (B,)),
    "new axes": (lambda b: (b[None], b[:, None, :, None], b[..., None, 0]), (B,)),
    "arrays": (lambda x, k: (x[k], x[:, k], x[[2, 0]], x[k, 1:]), (X, K)),
    "negative": (lambda x: (x[np.array([-1, 0])], x[:, [-2, 1]]), (X,)),
    "pairs": (lambda b, k: (b[[0, 1], [2, 1]], b[k % 2, k], b[:, k, k], b[0, :, k]), (B, K)),
    "apart": (lambda b: b[[0, 1], :, [2, 3]], (B,)),
    "known masks": (lambda x: (x[T], x[np.array([True, False, True])]), (X,)),
    "iteration": (lambda x: sum(row * i for i, row in enumerate(x)), (X,)),
    "unpacking": (lambda b: (lambda p, q: p - q)(*b), (B,)),
    "slice by array": (lambda x, i: x[i + np.arange(2)], (X, np.int64(1))),
    # selection
    "where": (lambda x, y: (np.where(x > y, x, y), np.where(T, x, 1)), (X, X)),
    "clip": (lambda x: (np.clip(x, -0.5, 0.5), x.clip(0), np.clip(x, None, 1)), (X,)),
    "take": (lambda x, k: (np.take(x, k), np.take(x, k, axis=0), x.take([1], axis=1)), (X, K)),
    "along": (lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1), (X,)),
    "sort": (lambda x: (np.sort(x), np.sort(x, axis=0), np.argsort(x), np.sort(x, None)), (X,)),
    "triangles": (lambda x: (np.tril(x), np.triu(x, 1), np.tril(x, -1)), (X,)),
    "like": (lambda x: (np.zeros_like(x) + x, np.ones_like(x) * x, np.full_like(x, 7)), (X,)),
    "differences": (lambda x: (np.diff(x), np.diff(x, 2, axis=0), np.isclose(x, x + 1)), (X,)),
    "casts": (lambda x, i: (x.astype(np.int32), i.astype(float), x.astype(bool), x.dtype), (X, I)),
}  # fmt: skip


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_matches_numpy(name: str, device: str) -> None:
    function, arrays = CASES[name]
    if name == "casts":
        expected = tuple(function(*arrays))[:3]
        found = fuser.jit(lambda *a: function(*a)[:3], device=device)(*arrays)
    else:
        with np.errstate(all="ignore"):
            expected = function(*arrays)
        found = fuser.jit(function, device=device)(*arrays)
    pairs = (
        zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    )
    for wanted, got in pairs:
        wanted = np.asarray(wanted)
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        loose = 2e-3 if wanted.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(got, wanted, rtol=loose, atol=loose)


def test_array_api() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        xp = q.__array_namespace__()
        scores = xp.matmul(q, xp.matrix_transpose(k)) / q.shape[-1] ** 0.5
        place = xp.arange(q.shape[-2])
        scores = xp.where(place[:, None] >= place[None, :], scores, -xp.inf)
        powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        return xp.matmul(powers / xp.sum(powers, axis=-1, keepdims=True), v)

    q, k, v = (RNG.standard_normal((2, 8, 16)).astype(np.float32) for _ in range(3))
    traced = fuser.trace(attention, q, k, v, device="cpu")
    np.testing.assert_allclose(traced(q, k, v), attention(q, k, v), rtol=1e-5, atol=1e-6)
    assert traced.plan.launches == 1  # recognised as attention
    assert traced.report().kernels.before > 5


def test_array_api_creation() -> None:
    def function(x: Any) -> Any:
        xp = x.__array_namespace__()
        return (
            x + xp.zeros((3, 4), dtype=xp.float32) + xp.ones(4, dtype=xp.float32),
            xp.eye(3, 4, k=1) + x,
            xp.arange(2, 10, 2) * x[0],
            xp.linspace(0, 1, 4) * x,
            xp.full((3, 1), 2.5, dtype=xp.float32) * x,
            xp.astype(x, xp.int32),
            xp.permute_dims(x, (1, 0)),
            xp.concat([x, xp.flip(x)], axis=1),
            xp.var(x, correction=1),
            xp.asarray([1.0, 2.0, 3.0, 4.0]) * x,
            xp.acos(xp.tanh(x)),
            xp.tril(xp.ones((3, 3))) @ x,
        )

    found = fuser.jit(function, device="cpu")(X)
    for got, wanted in zip(found, function(X), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_rest_of_the_least_integer_on_a_gpu(dtype: str) -> None:
    """Its absolute value is itself, below 0, whatever divides it."""
    least = np.iinfo(dtype).min
    x = np.full(300, least, dtype)
    y = np.arange(3, 303).astype(dtype)
    y[y == 0] = 7

    def rest(x: Any, y: Any) -> Any:
        return np.abs(x) % y

    found = fuser.trace(rest, fuser.spec(300, dtype), fuser.spec(300, dtype), device="cuda")(x, y)
    np.testing.assert_array_equal(found, np.full(300, least, dtype) % y)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_signs_of_zero(dtype: type, device: str) -> None:
    zeros = np.array([0.0, -0.0, 1.0, -1.0], dtype)
    for function in (np.sign, np.cbrt):
        found = fuser.jit(lambda x, f=function: f(x), device=device)(zeros)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(function(zeros)))
