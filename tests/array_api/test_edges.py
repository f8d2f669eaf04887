"""Signs of zero, infinities and Python's True and False, as NumPy has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import TraceError

EDGES = np.array(
    [0.0, -0.0, 1, -1, 2.5, -2.5, 3, -3.5, 7, -7, 1e-30, -1e-30, 1e30, np.inf, -np.inf, np.nan]
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [np.floor_divide, np.remainder, np.fmod, np.arctan2])
def test_pairs_of_edges(function: Callable[..., Any], dtype: Any) -> None:
    x, y = (side.ravel().astype(dtype) for side in np.meshgrid(EDGES, EDGES))
    with np.errstate(all="ignore"):
        wanted = function(x, y)
    found = fuser.jit(lambda x, y: function(x, y), device="cpu")(x, y)
    np.testing.assert_allclose(found, wanted, rtol=8 * np.finfo(dtype).eps)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(wanted[known]))


@pytest.mark.parametrize(
    "function", [np.bitwise_and, np.bitwise_xor, np.equal, np.not_equal, np.logical_or]
)
def test_true_as_an_argument(function: Callable[..., Any]) -> None:
    x = np.array([True, False])
    found = fuser.jit(lambda x, y: function(x, y), device="cpu")(x, True)
    np.testing.assert_array_equal(found, function(x, True), strict=True)


def test_true_beside_other_dtypes() -> None:
    for x in (np.array([1, 2], np.int8), np.array([0.5], np.float32)):
        found = fuser.jit(lambda x, y: (x + y, np.where(x > 0, x, y)), device="cpu")(x, True)
        wanted = x + True, np.where(x > 0, x, True)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


def test_steps_without_a_start() -> None:
    def steps(x: Any) -> Any:
        xp = x.__array_namespace__()
        return xp.arange(7, step=2), xp.arange(2.0, step=0.5), xp.arange(3), x

    found = fuser.trace(steps, fuser.spec(1), device="cpu")(np.zeros(1, np.float32))
    for got, wanted in zip(
        found, (np.arange(0, 7, 2), np.arange(0, 2, 0.5), np.arange(3)), strict=False
    ):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("repeats", [[], [2], 3, np.array([], np.int8)])
def test_repeats_of_nothing(repeats: Any) -> None:
    x = np.zeros((0, 2), np.float32)
    found = fuser.trace(lambda x: np.repeat(x, repeats, axis=0), x, device="cpu")(x)
    assert found.shape == (0, 2)


def test_vecdot_along_an_axis() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3) - 2

    def both(x: Any, y: Any) -> Any:
        return np.vecdot(x, y, axis=0), x.__array_namespace__().vecdot(x, y, axis=-2)

    for got in fuser.trace(both, x, y, device="cpu")(x, y):
        np.testing.assert_array_equal(got, np.vecdot(x, y, axis=0))


def test_axes_of_universal_functions_are_refused() -> None:
    x = np.ones((2, 2))
    with pytest.raises(TraceError, match="axes"):
        fuser.trace(lambda x: np.matmul(x, x, axes=[(0, 1)] * 3), x, device="cpu")
