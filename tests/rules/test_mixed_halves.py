"""A sum of bfloat16 values in float32 or float64 is rounded to float16 once, after the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser

Array = np.ndarray[Any, Any]
# Each operand is out of float16's range or below its least number, each result is not.
A = np.array([1e5, 2e5, 7e4, 3, 1e-6, 2**-30], ml_dtypes.bfloat16)
B = np.array([1e5, 1.9e5, 6.9e4, 1, 2e-6, 2**-31], ml_dtypes.bfloat16)
C = np.array([1e-5, 2e-6, 1e-4, 3, 1e6, 2.0**30], ml_dtypes.bfloat16)
STEPS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "a - b": lambda a, b, c: a - b,
    "a * c": lambda a, b, c: a * c,
    "a / b": lambda a, b, c: a / b,
    "a - a": lambda a, b, c: a - a,
    "(a - b) * c": lambda a, b, c: (a - b) * c,
    "max - b": lambda a, b, c: np.maximum(a, b) - b,
    "sqrt": lambda a, b, c: np.sqrt(a),
}


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("numerics", ["model", "strict"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_rounded_once(device: str, numerics: Any, wide: type[np.floating[Any]]) -> None:
    def steps(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        x, y, z = (v.astype(wide) for v in (a, b, c))
        return tuple(step(x, y, z).astype(np.float16) for step in STEPS.values())

    want = steps(A, B, C)
    have = fuser.jit(steps, device=device, numerics=numerics)(A, B, C)
    wrong = [n for n, x, y in zip(STEPS, want, have, strict=True) if not np.array_equal(x, y)]
    assert not wrong
