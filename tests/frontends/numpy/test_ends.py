"""NumPy functions at the ends of their dtypes, and what NumPy rounds to float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import TraceError
from fuser.graph.evaluate import evaluate

Array = np.ndarray[Any, Any]
DTYPES = [np.float16, np.float32, np.float64]


def ends(dtype: Any) -> Array:
    """Of both signs: the largest numbers, those whose squares over- and underflow, the smallest
    normal one, subnormals, zeros, infinities; NaN."""
    kind = np.finfo(dtype)
    most, least, step = float(kind.max), float(kind.tiny), float(kind.eps)
    sizes = [most, most / 3, most**0.5 * 1.5, 20.0, 3.0, 1.0, 0.5, step, least**0.5, least,
             least / 3, float(kind.smallest_subnormal), 0.0, np.inf]  # fmt: skip
    return np.array([x for size in sizes for x in (size, -size)] + [np.nan, -np.nan], dtype)


def assert_near(name: str, found: Array, wanted: Array) -> None:
    kind = np.finfo(wanted.dtype)
    wide, exact = found.astype(np.float64), wanted.astype(np.float64)
    units = 16 * float(kind.eps) * np.abs(exact) + 4 * float(kind.smallest_subnormal)
    same = (wide == exact) | (np.isnan(wide) & np.isnan(exact))
    with np.errstate(all="ignore"):
        right = same | (np.abs(wide - exact) <= units)
    right &= (wide != 0) | (exact != 0) | (np.signbit(wide) == np.signbit(exact))
    assert found.dtype == wanted.dtype
    assert right.all(), f"{name}: {found[~right]} for {wanted[~right]}"


ONE = ("exp", "expm1", "log1p", "sinh", "cosh", "tanh", "arcsinh", "log2", "log10", "cbrt", "sqrt",
       "reciprocal", "deg2rad", "rad2deg", "arctan")  # fmt: skip
TWO = ("hypot", "arctan2", "logaddexp", "logaddexp2", "copysign", "add", "multiply")


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions(dtype: Any) -> None:
    x = ends(dtype)
    a, b = (np.ascontiguousarray(side) for side in np.broadcast_arrays(x[:, None], x[None]))

    @fuser.jit(device="cpu")
    def of_one(x: Any) -> Any:
        return tuple(getattr(np, name)(x) for name in ONE)

    @fuser.jit(device="cpu")
    def of_two(a: Any, b: Any) -> Any:
        return tuple(getattr(np, name)(a, b) for name in TWO)

    with np.errstate(all="ignore"):
        for name, found in zip(ONE, of_one(x), strict=True):
            assert_near(name, found, getattr(np, name)(x))
        for name, found in zip(TWO, of_two(a, b), strict=True):
            wanted = getattr(np, name)(a, b)
            if name == "logaddexp2" and dtype is np.float16:  # NumPy scales by a rounded constant
                continue
            assert_near(name, found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs(dtype: Any) -> None:
    x = ends(dtype)
    found = fuser.jit(lambda x: (np.signbit(x), np.copysign(1, x)), device="cpu")(x)
    np.testing.assert_array_equal(found[0], np.signbit(x))
    np.testing.assert_array_equal(found[1], np.copysign(1, x))


def test_numbers_take_the_dtype_of_the_array() -> None:
    """As NEP 50 has it: a Python number is rounded to float16 before it is used."""
    x = np.linspace(-3, 3, 999).astype(np.float16)
    ways: list[Callable[[Any], Any]] = [
        lambda x: x / 0.3, lambda x: x * 0.1, lambda x: x + 0.3, lambda x: 0.3 - x,
        lambda x: np.maximum(x, 0.3), lambda x: np.where(x > 0.3, x, 0.1),
    ]  # fmt: skip
    found = fuser.jit(lambda x: tuple(way(x) for way in ways), device="cpu")(x)
    for one, way in zip(found, ways, strict=True):
        different = np.mean(one != way(x))
        assert one.dtype == np.float16
        assert different < 0.1


SMALL: list[Callable[[Any], Any]] = [
    np.exp, np.sqrt, np.sin, np.log1p, lambda x: np.hypot(x, x), lambda x: np.arctan2(x, x),
    lambda x: np.exp(x) * 3,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("function", SMALL)
def test_float16_of_small_integers_is_rounded(function: Any, dtype: Any) -> None:
    """By a cast of the graph, whatever reads the result."""
    x = np.array([1, 2, 3]).astype(dtype)
    graph = fuser.trace(lambda x: function(x).astype(np.float64), x, device="cpu").graph
    (found,) = evaluate(graph, {graph.inputs[0].name: x}).values()
    wanted = function(x).astype(np.float64)
    assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(wanted).max()
    np.testing.assert_array_equal(found, found.astype(np.float16))


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.int8, np.uint8])
@pytest.mark.parametrize("decimals", [-3, -2, -1, 0, 1])
def test_rounding_keeps_integers(decimals: int, dtype: Any) -> None:
    x = np.array([14, 15, 25, 35, 99, 100, 5]).astype(dtype)
    found = fuser.jit(lambda x: np.round(x, decimals), device="cpu")(x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.round(x, decimals))


def test_rounding_of_floats_to_tens() -> None:
    x = np.array([1234.5, -25.0, 15.0, 1e7 + 5, 0.0])
    found = fuser.jit(lambda x: (np.round(x, -1), np.round(x, -2), np.round(x, 2)), device="cpu")(x)
    for one, decimals in zip(found, (-1, -2, 2), strict=True):
        np.testing.assert_array_equal(one, np.round(x, decimals))


def test_truth_values_are_rounded_to_float16() -> None:
    x = np.array([True, False])
    found = fuser.jit(lambda x: (np.round(x), x.round()), device="cpu")(x)
    for one in found:
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, np.round(x))
    for function in (lambda x: np.round(x, 1), lambda x: np.quantile(x, 0.5)):
        with pytest.raises(TraceError, match="truth values"):
            fuser.jit(function, device="cpu")(x)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("k", [-1, 0, 1, 5])
def test_triangles_of_a_vector_as_rows(k: int, dtype: Any) -> None:
    x = np.arange(3).astype(dtype)
    found = fuser.jit(lambda x: (np.tril(x, k), np.triu(x, k)), device="cpu")(x)
    for one, wanted in zip(found, (np.tril(x, k), np.triu(x, k)), strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_a_number_has_no_triangle() -> None:
    with pytest.raises(TraceError, match="no triangle"):
        fuser.jit(lambda x: np.tril(x), device="cpu")(np.float32(3))
