"""What `x.__array_namespace__()` gives: the array API standard, as far as it can be traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.frontends.numpy.trace import ufuncs
from fuser.frontends.numpy.trace.functions import FUNCTIONS

__array_api_version__ = "2024.12"

_PLAIN = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32")
    + ("float64", "float16", "e", "inf", "nan", "newaxis", "pi", "finfo", "iinfo", "isdtype")
    + ("broadcast_shapes", "can_cast", "dtype")
)


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name == "vecdot":
        return _vecdot
    found = getattr(np, name, None)
    if isinstance(found, np.ufunc) and found.__name__ in ufuncs.UFUNCS:
        return lambda *operands: ufuncs.apply(found, operands)
    if name in _PLAIN:
        return found
    raise AttributeError(f"{name} is not among the functions that can be traced")


def _vecdot(x: Any, y: Any, /, *, axis: int = -1) -> Any:
    move = FUNCTIONS["moveaxis"]
    return ufuncs.apply(np.vecdot, (move(x, axis, -1), move(y, axis, -1)))
