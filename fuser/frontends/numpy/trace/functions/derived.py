"""Averages, choices, comparisons and parts of numbers: a line or two of other functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, lift, result_type, traced, wrap
from fuser.frontends.numpy.trace.functions.movement import atleast
from fuser.frontends.numpy.trace.functions.registry import (
    array_function,
    as_shape,
    many_axes,
)
from fuser.frontends.numpy.trace.functions.selection import isclose
from fuser.graph.rounding import as_stored


@array_function("average")
def average(
    x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    array = traced(x)
    if weights is None:
        mean = np.mean(array, axis=axis, keepdims=keepdims)
        axes = many_axes(axis, array.ndim)
        count = array.size // max(mean.size, 1) if axes else 1
        return (mean, np.full_like(mean, count)) if returned else mean
    scale = traced(weights)
    common = result_type(array, scale)
    if common.kind in "iub":  # NumPy: at least float64 beside integers
        common = np.dtype(np.float64)
    if scale.shape != array.shape:
        axes = many_axes(axis, array.ndim)
        if axis is None or scale.shape != tuple(array.shape[a] for a in axes):
            raise TraceError(f"average: weights are {scale.shape}, the array {array.shape}")
        scale = np.reshape(scale, [n if i in axes else 1 for i, n in enumerate(array.shape)])
        scale = np.broadcast_to(scale, array.shape)
    array, scale = array.astype(common), scale.astype(common)
    total = np.sum(scale, axis=axis, keepdims=keepdims)
    mean = np.sum(array * scale, axis=axis, keepdims=keepdims) / total
    return (mean, total) if returned else mean


@array_function("cov")
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    rows = _samples(m, rowvar)
    if y is not None:
        rows = np.concatenate([rows, _samples(y, rowvar)], axis=0)
    kind = np.dtype(dtype) if dtype is not None else result_type(rows, np.float64(1))
    rows = rows.astype(kind)
    centred = rows - np.mean(rows, axis=1, keepdims=True)
    freedom = rows.shape[1] - (ddof if ddof is not None else int(not bias))
    return np.squeeze(centred @ centred.T / float(max(freedom, 0)))


def _samples(x: Any, rowvar: bool) -> Any:
    array = traced(x)
    if array.ndim > 2:
        raise TraceError(f"samples have one or two axes, not {array.ndim}")
    return array.T if array.ndim == 2 and not rowvar else wrap(atleast(array, 2))


@array_function("corrcoef")
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    spread = np.sqrt(np.diagonal(c))
    return np.clip(c / spread[:, None] / spread[None, :], -1, 1)


@array_function("select")
def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist) or not condlist:
        raise TraceError(f"select: {len(condlist)} conditions and {len(choicelist)} choices")
    common = result_type(*choicelist, default)
    found = traced(default, common)
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        if traced(condition).dtype != np.bool_:
            raise TraceError("select: a condition is no array of bools")
        found = np.where(condition, traced(choice, common), found)
    return found


@array_function("choose")
def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    parts = list(choices)
    common, at = result_type(*parts), traced(a)
    if mode == "clip":
        at = np.clip(at, 0, len(parts) - 1)
    elif mode == "wrap":
        at = at % len(parts)
    else:
        inside = (at >= 0) & (at < len(parts))
        current().require(inside.value, f"choose: a number is not in 0 to {len(parts) - 1}")
    found = traced(parts[-1], common)
    for i in range(len(parts) - 1):
        found = np.where(at == i, traced(parts[i], common), found)
    return np.broadcast_to(found, np.broadcast_shapes(at.shape, found.shape))


@array_function("piecewise")
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Every function sees the whole array, and must work by elements."""
    array = traced(x)
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise TraceError(f"piecewise: {len(conditions)} conditions, {len(funclist)} functions")
    found: Any = np.zeros_like(array)
    parts = [f(array, *args, **kw) if callable(f) else f for f in funclist]
    if len(parts) > len(conditions):
        found = np.broadcast_to(traced(parts.pop(), array.dtype), array.shape)
    for condition, part in zip(conditions, parts, strict=True):
        found = np.where(condition, traced(part, array.dtype), found)
    return found


@array_function("lexsort")
def lexsort(keys: Any, axis: Any = -1) -> Any:
    """By the last key first; sorts are stable."""
    rows = [traced(key) for key in keys]
    order = np.argsort(rows[0], axis=axis)
    for row in rows[1:]:
        again = np.argsort(np.take_along_axis(row, order, axis=axis), axis=axis)
        order = np.take_along_axis(order, again, axis=axis)
    return order


@array_function("unravel_index")
def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    if order != "C":
        raise TraceError(f"unravel_index in order {order!r} cannot be traced")
    found, rest = [], traced(indices)
    for extent in reversed(as_shape(shape)):
        found.append(rest % extent)
        rest = rest // extent
    return tuple(found[::-1])


@array_function("partition")
def partition(x: Any, kth: Any, axis: Any = -1, kind: Any = None, order: None = None) -> Any:
    """Sorted throughout, which is one of the orders that NumPy allows."""
    return np.sort(x, axis=axis)


@array_function("argpartition")
def argpartition(x: Any, kth: Any, axis: Any = -1, kind: Any = None, order: None = None) -> Any:
    return np.argsort(x, axis=axis)


@array_function("allclose")
def allclose(x: Any, y: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    return np.all(isclose(x, y, rtol, atol, equal_nan))


@array_function("array_equal")
def array_equal(x: Any, y: Any, equal_nan: bool = False) -> Any:
    a, b = traced(x), traced(y)
    if a.shape != b.shape:
        return traced(False)
    same = a == b
    if equal_nan:
        same = same | ((a != a) & (b != b))
    return np.all(same)


@array_function("array_equiv")
def array_equiv(x: Any, y: Any) -> Any:
    a, b = traced(x), traced(y)
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return traced(False)
    return np.all(a == b)


@array_function("fix")
def fix(x: Any, out: None = None) -> Any:
    return np.trunc(x)


@array_function("isneginf")
def isneginf(x: Any, out: None = None) -> Any:
    return np.isinf(x) & (traced(x) < 0)


@array_function("isposinf")
def isposinf(x: Any, out: None = None) -> Any:
    return np.isinf(x) & (traced(x) > 0)


@array_function("imag")
def imag(x: Any) -> Any:
    return np.zeros_like(x)


@array_function("iscomplex")
def iscomplex(x: Any) -> Any:
    return np.zeros_like(x, dtype=np.bool_)


@array_function("isreal")
def isreal(x: Any) -> Any:
    return np.ones_like(x, dtype=np.bool_)


@array_function("isrealobj")
def isrealobj(x: Any) -> bool:
    return True


@array_function("sinc")
def sinc(x: Any) -> Any:
    """The angle is rounded to float16 as NumPy has it: far from 0 the last bit decides."""
    angle: Any = wrap(as_stored(current().builder, lift(np.pi * traced(x))))
    return np.where(angle == 0, 1.0, np.sin(angle) / angle)
