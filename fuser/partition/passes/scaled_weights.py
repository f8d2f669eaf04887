"""Constant weights times a gain along the axis that a matmul sums over, in their own dtype."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROWS_AT_ONCE = 32
"""Rows of weights that are multiplied at a time, in float32: they stay in a cache."""
CHECKED = 16
"""Of so many rows of weights one is compared with what it should be."""

_known: dict[tuple[int, bytes, int], tuple[weakref.ref[Array], weakref.ref[Array]]] = {}
"""(the weights, the product), as long as somebody has both."""


def scaled_rows(weights: Array, gain: Array, axis: int) -> Array | None:
    """Weights [rows, columns] of 16-bit floats times the gain along an axis, rounded to their
    dtype: the same array each time, so that kernels of one plan for other sizes share it. None
    where an element is too large for the dtype, or where they are so small that rounding is more
    than half a unit of the last place."""
    key = (id(weights), gain.tobytes(), axis)
    if key in _known:
        before, found = (reference() for reference in _known[key])
        if before is weights and found is not None:
            return found
    made = _scaled(weights, gain, axis)
    if made is not None:
        for old in [old for old, pair in list(_known.items()) if pair[1]() is None]:
            _known.pop(old, None)
        _known[key] = weakref.ref(weights), weakref.ref(made)
    return made


def _scaled(weights: Array, gain: Array, axis: int) -> Array | None:
    found = np.empty(weights.shape, weights.dtype)
    half = weights.dtype == np.float16
    largest = 65504.0 if half else 3e38
    half_unit = 2.0**-11 if half else 2.0**-8
    error = norm = 0.0
    for start in range(0, weights.shape[0], ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        exact = weights[here].astype(np.float32)
        exact *= gain[here, None] if axis == 0 else gain[None, :]
        if not (exact.max(initial=0) <= largest and exact.min(initial=0) >= -largest):
            return None
        found[here] = exact
        rounded = found[here][::CHECKED].astype(np.float32)
        error += float(np.square(rounded - exact[::CHECKED], dtype=np.float64).sum())
        norm += float(np.square(exact[::CHECKED], dtype=np.float64).sum())
    return found if error <= half_unit**2 * norm else None


def times(vector: Array, weights: Array, axis: int) -> Array:
    """The sum over an axis of weights times a vector along it, in float64."""
    total: Array = np.zeros(weights.shape[1 - axis], np.float64)
    for start in range(0, weights.shape[0], ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        part = weights[here].astype(np.float64)
        if axis == 0:
            total += vector[here].astype(np.float64) @ part
        else:
            total[here] = part @ vector.astype(np.float64)
    return total
