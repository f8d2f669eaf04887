"""Comparisons of a value whose sign is known with numbers it cannot reach: NaN compares false."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser

Array = np.ndarray[Any, Any]
OPERATORS = (operator.gt, operator.ge, operator.lt, operator.le, operator.eq, operator.ne)
NUMBERS = (-2, -1, 0, 1, np.inf)
KNOWN: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "abs of reciprocal": lambda x: np.abs(1 / x),
    "minus abs": lambda x: -np.abs(x),
    "abs + 1": lambda x: np.abs(x) + 1,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "square": lambda x: x * x,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, 0, 1),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_comparisons(device: str, dtype: type[np.floating[Any]]) -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 1, -1, 0.5, 2.5], dtype)

    def compared(x: Array) -> tuple[Array, ...]:
        values = [known(x) for known in KNOWN.values()]
        return tuple(op(y, dtype(n)) for y in values for op in OPERATORS for n in NUMBERS)

    with np.errstate(all="ignore"):
        want = compared(x)
        have = fuser.jit(compared, device=device)(x)
    names = [(name, op.__name__, n) for name in KNOWN for op in OPERATORS for n in NUMBERS]
    wrong = [n for n, a, b in zip(names, want, have, strict=True) if not np.array_equal(a, b)]
    assert not wrong
