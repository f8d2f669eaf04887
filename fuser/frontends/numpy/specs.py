"""The dtypes and shapes of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.dtypes import from_numpy
from fuser.errors import FeedError, NumberRangeError
from fuser.frontends.numpy.trace import ArraySpec
from fuser.runtime.feeds import host_array


def spec(shape: int | Sequence[int], dtype: Any = "float32") -> ArraySpec:
    """An argument of `fuser.trace`: its shape and dtype."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return ArraySpec(sizes, np.dtype(dtype))


def spec_of(name: str, leaf: Any) -> ArraySpec:
    """The dtype and shape of an argument. Raises FeedError for what is no array or number."""
    if isinstance(leaf, np.ndarray):
        dtype = leaf.dtype
        return ArraySpec(leaf.shape, dtype if dtype.isnative else dtype.newbyteorder("="))
    if isinstance(leaf, ArraySpec):
        return leaf
    if type(leaf) is int and not -(2**63) <= leaf < 2**63:
        raise NumberRangeError(
            f"argument {name!r} is {leaf}, which int64 does not hold", hint="pass a float"
        )
    if isinstance(leaf, complex):
        from_numpy(np.dtype(type(leaf)), f"argument {name!r}")
    if type(leaf) in (bool, int, float):
        return ArraySpec((), np.asarray(leaf).dtype, type(leaf))
    if hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__"):
        array = host_array(leaf)
        return ArraySpec(array.shape, array.dtype.newbyteorder("="))
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return ArraySpec(tuple(leaf.shape), np.dtype(leaf.dtype))
    raise FeedError(
        f"argument {name!r} is a {type(leaf).__name__}, not an array or a number",
        hint="nests hold arrays and numbers; pass an option by itself, and make that static"
        if "." in name
        else f"if it is an option, make it static: static_argnames=({name!r},)",
    )
