"""Elementary functions over the whole range of their type, against wider arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.backend.math import FUNCTIONS, MAX_ULP
from fuser.backend.math_circular import IN_LINE
from fuser.dtypes import DType, f16, f32, f64
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from tests.backend.cpu import native

Array = np.ndarray[Any, Any]
WIDER: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "tanh": np.tanh,
    "erf": np.vectorize(math.erf), "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power,
}  # fmt: skip
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 88.8, -104.0, 1e-45)
CIRCULAR = ("sin", "cos", "tan")
ODD = ("sin", "tan", "tanh", "asin", "atan", "sinh", "asinh", "atanh", "erf")
BLOCK = 4096


def apply(fn: str, arrays: list[Array], dtype: DType) -> Array:
    """The function on whole arrays, natively; sizes are multiples of BLOCK."""
    size = arrays[0].size
    b = Builder(fn)
    inputs = [b.buffer(f"x{i}", dtype, size) for i in range(len(arrays))]
    y = b.buffer("y", dtype, size, role="output")
    at = index(b.program_id(0, size // BLOCK)) * BLOCK + axis(0, BLOCK)
    tiles = [b.load(b.view(x, (size,)), (at,), (BLOCK,), pad=None) for x in inputs]
    b.store(b.view(y, (size,)), (at,), b.map(fn, *tiles))
    feeds = {f"x{i}": array for i, array in enumerate(arrays)} | {"y": np.zeros(size, dtype.numpy)}
    native.run(b.build(), feeds)
    return feeds["y"]


def spread(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Any bit pattern in one half, usual magnitudes in the other."""
    word = np.uint32 if dtype is f32 else np.uint64
    patterns = rng.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True)
    x = patterns.view(dtype.numpy).copy()
    scales = rng.choice([1e-3, 0.1, 1.0, 3.0, 30.0], count // 2)
    x[: count // 2] = (rng.standard_normal(count // 2) * scales).astype(dtype.numpy)
    x[: len(SPECIAL)] = SPECIAL
    return x


def test_every_function_has_a_bound_and_is_measured() -> None:
    """As the recipe for an elementwise primitive in CONTRIBUTING says."""
    assert set(FUNCTIONS) == set(MAX_ULP) == set(WIDER)
    recipe = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    assert "`MAX_ULP`" in recipe and "`WIDER`" in recipe


@pytest.mark.parametrize("fn", sorted(WIDER))
def test_float(fn: str, rng: np.random.Generator) -> None:
    count = 1 << 17
    arrays = [spread(f32, count, rng)]
    with np.errstate(all="ignore"):
        if fn == "pow":
            arrays.append(rng.permutation(spread(f32, count, rng)))
            arrays[1][::2] = np.round(arrays[1][::2])
        want = WIDER[fn](*(a.astype(np.float64) for a in arrays))
        rounded = want.astype(np.float32)
    have = apply(fn, arrays, f32)
    assert (np.isnan(have) == np.isnan(rounded)).all()
    differ = (have != rounded) & ~np.isnan(have)
    with np.errstate(all="ignore"):
        step = np.spacing(np.minimum(np.abs(rounded), np.float32(3.4e38))).astype(np.float64)
        error = np.abs(have.astype(np.float64) - want) / step
    assert np.max(error[differ], initial=0.0) <= MAX_ULP[fn][0]


@pytest.mark.parametrize("fn", sorted(set(WIDER) - {"pow"}))
def test_double(fn: str, rng: np.random.Generator) -> None:
    mpmath = pytest.importorskip("mpmath")
    x = spread(f64, BLOCK, rng)
    x[600:] = rng.permutation(x)[600:]
    have = apply(fn, [x], f64)
    with np.errstate(all="ignore"):
        near = WIDER[fn](x)
    others = {"exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2)}
    exact = others.get(fn) or getattr(mpmath, fn)
    worst = 0.0
    with mpmath.workdps(40):
        for argument, found, about in zip(x[:600], have[:600], near[:600], strict=True):
            if not np.isfinite(about) or not np.isfinite(argument):
                assert found == about or (np.isnan(found) and np.isnan(about)), argument
                continue
            error = abs(mpmath.mpf(float(found)) - exact(mpmath.mpf(float(argument))))
            worst = max(worst, float(error / mpmath.mpf(float(np.spacing(abs(about))))))
    assert worst <= MAX_ULP[fn][1]


@pytest.mark.parametrize("count", [1, 2, 5, 8, 15, 17, 40, 100])
def test_erf_has_the_same_bits_in_vectors_of_all_lengths(
    count: int, rng: np.random.Generator
) -> None:
    """Also where it looks numbers up in tables of 16."""
    x = np.zeros(BLOCK, np.float32)
    x[:count] = rng.standard_normal(count) * 2
    b = Builder("erf")
    short, y = b.buffer("x", f32, count), b.buffer("y", f32, count, role="output")
    tile = b.load(b.view(short, (count,)), (axis(0, count),), (count,), pad=None)
    b.store(b.view(y, (count,)), (axis(0, count),), b.map("erf", tile))
    feeds = {"x": x[:count].copy(), "y": np.zeros(count, np.float32)}
    native.run(b.build(), feeds)
    np.testing.assert_array_equal(feeds["y"], apply("erf", [x], f32)[:count])


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_erf_of_large_numbers_is_one(dtype: DType, rng: np.random.Generator) -> None:
    x = np.exp(rng.uniform(np.log(6), 80, BLOCK)).astype(dtype.numpy)
    x[0] = np.inf
    assert (apply("erf", [x], dtype) == 1).all() and (apply("erf", [-x], dtype) == -1).all()


NEAR_POLES = (6381956970095103.0 * 2.0**797, 5319372648326541.0 * 2.0**11, 2.0**1023, 1.7e308)
"""The double nearest to a multiple of pi / 2 is the first."""


@pytest.mark.parametrize("fn", CIRCULAR)
def test_huge_angles(fn: str, rng: np.random.Generator) -> None:
    """Every exponent, both signs, beside arguments that are not huge."""
    mpmath = pytest.importorskip("mpmath")
    x = np.full(BLOCK, 0.25)
    exponents = np.arange(20, 1023)
    x[: len(exponents)] = np.ldexp(1 + rng.random(len(exponents)), exponents)
    x[1000 : 1000 + len(NEAR_POLES)] = NEAR_POLES
    x[:2000:3] *= -1
    exact = getattr(mpmath, fn)
    with mpmath.workdps(40):
        want = np.array([float(exact(mpmath.mpf(float(v)))) for v in x[:1100]])
    have = apply(fn, [x], f64)[:1100]
    assert (np.abs(have - want) / np.spacing(np.abs(want))).max() <= MAX_ULP[fn][1] + 0.5
    narrow = np.where(np.abs(x) < 3e38, x, 0.25).astype(np.float32)
    wide = apply(fn, [narrow.astype(np.float64)], f64)
    np.testing.assert_array_equal(apply(fn, [narrow], f32), wide.astype(np.float32))


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("fn", ODD)
def test_odd_functions_keep_the_sign_of_zero(fn: str, dtype: DType) -> None:
    x = np.zeros(BLOCK, dtype.numpy)
    x[::3] = -0.0
    x[1::3] = -np.finfo(dtype.numpy).tiny
    have = apply(fn, [x], dtype)
    np.testing.assert_array_equal(np.signbit(have), np.signbit(x))
    assert (have[x == 0] == 0).all()


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("fn", CIRCULAR)
def test_infinite_angles(fn: str, dtype: DType) -> None:
    x = np.full(BLOCK, np.inf, dtype.numpy)
    x[::2], x[::3] = -np.inf, 1e30
    have = apply(fn, [x], dtype)
    np.testing.assert_array_equal(np.isnan(have), np.isinf(x))


def test_more_angles_than_are_written_in_line(rng: np.random.Generator) -> None:
    """Beyond so many, a kernel calls a function."""
    b = Builder("angles")
    x, y = b.buffer("x", f64, BLOCK), b.buffer("y", f64, BLOCK, role="output")
    tile = b.load(b.view(x, (BLOCK,)), (axis(0, BLOCK),), (BLOCK,), pad=None)
    total, count = tile, 2 * IN_LINE
    for i in range(count):
        total = b.map("add", total, b.map(CIRCULAR[i % 2], b.map("add", tile, total)))
    b.store(b.view(y, (BLOCK,)), (axis(0, BLOCK),), total)
    angles = rng.standard_normal(BLOCK) * 10.0 ** rng.integers(-2, 16, BLOCK)
    feeds = {"x": angles, "y": np.zeros(BLOCK)}
    native.run(b.build(), feeds)
    want = angles.copy()
    for i in range(count):
        want = want + (np.sin, np.cos)[i % 2](angles + want)
    assert np.median(np.abs(feeds["y"] - want) / np.spacing(np.abs(want))) < 16


def test_pow_of_doubles(rng: np.random.Generator) -> None:
    """Results near 1 and near the limits, against the wider logarithms of mpmath."""
    mpmath = pytest.importorskip("mpmath")
    a = np.exp(rng.standard_normal(BLOCK) * rng.choice([1e-3, 1.0, 100.0], BLOCK))
    b = rng.uniform(-700, 700, BLOCK) * rng.choice([1.0, 0.01], BLOCK) / np.log(a)
    have = apply("pow", [a, b], f64)
    with mpmath.workprec(200):
        for x, y, z in list(zip(a, b, have, strict=True))[::5]:
            want = mpmath.power(mpmath.mpf(float(x)), mpmath.mpf(float(y)))
            error = abs(float((mpmath.mpf(float(z)) - want) / mpmath.mpf(float(np.spacing(z)))))
            assert error <= MAX_ULP["pow"][1], (x, y)


def test_whole_powers_of_doubles_are_exact() -> None:
    """A cast to an integer must not come out one less."""
    pairs = [(a, b) for a in range(1, 41) for b in range(54) if a**b <= 2**53]
    a, b = (np.resize(side, BLOCK).astype(np.float64) for side in np.array(pairs).T)
    want = [float(x**y) for x, y in pairs]
    np.testing.assert_array_equal(apply("pow", [a, b], f64)[: len(pairs)], want)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_fmod_is_exact(dtype: DType, rng: np.random.Generator) -> None:
    a, b = (spread(dtype, BLOCK, rng) for _ in range(2))
    b = rng.permutation(b)
    with np.errstate(all="ignore"):
        want = np.fmod(a, b)
    np.testing.assert_array_equal(apply("fmod", [a, b], dtype), want)


def test_divide_all_rounds_correctly(rng: np.random.Generator) -> None:
    """A vector over one divisor gives the quotients of a division."""
    rows, columns = 64, 96
    b = Builder("divide")
    x, d = b.buffer("x", f32, rows * columns), b.buffer("d", f32, rows)
    y = b.buffer("y", f32, rows * columns, role="output")
    row = index(b.program_id(0, rows))
    tile = b.load(b.view(x, (rows, columns)), (row, axis(1, columns)), (1, columns), pad=None)
    by = b.load(b.view(d, (rows,)), (row + axis(0, 1),), (1,), pad=None)
    made = b.map("div", tile, b.broadcast(by, (1, columns), (0,)))
    b.store(b.view(y, (rows, columns)), (row, axis(1, columns)), made)
    numerators = spread(f32, rows * columns, rng)
    numerators[::7], numerators[3::7] = 0.0, -0.0
    divisors = spread(f32, rows, rng)
    feeds = {"x": numerators, "d": divisors, "y": np.zeros(rows * columns, np.float32)}
    native.run(b.build(), feeds)
    with np.errstate(all="ignore"):
        want = (numerators.reshape(rows, columns) / divisors[:, None]).reshape(-1)
    np.testing.assert_array_equal(feeds["y"], want)
    assert np.array_equal(np.signbit(feeds["y"]), np.signbit(want))


@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize("fn", [*sorted(set(WIDER) - {"pow"}), "sign"])
def test_halves_of_doubles(fn: str, count: int, rng: np.random.Generator) -> None:
    """Rounded twice, to float and to half: LLVM takes copysign(double) to half by a function of a
    library that processes lack."""
    b = Builder(fn)
    x, y = b.buffer("x", f64, count), b.buffer("y", f16, count, role="output")
    tile = b.load(b.view(x, (count,)), (axis(0, count),), (count,), pad=None)
    half = b.cast(b.cast(b.map(fn, tile), f32), f16)
    b.store(b.view(y, (count,)), (axis(0, count),), half)
    numbers = rng.uniform(1.0 if fn == "acosh" else -0.9, 2.0 if fn == "acosh" else 0.9, count)
    feeds = {"x": np.abs(numbers) if fn.startswith("log") else numbers, "y": np.zeros(count, "f2")}
    native.run(b.build(), feeds)
    want = WIDER.get(fn, np.sign)(feeds["x"]).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(feeds["y"], want)


def test_asinh_of_halves() -> None:
    b = Builder("asinh")
    x, y = b.buffer("x", f16, 1), b.buffer("y", f16, 1, role="output")
    tile = b.cast(b.load(b.view(x, (1,)), (axis(0, 1),), (1,), pad=None), f32)
    b.store(b.view(y, (1,)), (axis(0, 1),), b.cast(b.map("asinh", tile), f16))
    feeds = {"x": np.array([-0.5], np.float16), "y": np.zeros(1, np.float16)}
    native.run(b.build(), feeds)
    np.testing.assert_array_equal(feeds["y"], np.arcsinh(feeds["x"]))
