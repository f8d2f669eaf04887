"""Sums, extremes, statistics and scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType, from_numpy
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, lift, wrap
from fuser.frontends.numpy.trace.functions.registry import array_function, many_axes, one_axis
from fuser.graph.compose import stash
from fuser.graph.dims import product
from fuser.graph.ir import Value
from fuser.graph.sizes import is_symbolic


def _total_dtype(x: Value, dtype: Any) -> DType:
    """What sums and products come in: integers narrower than the default one widen."""
    if dtype is not None:
        return from_numpy(dtype)
    if x.dtype.is_float:
        return x.dtype
    return dtypes.u64 if x.dtype.kind == "uint" else dtypes.i64


def _fill(value: Value, where: Any, neutral: Any) -> Value:
    """value, with a neutral element where `where` is false. Raises ShapeError."""
    if where is True:
        return value
    b = current().builder
    mask = b.broadcast_to(lift(where, np.dtype(np.bool_)), value.shape)
    fill = neutral if isinstance(neutral, Value) else b.scalar(neutral, value.dtype)
    return b.map("select", mask, value, fill)


def _total(op: str, x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    b, value = current().builder, lift(x)
    value = _fill(b.cast(value, _total_dtype(value, dtype)), where, op == "reduce_prod")
    found = b.reduce(op, value, many_axes(axis, value.type.rank), keepdims)
    if initial is None:
        return wrap(found)
    return wrap(b.map("add" if op == "reduce_sum" else "mul", found, _start(initial, found)))


def _start(initial: Any, found: Value) -> Value:
    start = lift(initial, found.dtype.numpy)
    if start.type.rank:
        raise TraceError(f"initial= is {start.type}, not one element")
    return start


@array_function("sum")
def sum_(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    return _total("reduce_sum", x, axis, dtype, keepdims, initial, where)


@array_function("prod")
def prod(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    return _total("reduce_prod", x, axis, dtype, keepdims, initial, where)


def _extreme(op: str, x: Any, axis: Any, keepdims: bool, initial: Any, where: Any) -> Any:
    b, value = current().builder, lift(x)
    axes, dtype = many_axes(axis, value.type.rank), value.dtype
    empty = any(value.shape[a] == 0 for a in axes)
    if initial is None and (empty or where is not True):
        what = "a part of an array" if where is not True else "an empty array"
        raise TraceError(f"{what} has no {op}", hint="give it a value to begin with: initial=")
    start = None if initial is None else _start(initial, value)
    if dtype is dtypes.bool_:
        value = b.cast(value, dtypes.u8)
        start = None if start is None else b.cast(start, dtypes.u8)
    if start is None:
        found = b.reduce(op, value, axes, keepdims)
    else:
        kept = [1 if i in axes else dim for i, dim in enumerate(value.shape)]
        if empty:
            found = b.broadcast_to(start, kept)
        else:
            found = b.reduce(op, _fill(value, where, start), axes, True)
            found = b.map(op.removeprefix("reduce_"), found, start)
        found = found if keepdims else b.squeeze(found, axes)
    return wrap(b.cast(found, dtype))


@array_function("max", "amax")
def max_(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    return _extreme("reduce_max", x, axis, keepdims, initial, where)


@array_function("min", "amin")
def min_(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    return _extreme("reduce_min", x, axis, keepdims, initial, where)


@array_function("ptp")
def ptp(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    return max_(x, axis, keepdims=keepdims) - min_(x, axis, keepdims=keepdims)


def _truth(op: str, x: Any, axis: Any, keepdims: bool, where: Any) -> Any:
    b = current().builder
    value = _fill(b.cast(lift(x), dtypes.bool_), where, op == "reduce_min")
    wide = b.cast(value, dtypes.u8)
    return wrap(
        b.cast(b.reduce(op, wide, many_axes(axis, value.type.rank), keepdims), dtypes.bool_)
    )


@array_function("any")
def any_(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    return _truth("reduce_max", x, axis, keepdims, where)


@array_function("all")
def all_(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = True
) -> Any:
    return _truth("reduce_min", x, axis, keepdims, where)


def _count(x: Any, axes: list[int], keepdims: bool) -> Value:
    b = current().builder
    ones = b.cast(b.cast(lift(x), dtypes.bool_), dtypes.i64)
    return b.reduce("reduce_sum", ones, axes, keepdims)


@array_function("count_nonzero")
def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return wrap(_count(x, many_axes(axis, lift(x).type.rank), keepdims))


def _averaged(x: Value, dtype: Any) -> tuple[Value, DType]:
    """x in the dtype that statistics are computed in, and the dtype of the result."""
    b = current().builder
    given = None if dtype is None else from_numpy(dtype)
    result = given or (x.dtype if x.dtype.is_float else dtypes.f64)
    return stash(b, b.cast(x, result)), result


def _mean(value: Value, axes: list[int], keepdims: bool, where: Any) -> Value:
    b = current().builder
    if where is True:
        return b.mean(value, axes, keepdims)
    total = b.reduce("reduce_sum", _fill(value, where, 0), axes, keepdims)
    return b.map("div", total, b.cast(_counted(value, axes, keepdims, where), value.dtype))


def _counted(value: Value, axes: list[int], keepdims: bool, where: Any) -> Value:
    """How many elements `where` leaves."""
    b = current().builder
    mask = b.broadcast_to(lift(where, np.dtype(np.bool_)), value.shape)
    return _count(wrap(mask), axes, keepdims)


@array_function("mean")
def mean(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *,
    where: Any = True,
) -> Any:  # fmt: skip
    b = current().builder
    value, result = _averaged(lift(x), dtype)
    axes = many_axes(axis, value.type.rank)
    if value.dtype.is_integer:  # the sum of integers, divided in float64
        total = b.cast(b.reduce("reduce_sum", _fill(value, where, 0), axes, keepdims), dtypes.f64)
        found = b.map("div", total, b.cast(_counted(value, axes, keepdims, where), dtypes.f64))
    else:
        found = _mean(value, axes, keepdims, where)
    return wrap(b.cast(found, result))


def _variance(
    x: Any, axis: Any, dtype: Any, degrees: float, keepdims: bool, root: bool, where: Any
) -> Any:
    """The mean square of centred values: sums of squares minus the squared mean cancel badly."""
    b = current().builder
    value, result = _averaged(lift(x), dtype)
    axes = many_axes(axis, value.type.rank)
    centred = b.map("sub", value, b.restore(_mean(value, axes, False, where), value, axes))
    square = _fill(b.map("mul", centred, centred), where, 0)
    if where is not True:
        left = b.map("sub", b.cast(_counted(value, axes, keepdims, where), value.dtype), degrees)
        total = b.reduce("reduce_sum", square, axes, keepdims)
        spread = b.map("div", total, b.map("max", left, 0))
    elif degrees:
        spread = b.map(
            "div", b.reduce("reduce_sum", square, axes, keepdims), _freedom(value, axes, degrees)
        )
    else:
        spread = b.mean(square, axes, keepdims)
    return wrap(b.cast(b.map("sqrt", spread) if root else spread, result))


def _freedom(value: Value, axes: list[int], degrees: float) -> Any:
    """What is left of the count of elements; not below 0, as NumPy has it."""
    count: Any = product([value.shape[a] for a in axes])
    left = count - (int(degrees) if float(degrees).is_integer() else degrees)
    return left if is_symbolic(left) else float(max(left, 0))


@array_function("var")
def var(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
    keepdims: bool = False, *, correction: float | None = None, where: Any = True,
) -> Any:  # fmt: skip
    degrees = ddof if correction is None else correction
    return _variance(x, axis, dtype, degrees, keepdims, False, where)


@array_function("std")
def std(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
    keepdims: bool = False, *, correction: float | None = None, where: Any = True,
) -> Any:  # fmt: skip
    degrees = ddof if correction is None else correction
    return _variance(x, axis, dtype, degrees, keepdims, True, where)


def _arg(op: str, x: Any, axis: Any, keepdims: bool) -> Any:
    b, value = current().builder, lift(x)
    if value.dtype is dtypes.bool_:
        value = b.cast(value, dtypes.u8)
    rank = value.type.rank
    if axis is None:
        flat = b.emit(op, b.reshape(value, (value.type.size,)), axis=0, select_last=False)
        return wrap(b.reshape(flat, (1,) * rank) if keepdims else flat)
    at = one_axis(axis, rank)
    result = b.emit(op, value, axis=at, select_last=False)
    return wrap(b.unsqueeze(result, [at]) if keepdims else result)


@array_function("argmax")
def argmax(x: Any, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
    return _arg("argmax", x, axis, keepdims)


@array_function("argmin")
def argmin(x: Any, axis: Any = None, out: None = None, *, keepdims: bool = False) -> Any:
    return _arg("argmin", x, axis, keepdims)


def _scan(fn: str, x: Any, axis: Any, dtype: Any) -> Any:
    b, value = current().builder, lift(x)
    value = b.cast(value, _total_dtype(value, dtype))
    if axis is None:
        value, axis = b.reshape(value, (value.type.size,)), 0
    at = one_axis(axis, value.type.rank)
    attrs = {} if fn == "sum" else {"fn": fn}
    return wrap(b.emit("cumsum", value, axis=at, exclusive=False, reverse=False, **attrs))


@array_function("cumsum")
def cumsum(x: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    return _scan("sum", x, axis, dtype)


@array_function("cumprod")
def cumprod(x: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    return _scan("prod", x, axis, dtype)


def _cumulative(fn: str, x: Any, axis: Any, dtype: Any, include_initial: bool) -> Any:
    b = current().builder
    if axis is None and lift(x).type.rank != 1:
        raise TraceError(f"cumulative_{fn} needs an axis for an array with several")
    result = _scan(fn, x, 0 if axis is None else axis, dtype)
    if not include_initial:
        return result
    low = [0] * result.ndim
    low[one_axis(0 if axis is None else axis, result.ndim)] = 1
    return wrap(b.pad(result.value, low, [0] * result.ndim, int(fn == "prod")))


@array_function("cumulative_sum")
def cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False,
    out: None = None,
) -> Any:  # fmt: skip
    return _cumulative("sum", x, axis, dtype, include_initial)


@array_function("cumulative_prod")
def cumulative_prod(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False,
    out: None = None,
) -> Any:  # fmt: skip
    return _cumulative("prod", x, axis, dtype, include_initial)


@array_function("norm", "vector_norm")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Vector norms, and the Frobenius norm of whatever axes are given."""
    b = current().builder
    value, result = _averaged(lift(x), None)
    axes = many_axes(axis, value.type.rank)
    if ord in (np.inf, -np.inf) and len(axes) == 1:
        if value.shape[axes[0]] == 0:
            if ord < 0:
                raise TraceError("the norm of order -inf over no elements does not exist")
            return wrap(b.cast(b.reduce("reduce_sum", value, axes, keepdims), result))
        op = "reduce_max" if ord > 0 else "reduce_min"
        return wrap(b.cast(b.reduce(op, b.map("abs", value), axes, keepdims), result))
    if ord == 1 and len(axes) == 1:
        return wrap(b.cast(b.reduce("reduce_sum", b.map("abs", value), axes, keepdims), result))
    if ord not in (None, "fro", 2) or (ord == 2 and len(axes) > 1 and axis is not None):
        raise TraceError(f"the norm of order {ord!r} over {len(axes)} axes cannot be traced")
    total = b.reduce("reduce_sum", b.map("mul", value, value), axes, keepdims)
    return wrap(b.cast(b.map("sqrt", total), result))
