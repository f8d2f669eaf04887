"""How close is close: tolerances from the element type and the length of reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.dtypes import DType

Array = np.ndarray[Any, Any]

EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def tolerance(dtype: DType, reduction_length: int = 1) -> float:
    """The relative error allowed: roundings to the type, and those of a sum in its accumulator.

    Errors of a sum of n terms grow like sqrt(n) for signed data; 4 is the margin for both.
    """
    stored = EPSILON[dtype.name]
    return 4 * (stored + EPSILON[dtype.accumulate.name] * reduction_length**0.5)


def assert_close(actual: Array, reference: Array, dtype: DType, reduction_length: int = 1) -> None:
    """Every element of actual is close to the float64 reference; the worst one is in the message.

    Errors are relative to the element plus the root mean square of all, since an element near zero
    that is a difference of large terms carries the error of those. Infinities must be where the
    reference has them, and so must NaNs. Integers and bools must be equal.
    """
    assert actual.shape == reference.shape, f"shape {actual.shape}, not {reference.shape}"
    if not dtype.is_float:
        np.testing.assert_array_equal(actual, reference)
        return
    have, want = actual.astype(np.float64), reference.astype(np.float64)
    same = (have == want) | (np.isnan(have) & np.isnan(want))
    finite = np.isfinite(want)
    with np.errstate(all="ignore"):
        scale = np.abs(want) + (np.sqrt(np.mean(want[finite] ** 2)) if finite.any() else 0)
        error = np.where(same, 0.0, np.abs(have - want) / scale)
    error = np.where(np.isnan(error), np.inf, error)
    limit = tolerance(dtype, reduction_length)
    if error.size and error.max() > limit:
        worst = np.unravel_index(int(np.argmax(error)), error.shape)
        place = tuple(int(i) for i in worst)
        raise AssertionError(
            f"element {place} is {have[worst]}, not {want[worst]}: relative error "
            f"{error[worst]:.2e}, allowed {limit:.2e}; {int((error > limit).sum())} of "
            f"{error.size} elements are off"
        )
