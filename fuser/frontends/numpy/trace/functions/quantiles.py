"""Medians and quantiles: sort, then read between two neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, is_traced, lift, wrap
from fuser.frontends.numpy.trace.functions.reductions import mean
from fuser.frontends.numpy.trace.functions.registry import array_function, many_axes

# The position of quantile q among n sorted elements is n*q + (a + q*(1 - a - b)) - 1.
# Source: Hyndman and Fan 1996, "Sample Quantiles in Statistical Packages", methods 4 to 9.
_CONTINUOUS = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_WHOLE: dict[str, Callable[[Any], Any]] = {
    "lower": np.floor,
    "higher": np.ceil,
    "nearest": np.round,
}


def _rows(x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """x with the given axes made one, the last; and the shape in which they are kept as 1."""
    b, value = current().builder, lift(x)
    axes = many_axes(axis, value.type.rank)
    rest = [i for i in range(value.type.rank) if i not in axes]
    outer = [value.shape[i] for i in rest]
    size = 1
    for i in axes:
        size *= value.shape[i]
    kept = tuple(1 if i in axes else dim for i, dim in enumerate(value.shape))
    return wrap(b.reshape(b.transpose(value, [*rest, *axes]), (*outer, size))), kept


def _positions(q: Any, count: Any, method: str) -> tuple[Any, Any, Any]:
    """Between which elements quantiles lie, and how far: indices and a weight of the second."""
    line = (count - 1) * q
    if method in _WHOLE:
        at = _WHOLE[method](line)
        return at, at, None
    if method == "linear":
        place = line
    elif method == "midpoint":
        place = 0.5 * (np.floor(line) + np.ceil(line))
    elif method in _CONTINUOUS:
        low, high = _CONTINUOUS[method]
        place = count * q + (low + q * (1 - low - high)) - 1
    else:
        known = ["linear", "midpoint", *_WHOLE, *_CONTINUOUS]
        raise TraceError(f"quantiles by {method!r} cannot be traced", hint=f"one of {known}")
    place = np.clip(place, 0, np.maximum(count - 1, 0))
    below = np.floor(place)
    return below, np.minimum(below + 1, np.maximum(count - 1, 0)), place - below


def _quantile(
    x: Any, q: Any, axis: Any, method: str, keepdims: bool, weights: Any, scale: float, skip: bool
) -> Any:
    """scale: what q is counted in. skip: NaN are not counted."""
    if weights is not None:
        raise TraceError("quantiles with weights cannot be traced")
    rows, kept = _rows(x, axis)
    weak = type(q) in (int, float) or (is_traced(q) and q.weak is not None)
    q = (q if is_traced(q) else np.asarray(q)) / scale
    if q.ndim > 1:
        raise TraceError(f"quantiles of shape {q.shape}; a number or a vector of them is wanted")
    message = f"quantiles lie between 0 and {scale:g}"
    inside = (q >= 0) & (q <= 1)
    if is_traced(q):
        current().require(lift(inside), message)
    elif not inside.all():
        raise TraceError(message)
    size = rows.shape[-1]
    if not size:
        raise TraceError("an empty array has no quantiles")
    floats = rows.dtype.kind not in "iub"
    ordered = np.sort(rows, axis=-1)
    count: Any = size
    if skip and floats:
        count = np.sum(~np.isnan(rows), axis=-1, keepdims=True)
    below, above, weight = _positions(np.reshape(q, (-1,)), count, method)
    low, high = (_elements(ordered, at) for at in (below, above))
    if weight is not None and rows.dtype.kind == "b":
        raise TraceError(
            "truth values have no quantiles between them",
            hint="cast them to a number, or choose a method without interpolation",
        )
    if weight is None:
        found = low
    else:
        if weak:
            weight = weight.astype(rows.dtype if floats else np.float64)
        step = high - low  # where the ends are equal infinities NaN, as NumPy has it
        found = np.where(weight >= 0.5, high - step * (1 - weight), low + step * weight)
    if floats:
        last = ordered[..., -1:]  # NaN come after all numbers
        missing = np.isnan(ordered[..., :1]) if skip else np.isnan(last)
        found = np.where(missing, np.nan, found)
    found = np.moveaxis(found, -1, 0)
    shape = kept if keepdims else tuple(found.shape[1:])
    return np.reshape(found, (*q.shape, *shape))


def _elements(ordered: Any, at: Any) -> Any:
    at = at.astype(np.int64)
    if not is_traced(at) or at.ndim == 1:
        return np.take(ordered, at, axis=-1)
    return np.take_along_axis(ordered, np.maximum(at, 0), axis=-1)


@array_function("quantile")
def quantile(
    x: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    return _quantile(x, q, axis, method, keepdims, weights, 1, skip=False)


@array_function("percentile")
def percentile(
    x: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    return _quantile(x, q, axis, method, keepdims, weights, 100, skip=False)


@array_function("nanquantile")
def nanquantile(
    x: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    return _quantile(x, q, axis, method, keepdims, weights, 1, skip=True)


@array_function("nanpercentile")
def nanpercentile(
    x: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    method: str = "linear", keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    return _quantile(x, q, axis, method, keepdims, weights, 100, skip=True)


@array_function("median")
def median(
    x: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """The mean of the one or two in the middle."""
    rows, kept = _rows(x, axis)
    size = rows.shape[-1]
    ordered = np.sort(rows, axis=-1)
    found = mean(ordered[..., (size - 1) // 2 : size // 2 + 1] if size else ordered, axis=-1)
    if size and rows.dtype.kind not in "iub":
        found = np.where(np.isnan(ordered[..., -1]), np.nan, found + 0)  # the sum begins with 0
    return np.reshape(found, kept) if keepdims else found


@array_function("nanmedian")
def nanmedian(
    x: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    rows, kept = _rows(x, axis)
    if rows.dtype.kind in "iub" or not rows.shape[-1]:
        return median(x, axis, keepdims=keepdims)
    ordered = np.sort(rows, axis=-1)
    count = np.sum(~np.isnan(rows), axis=-1, keepdims=True)
    middle = np.concatenate([(count - 1) // 2, count // 2], axis=-1)
    found = mean(np.take_along_axis(ordered, np.maximum(middle, 0), axis=-1), axis=-1) + 0
    return np.reshape(found, kept) if keepdims else found
