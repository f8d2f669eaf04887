"""Choosing elements: where, take, sorting, clipping."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, lift, result_type, traced, wrap
from fuser.frontends.numpy.trace.functions.registry import array_function, depends_on_data, one_axis
from fuser.frontends.numpy.trace.ufuncs import apply
from fuser.graph.ir import Value
from fuser.graph.linear_index import gather_along


@array_function("where")
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    if x is None or y is None:
        raise TraceError(
            "where(condition) alone has a result whose shape depends on data",
            hint="give both branches: np.where(condition, x, y)",
        )
    common = result_type(x, y)
    b, chosen = current().builder, lift(condition, np.dtype(np.bool_))
    return wrap(b.map("select", chosen, lift(x, common), lift(y, common)))


for _name in (
    "compress",
    "extract",
    "union1d",
    "intersect1d",
    "setdiff1d",
    "setxor1d",
    "trim_zeros",
) + ("unique_all", "unique_counts", "unique_inverse", "unique_values"):

    @array_function(_name)
    def _refuse(*args: Any, _name: str = _name, **kwargs: Any) -> None:
        raise depends_on_data(_name)


@array_function("clip")
def clip(
    x: Any, /, min: Any = None, max: Any = None, out: None = None, *, a_min: Any = None,
    a_max: Any = None,
) -> Any:  # fmt: skip
    low, high = a_min if min is None else min, a_max if max is None else max
    kind = lift(x).dtype.numpy
    if kind.kind in "iu":  # a bound beyond the dtype bounds nothing
        limits = np.iinfo(kind)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
    if low is None and high is None:
        return traced(x)
    if low is not None:
        x = apply(np.maximum, (x, low))
    return x if high is None else apply(np.minimum, (x, high))


@array_function("round", "around")
def round_(x: Any, /, decimals: int = 0, out: None = None) -> Any:
    """To so many decimals. Integers keep their dtype, of which a rounded number may wrap around."""
    value = lift(x)
    if value.dtype.is_integer:
        if decimals >= 0:
            return wrap(value)
        tens = _rounded(traced(x, np.dtype(np.float64)), decimals)
        return tens.astype(np.int64).astype(value.dtype.numpy)
    if not decimals:
        return apply(np.rint, (x,))
    if value.dtype is dtypes.bool_:
        raise TraceError("truth values are rounded to no decimals only")
    return _rounded(x, decimals)


def _rounded(x: Any, decimals: int) -> Any:
    """By a whole power of ten, which is exact: never by its reciprocal."""
    scale = 10.0 ** abs(decimals)
    there, back = (np.divide, np.multiply) if decimals < 0 else (np.multiply, np.divide)
    return apply(back, (apply(np.rint, (apply(there, (x, scale)),)), scale))


@array_function("nan_to_num")
def nan_to_num(
    x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    b, value = current().builder, lift(x)
    if not value.dtype.is_float or value.dtype.numpy.kind == "V":  # NumPy leaves foreign floats
        return wrap(value)
    limits = np.finfo(value.dtype.numpy)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    infinite = b.map("is_inf", value)
    edge = b.map("select", b.map("gt", value, 0), high, b.scalar(low, value.dtype))
    value = b.map("select", infinite, edge, value)
    return wrap(b.map("select", b.map("is_nan", value), nan, value))


@array_function("take")
def take(x: Any, indices: Any, /, axis: Any = None, out: None = None, mode: str = "raise") -> Any:
    b, value = current().builder, lift(x)
    if axis is None:
        value, axis = b.reshape(value, (value.type.size,)), 0
    at = lift(indices)
    if not at.dtype.is_integer:
        raise TraceError(f"indices are {at.type}, not integers")
    return wrap(b.emit("gather", value, at, axis=one_axis(axis, value.type.rank)))


@array_function("take_along_axis")
def take_along_axis(x: Any, indices: Any, /, axis: Any = -1) -> Any:
    value, at = lift(x), lift(indices)
    if axis is None:
        b = current().builder
        value, axis = b.reshape(value, (value.type.size,)), 0
    return wrap(gather_along(current().builder, value, at, one_axis(axis, value.type.rank)))


def _sorted(x: Any, axis: Any, descending: bool) -> tuple[Value, Value]:
    b, value = current().builder, lift(x)
    if axis is None:
        value, axis = b.reshape(value, (value.type.size,)), 0
    if value.dtype is dtypes.bool_:
        value = b.cast(value, dtypes.u8)
    at = one_axis(axis, value.type.rank)
    keys, order = b.emit_node("sort", value, axis=at, descending=descending).outputs
    return keys, order


@array_function("sort")
def sort(
    x: Any, /, axis: Any = -1, kind: Any = None, order: None = None, *, stable: Any = None,
    descending: bool = False,
) -> Any:  # fmt: skip
    keys, _ = _sorted(x, axis, descending)
    return wrap(current().builder.cast(keys, lift(x).dtype))


@array_function("argsort")
def argsort(
    x: Any, /, axis: Any = -1, kind: Any = None, order: None = None, *, stable: Any = None,
    descending: bool = False,
) -> Any:  # fmt: skip
    """Always stable."""
    return wrap(_sorted(x, axis, descending)[1])


@array_function("diff")
def diff(x: Any, /, n: int = 1, axis: Any = -1) -> Any:
    b, value = current().builder, lift(x)
    at = one_axis(axis, value.type.rank)
    for _ in range(n):
        size = value.shape[at]
        value = b.map(
            "ne" if value.dtype is dtypes.bool_ else "sub",
            b.slice_axis(value, at, 1, size),
            b.slice_axis(value, at, 0, size - 1),
        )
    return wrap(value)


@array_function("isclose")
def isclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    common = result_type(x, y, 1.0)
    b, a, c = current().builder, lift(x, common), lift(y, common)
    limit = b.map("add", b.map("mul", b.map("abs", c), rtol), atol)
    near = b.map("le", b.map("abs", b.map("sub", a, c)), limit)
    finite = b.map("logical_not", b.map("is_inf", c))
    close = b.map("logical_or", b.map("logical_and", near, finite), b.map("eq", a, c))
    if equal_nan:
        both = b.map("logical_and", b.map("is_nan", a), b.map("is_nan", c))
        close = b.map("logical_or", close, both)
    return wrap(close)
