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


def _check_where(where: Any, initial: Any = None) -> None:
    if where is not True or initial is not None:
        raise TraceError("where= and initial= of a reduction cannot be traced", hint="use np.where")


def _total(op: str, x: Any, axis: Any, dtype: Any, keepdims: bool) -> Any:
    b, value = current().builder, lift(x)
    value = b.cast(value, _total_dtype(value, dtype))
    return wrap(b.reduce(op, value, many_axes(axis, value.type.rank), keepdims))


@array_function("sum")
def sum_(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    _check_where(where, initial)
    return _total("reduce_sum", x, axis, dtype, keepdims)


@array_function("prod")
def prod(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = True,
) -> Any:  # fmt: skip
    _check_where(where, initial)
    return _total("reduce_prod", x, axis, dtype, keepdims)


def _extreme(op: str, x: Any, axis: Any, keepdims: bool) -> Any:
    b, value = current().builder, lift(x)
    axes = many_axes(axis, value.type.rank)
    if any(value.shape[a] == 0 for a in axes):
        raise TraceError(f"an empty array has no {op}")
    if value.dtype is dtypes.bool_:
        narrow = b.reduce(op, b.cast(value, dtypes.u8), axes, keepdims)
        return wrap(b.cast(narrow, dtypes.bool_))
    return wrap(b.reduce(op, value, axes, keepdims))


@array_function("max", "amax")
def max_(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    _check_where(where, initial)
    return _extreme("reduce_max", x, axis, keepdims)


@array_function("min", "amin")
def min_(
    x: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    _check_where(where, initial)
    return _extreme("reduce_min", x, axis, keepdims)


def _truth(op: str, x: Any, axis: Any, keepdims: bool) -> Any:
    b = current().builder
    value = b.cast(lift(x), dtypes.bool_)
    wide = b.cast(value, dtypes.u8)
    return wrap(
        b.cast(b.reduce(op, wide, many_axes(axis, value.type.rank), keepdims), dtypes.bool_)
    )


@array_function("any")
def any_(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    return _truth("reduce_max", x, axis, keepdims)


@array_function("all")
def all_(x: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    return _truth("reduce_min", x, axis, keepdims)


@array_function("count_nonzero")
def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    b = current().builder
    value = b.cast(b.cast(lift(x), dtypes.bool_), dtypes.i64)
    return wrap(b.reduce("reduce_sum", value, many_axes(axis, value.type.rank), keepdims))


def _averaged(x: Value, dtype: Any) -> tuple[Value, DType]:
    """x in the dtype that statistics are computed in, and the dtype of the result."""
    b = current().builder
    given = None if dtype is None else from_numpy(dtype)
    result = given or (x.dtype if x.dtype.is_float else dtypes.f64)
    return stash(b, b.cast(x, result)), result


@array_function("mean")
def mean(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False
) -> Any:
    b = current().builder
    value, result = _averaged(lift(x), dtype)
    return wrap(b.cast(b.mean(value, many_axes(axis, value.type.rank), keepdims), result))


def _variance(x: Any, axis: Any, dtype: Any, degrees: float, keepdims: bool, root: bool) -> Any:
    """The mean square of centred values: sums of squares minus the squared mean cancel badly."""
    b = current().builder
    value, result = _averaged(lift(x), dtype)
    axes = many_axes(axis, value.type.rank)
    centred = b.map("sub", value, b.restore(b.mean(value, axes), value, axes))
    square = b.map("mul", centred, centred)
    if degrees:
        count: Any = product([value.shape[a] for a in axes])
        whole = int(degrees) if float(degrees).is_integer() else degrees
        total = b.reduce("reduce_sum", square, axes, keepdims)
        left = count - whole
        spread = b.map("div", total, left if is_symbolic(left) else float(left))
    else:
        spread = b.mean(square, axes, keepdims)
    return wrap(b.cast(b.map("sqrt", spread) if root else spread, result))


@array_function("var")
def var(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
    keepdims: bool = False, *, correction: float | None = None,
) -> Any:  # fmt: skip
    return _variance(x, axis, dtype, ddof if correction is None else correction, keepdims, False)


@array_function("std")
def std(
    x: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0,
    keepdims: bool = False, *, correction: float | None = None,
) -> Any:  # fmt: skip
    return _variance(x, axis, dtype, ddof if correction is None else correction, keepdims, True)


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


@array_function("cumsum")
def cumsum(x: Any, axis: Any = None, dtype: Any = None, out: None = None) -> Any:
    b, value = current().builder, lift(x)
    value = b.cast(value, _total_dtype(value, dtype))
    if axis is None:
        value, axis = b.reshape(value, (value.type.size,)), 0
    at = one_axis(axis, value.type.rank)
    return wrap(b.emit("cumsum", value, axis=at, exclusive=False, reverse=False))


@array_function("cumulative_sum")
def cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False,
    out: None = None,
) -> Any:  # fmt: skip
    b = current().builder
    if axis is None and lift(x).type.rank != 1:
        raise TraceError("cumulative_sum needs an axis for an array with several")
    result = cumsum(x, 0 if axis is None else axis, dtype)
    if not include_initial:
        return result
    low = [0] * result.ndim
    low[one_axis(0 if axis is None else axis, result.ndim)] = 1
    return wrap(b.pad(result.value, low, [0] * result.ndim))


@array_function("norm", "vector_norm")
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Vector norms, and the Frobenius norm of whatever axes are given."""
    b = current().builder
    value, result = _averaged(lift(x), None)
    axes = many_axes(axis, value.type.rank)
    if ord in (np.inf, -np.inf) and len(axes) == 1:
        op = "reduce_max" if ord > 0 else "reduce_min"
        return wrap(b.cast(b.reduce(op, b.map("abs", value), axes, keepdims), result))
    if ord == 1 and len(axes) == 1:
        return wrap(b.cast(b.reduce("reduce_sum", b.map("abs", value), axes, keepdims), result))
    if ord not in (None, "fro", 2) or (ord == 2 and len(axes) > 1 and axis is not None):
        raise TraceError(f"the norm of order {ord!r} over {len(axes)} axes cannot be traced")
    total = b.reduce("reduce_sum", b.map("mul", value, value), axes, keepdims)
    return wrap(b.cast(b.map("sqrt", total), result))
