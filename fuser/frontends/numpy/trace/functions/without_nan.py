"""Reductions that leave NaN out: what the plain ones make of a neutral element in its place."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.frontends.numpy.trace.context import current, lift, traced
from fuser.frontends.numpy.trace.functions import reductions
from fuser.frontends.numpy.trace.functions.registry import array_function


def _filled(x: Any, fill: float) -> tuple[Any, Any]:
    """x with `fill` for NaN, and where it is none (None for dtypes that have none)."""
    array = traced(x)
    if array.dtype.kind in "iub":
        return array, None
    valid = ~np.isnan(array)
    return np.where(valid, array, fill), valid


def _both(valid: Any, where: Any) -> Any:
    if valid is None or where is True:
        return where if valid is None else valid
    return valid & where


@array_function("nansum")
def nansum(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    filled, _ = _filled(x, 0)
    return reductions.sum_(filled, axis, dtype, keepdims=keepdims, initial=initial, where=where)


@array_function("nanprod")
def nanprod(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    filled, _ = _filled(x, 1)
    return reductions.prod(filled, axis, dtype, keepdims=keepdims, initial=initial, where=where)


@array_function("nancumsum")
def nancumsum(x: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    return reductions.cumsum(_filled(x, 0)[0], axis, dtype)


@array_function("nancumprod")
def nancumprod(x: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    return reductions.cumprod(_filled(x, 1)[0], axis, dtype)


def _nan_extreme(
    reduce: Any, fill: float, x: Any, axis: Any, keepdims: bool, initial: Any, where: Any
) -> Any:
    filled, valid = _filled(x, fill)
    found = reduce(filled, axis, keepdims=keepdims, initial=initial, where=where)
    if valid is None or initial is not None:
        return found
    some = reductions.any_(valid, axis, keepdims=keepdims)
    return np.where(some, found, np.nan)


@array_function("nanmax")
def nanmax(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    return _nan_extreme(reductions.max_, -np.inf, x, axis, keepdims, initial, where)


@array_function("nanmin")
def nanmin(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    return _nan_extreme(reductions.min_, np.inf, x, axis, keepdims, initial, where)


def _nan_position(find: Any, fill: float, x: Any, axis: Any, keepdims: bool) -> Any:
    """NumPy refuses a slice of NaN alone, and so does a run."""
    filled, valid = _filled(x, fill)
    if valid is not None:
        some = reductions.any_(valid, axis)
        current().require(lift(some), "All-NaN slice encountered")
    return find(filled, axis, keepdims=keepdims)


@array_function("nanargmax")
def nanargmax(x: Any, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
    return _nan_position(reductions.argmax, -np.inf, x, axis, keepdims)


@array_function("nanargmin")
def nanargmin(x: Any, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
    return _nan_position(reductions.argmin, np.inf, x, axis, keepdims)


@array_function("nanmean")
def nanmean(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *,
    where: Any = True,
) -> Any:  # fmt: skip
    filled, valid = _filled(x, 0)
    return reductions.mean(filled, axis, dtype, keepdims=keepdims, where=_both(valid, where))


def _nan_spread(
    measure: Any, x: Any, axis: Any, dtype: Any, degrees: float, keepdims: bool, where: Any
) -> Any:
    """NumPy has NaN where a slice has no more numbers than degrees of freedom."""
    filled, valid = _filled(x, 0)
    mask = _both(valid, where)
    found = measure(filled, axis, dtype, ddof=degrees, keepdims=keepdims, where=mask)
    if mask is True:
        return found
    held = np.broadcast_to(mask, filled.shape)
    enough = reductions.count_nonzero(held, axis, keepdims=keepdims) > degrees
    return np.where(enough, found, np.nan)


@array_function("nanvar")
def nanvar(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
    keepdims: bool = False, *, where: Any = True, correction: float | None = None,
) -> Any:  # fmt: skip
    degrees = ddof if correction is None else correction
    return _nan_spread(reductions.var, x, axis, dtype, degrees, keepdims, where)


@array_function("nanstd")
def nanstd(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
    keepdims: bool = False, *, where: Any = True, correction: float | None = None,
) -> Any:  # fmt: skip
    degrees = ddof if correction is None else correction
    return _nan_spread(reductions.std, x, axis, dtype, degrees, keepdims, where)
