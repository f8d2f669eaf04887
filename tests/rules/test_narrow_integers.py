"""Narrow integers wrap before they are widened or compared: -(-32768) is -32768 in int16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser

Array = np.ndarray[Any, Any]
STEPS: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: -x,
    "0 - x": lambda x: x.dtype.type(0) - x,
    "x * -1": lambda x: x * x.dtype.type(-1),
    "~x + 1": lambda x: ~x + x.dtype.type(1),
    "abs": np.abs,
    "-abs": lambda x: -np.abs(x),
    "-(x & y)": lambda x: -(x & x[::-1]),
    "x - least": lambda x: x - x.dtype.type(np.iinfo(x.dtype).min),
    "2 * x": lambda x: x + x,
    "x * x": lambda x: x * x,
    "x << 1": lambda x: x << x.dtype.type(1),
}
USES: dict[str, Callable[[Array], Array]] = {
    "min": lambda y: np.minimum(y, y.dtype.type(1)),
    "max": lambda y: np.maximum(y, y.dtype.type(-1)),
    "less": lambda y: y < y.dtype.type(1),
    "int32": lambda y: y.astype(np.int32),
    "int64": lambda y: y.astype(np.int64) + 1,
    "float32": lambda y: y.astype(np.float32),
    "float64": lambda y: y.astype(np.float64),
    "quotient": lambda y: y // y.dtype.type(3),
    "shift": lambda y: y >> y.dtype.type(2),
}


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_wrap_then_use(device: str, dtype: type[np.signedinteger[Any]]) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.min + 1, -1, 0, 1, limits.max, limits.min, 7], dtype)

    def used(x: Array) -> tuple[Array, ...]:
        return tuple(use(step(x)) for step in STEPS.values() for use in USES.values())

    with np.errstate(all="ignore"):
        want = used(x)
        have = fuser.jit(used, device=device)(x)
    names = [(step, use) for step in STEPS for use in USES]
    wrong = [n for n, a, b in zip(names, want, have, strict=True) if not np.array_equal(a, b)]
    assert not wrong
