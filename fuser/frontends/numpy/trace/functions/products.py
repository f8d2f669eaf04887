"""Differences, sums of products, polynomials and powers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import is_traced, result_type, traced
from fuser.frontends.numpy.trace.functions.registry import (
    array_function,
    many_axes,
    one_axis,
)


@array_function("ediff1d")
def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    array = np.ravel(traced(x))
    parts = [to_begin, np.diff(array), to_end]
    return np.concatenate(
        [np.ravel(traced(part, array.dtype)) for part in parts if part is not None]
    )


@array_function("gradient")
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Differences to both sides. The steps are numbers, one for all axes or one an axis."""
    array = traced(f)
    if edge_order != 1 or any(np.ndim(step) for step in varargs):
        raise TraceError("gradient: steps that are arrays, and edges of order 2, cannot be traced")
    axes = many_axes(axis if axis is None or isinstance(axis, tuple) else (axis,), array.ndim)
    steps = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    if len(steps) != len(axes):
        raise TraceError(f"gradient: {len(steps)} steps for {len(axes)} axes")
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    found = [_slope(array, at, step) for at, step in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slope(array: Any, at: int, step: Any) -> Any:
    lines = np.moveaxis(array, at, 0)
    if lines.shape[0] < 2:
        raise TraceError(f"gradient: axis {at} has fewer than two elements")
    first, last = lines[1:2] - lines[:1], lines[-1:] - lines[-2:-1]
    inner = (lines[2:] - lines[:-2]) / (2.0 * step)
    return np.moveaxis(np.concatenate([first / step, inner, last / step]), 0, at)


@array_function("trapezoid")
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: Any = -1) -> Any:
    array = traced(y)
    at = one_axis(axis, array.ndim)
    if x is None:
        step = dx
    else:
        place = traced(x)
        step = np.diff(place) if place.ndim == 1 else np.diff(place, axis=at)
        if place.ndim == 1:
            step = np.reshape(step, [-1 if i == at else 1 for i in range(array.ndim)])
    high = array[(slice(None),) * at + (slice(1, None),)]
    low = array[(slice(None),) * at + (slice(None, -1),)]
    return np.sum(step * (high + low) / 2.0, axis=at)


@array_function("cross")
def cross(
    a: Any, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None
) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = np.moveaxis(traced(a), axisa, -1), np.moveaxis(traced(b), axisb, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise TraceError(f"cross: vectors of {x.shape[-1]} and {y.shape[-1]} elements, not 3")
    (x0, x1, x2), (y0, y1, y2) = ([v[..., i] for i in range(3)] for v in (x, y))
    parts = [x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0]
    return np.moveaxis(np.stack(parts, axis=-1), -1, axisc)


@array_function("polyval")
def polyval(p: Any, x: Any) -> Any:
    at, factors = traced(x), traced(p)
    found = np.zeros_like(at)
    for i in range(factors.shape[0]):
        found = found * at + factors[i]
    return found


@array_function("vander")
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    array = traced(x)
    array = array.astype(result_type(array, np.int64(1)))
    count = array.shape[0] if N is None else int(N)
    powers = [np.ones_like(array)]
    for _ in range(count - 1):
        powers.append(powers[-1] * array)
    columns = powers[:count]
    return np.stack(columns if increasing else columns[::-1], axis=1)


@array_function("convolve")
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Sums of shifted products; the shorter vector is written out."""
    common = result_type(a, v)
    long, short = traced(a, common), traced(v, common)
    if long.ndim != 1 or short.ndim != 1 or not long.size or not short.size:
        raise TraceError(f"convolve takes two vectors, not {long.shape} and {short.shape}")
    if short.size > long.size:
        long, short = short, long
    n, k = long.shape[0], short.shape[0]
    if mode not in ("full", "same", "valid"):
        raise TraceError(f"convolve: mode is {mode!r}, not 'full', 'same' or 'valid'")
    windows = np.arange(n + k - 1)[:, None] - np.arange(k)
    padded = np.pad(long, k - 1)
    full = np.matmul(np.take(padded, windows + k - 1), short)
    if mode == "full":
        return full
    first, count = ((k - 1) // 2, n) if mode == "same" else (k - 1, n - k + 1)
    return full[first : first + count]


@array_function("correlate")
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    first, second = traced(a), traced(v)
    if mode != "full" and second.shape[0] > first.shape[0]:
        return np.flip(convolve(second, np.flip(first), mode))
    return convolve(first, np.flip(second), mode)


@array_function("matrix_power")
def matrix_power(x: Any, n: int) -> Any:
    if n < 0 or is_traced(n):
        raise TraceError("matrix_power: the power must be known, and 0 or more")
    array = traced(x)
    if not n:
        return np.broadcast_to(np.eye(array.shape[-1], dtype=array.dtype), array.shape)
    found = None
    while n:
        if n & 1:
            found = array if found is None else found @ array
        n >>= 1
        array = array @ array if n else array
    return found


@array_function("multi_dot")
def multi_dot(arrays: Any, *, out: None = None) -> Any:
    """From left to right."""
    found, *rest = arrays
    for array in rest:
        found = np.dot(found, array)
    return found
