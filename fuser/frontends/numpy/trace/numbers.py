"""Python integers beside arrays: an error where the dtype does not hold them, as in NumPy 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.errors import NumberRangeError
from fuser.frontends.numpy.trace.context import Traced, lift

_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))


def check_fits(x: Any, dtype: np.dtype) -> None:
    """Raise NumberRangeError unless the number fits; that of an argument is checked in each run."""
    if dtype.kind not in "iu":
        return
    limits = np.iinfo(dtype)
    if type(x) is int and not limits.min <= x <= limits.max:
        raise NumberRangeError(
            f"Python integer {x} out of bounds for {dtype.name}",
            hint=f"make the array wider (.astype), or the number one of its dtype: np.{dtype.name}",
        )
    if isinstance(x, Traced) and x.weak is int and dtype != np.int64 and x.value.constant is None:
        b, value = x.trace.builder, x.value
        holds = b.map("ge", value, int(limits.min))
        if limits.max < np.iinfo(np.int64).max:
            holds = b.map("logical_and", holds, b.map("le", value, int(limits.max)))
        message = f"a Python integer is out of bounds for {dtype.name}"
        x.trace.require(holds, message, NumberRangeError)


def comparable(ufunc: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of a comparison so that integers which do not fit compare by their size."""
    if ufunc.__name__ not in _COMPARISONS:
        return operands
    found = list(operands)
    for place, x in enumerate(operands):
        beside = _integer_dtype(operands[1 - place])
        if beside is None:
            continue
        limits = np.iinfo(beside)
        if type(x) is int and not limits.min <= x <= limits.max:
            found[place] = np.float64(np.inf if x > 0 else -np.inf)
        elif isinstance(x, Traced) and x.weak is int and beside != np.int64:
            found[place] = x.trace.array(x.trace, lift(x), None)
    return tuple(found)


def _integer_dtype(x: Any) -> np.dtype | None:
    """The dtype of an array of integers that is no Python number."""
    if isinstance(x, Traced) and x.weak is not None:
        return None
    dtype = x.dtype if isinstance(x, Traced | np.ndarray | np.generic) else None
    return dtype if isinstance(dtype, np.dtype) and dtype.kind in "iu" else None
