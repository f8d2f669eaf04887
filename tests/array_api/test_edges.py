"""Signs of zero, infinities and Python's True and False, as NumPy has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser

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
