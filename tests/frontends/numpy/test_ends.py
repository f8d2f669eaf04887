"""NumPy functions at the ends of their dtypes, and what NumPy rounds to float16."""

from __future__ import annotations

import itertools
import warnings
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


def compared(function: Callable[..., Any], *operands: Any, bits: bool = True) -> None:
    """NumPy's numbers and dtypes; bits: and its signs of zero."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = function(*operands)
    found = fuser.jit(function, device="cpu")(*operands)
    for one, other in zip(found, wanted, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)
        if bits and np.asarray(one).dtype.kind == "f":
            number = ~np.isnan(other)
            np.testing.assert_array_equal(np.signbit(one)[number], np.signbit(other)[number])


INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def whole_ends(dtype: Any) -> Array:
    kind = np.iinfo(dtype)
    below = [-7, -2, -1] if kind.min else []
    whole = [kind.min, kind.min + 1, *below, 0, 1, 2, 3, 7, kind.max - 1, kind.max]
    return np.array(whole, dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_divisions_of_integers(dtype: Any) -> None:
    """By 0 they give 0, and the least number by -1 itself."""
    x = whole_ends(dtype)
    a, b = (np.ascontiguousarray(side) for side in np.broadcast_arrays(x[:, None], x[None]))
    known = np.resize(np.array([0, 3, 7], dtype), len(x))
    compared(
        lambda a, b, x: (
            a // b, a % b, np.fmod(a, b), *np.divmod(a, b), x // 0, x % 0, *np.divmod(x, 0),
            x // 3, 5 // x, 5 % x, x // known, x % known,
        ),
        a, b, x,
    )  # fmt: skip


@pytest.mark.parametrize("other", [*INTEGERS, np.bool_])
@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_comparisons_of_integers(dtype: Any, other: Any) -> None:
    """Exact, also between types that no common type holds."""
    x, y = whole_ends(dtype), np.array([False, True]) if other is np.bool_ else whole_ends(other)
    a, b = (np.ascontiguousarray(side) for side in np.broadcast_arrays(x[:, None], y[None]))
    compared(
        lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b, b < a, b <= a, b > a, b >= a),
        a, b,
    )  # fmt: skip


@pytest.mark.parametrize("number", [-1, 0, 5, 2**62])
def test_comparisons_with_integers_of_python(number: int) -> None:
    for dtype in (np.uint64, np.int64, np.uint8, np.int16):
        x = whole_ends(dtype)
        compared(lambda x, n: (x < n, n <= x, x == n, x != n), x, number)
        compared(lambda x: (x < number, number <= x, x == number, x != number), x)


@pytest.mark.parametrize("shape", [(0, 5), (3, 5), (5, 3), (1, 1), (0, 0), (2, 3, 4), (4, 0, 2)])
def test_diagonals_outside_of_the_matrix(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    offsets = (-9, -3, -1, 0, 1, 2, 5)
    compared(lambda x: tuple(np.diagonal(x, k) for k in offsets), x)
    compared(lambda x: tuple(np.trace(x, k, -1, -2) for k in offsets), x)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (2, 0), (2, 3)])
def test_norms_over_no_elements(shape: tuple[int, ...]) -> None:
    x = np.full(shape, -2, np.float32)
    for axis in (0, -1):
        compared(
            lambda x, axis=axis: tuple(
                np.linalg.norm(x, ord=ord, axis=axis, keepdims=keep)
                for ord in (None, 1, 2, np.inf)
                for keep in (False, True)
            ),
            x,
        )
    if not shape[-1]:
        with pytest.raises(TraceError, match="no elements"):
            fuser.jit(lambda x: np.linalg.norm(x, ord=-np.inf, axis=-1), device="cpu")(x)


@pytest.mark.parametrize("dtype", [*DTYPES, np.int32, np.uint8, np.bool_])
def test_sinc(dtype: Any) -> None:
    """Also where a float16 is as coarse as a period."""
    values = np.array([0, 1, 2, 11, 10.1171875, 30, 100.25, 2000, 0.25])
    x = values.astype(dtype)
    x = np.concatenate([x, -x]) if np.dtype(dtype).kind == "f" else x
    (found,) = fuser.jit(lambda x: (np.sinc(x),), device="cpu")(x)
    wanted = np.sinc(x)
    assert found.dtype == wanted.dtype
    assert (np.abs(found - wanted) <= np.finfo(wanted.dtype).eps / 4).all()


def test_means_in_integers() -> None:
    """A sum of integers is divided in float64, as NumPy has it."""
    wide = np.array([[2**61, 2**61 + 5, 2**60], [1, -(2**62), 7]])
    mixed = np.array([[1.5, 2.5, -4.75], [7, -9, 11.5]], np.float32)
    compared(lambda x: (np.mean(x, dtype=np.int64), np.mean(x, 0, dtype=np.int64)), wide)
    compared(lambda x: (np.mean(x, dtype=np.int64), np.mean(x, 1, dtype=np.int32)), mixed)
    compared(lambda x: (np.mean(x, dtype=np.int64, where=x > 2),), mixed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_orders_of_infinities_and_nan(dtype: Any) -> None:
    """In every order: NaN comes after inf, wherever it stood."""
    rows = np.array(list(itertools.permutations([np.inf, np.nan, -np.inf, 1, np.nan])), dtype)
    compared(
        lambda x: (
            np.sort(x, axis=1), np.sort(x, axis=0), np.argsort(x, axis=1, kind="stable"),
            np.argmax(x, axis=1), np.argmin(x, axis=1), np.median(x, axis=1),
            np.nanmedian(x, axis=1), np.nanargmax(x, axis=1), np.nanargmin(x, axis=1),
        ),
        rows,
    )  # fmt: skip
    compared(
        lambda x: tuple(
            np.searchsorted(np.sort(x.ravel()), x[:9], side=side) for side in ("left", "right")
        ),
        rows,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_medians_are_never_negative_zero(dtype: Any) -> None:
    for row in ([-0.0], [-1, -0.0, 3], [-0.0, -0.0], [-2, -0.0, -0.0, 2], [np.nan, -0.0]):
        x = np.array(row, dtype)
        compared(
            lambda x: (
                np.median(x), np.median(x[None], axis=1), np.nanmedian(x),
                np.nanmedian(x[None], axis=1, keepdims=True),
            ),
            x,
        )  # fmt: skip
