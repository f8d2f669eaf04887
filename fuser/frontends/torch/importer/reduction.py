"""ATen's reductions and sorting."""

from __future__ import annotations

from typing import Any

from fuser import dtypes
from fuser.frontends.torch.importer.registry import (
    along_axis,
    aten,
    axes_of,
    axis_of,
    named_axes,
    optional_dtype,
)
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import product
from fuser.graph.ir import Value
from fuser.graph.linear_index import gather_along


def _total(b: Builder, op: str, x: Value, axes: Any, keep: bool, dtype: Any) -> Value:
    otherwise = x.dtype if x.dtype.is_float else dtypes.i64
    wide = b.cast(x, optional_dtype(dtype, otherwise))
    return b.reduce(op, wide, axes_of(axes, x.type.rank), keep)


@aten("sum")
def sum_(b: Builder, x: Value, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Value:
    return _total(b, "reduce_sum", x, axes, keep, dtype)


@aten("prod")
def prod(b: Builder, x: Value, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Value:
    return _total(b, "reduce_prod", x, axes, keep, dtype)


@aten("mean")
def mean(b: Builder, x: Value, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Value:
    result = optional_dtype(dtype, x.dtype)
    wide = compose.stash(b, b.cast(x, result))
    return b.cast(b.mean(wide, axes_of(axes, x.type.rank), keep), result)


def _variance(
    b: Builder, x: Value, axes: list[int], correction: Any, keep: bool
) -> tuple[Value, Value]:
    """Variance and mean, in float32 for the narrow floats."""
    wide = compose.stash(b, x)
    centre = b.mean(wide, axes)
    centred = b.map("sub", wide, b.restore(centre, wide, axes))
    square = b.map("mul", centred, centred)
    count: Any = product([x.shape[axis] for axis in axes])
    less = 1 if correction is None else correction
    degrees = count - int(less) if float(less).is_integer() else float(count) - less
    if not less:
        spread = b.mean(square, axes, keep)
    elif degrees <= 0:
        total = b.reduce("reduce_sum", square, axes, keep)
        spread = b.map("div", total, b.scalar(0, wide.dtype))
    else:
        spread = b.map("div", b.reduce("reduce_sum", square, axes, keep), degrees)
    return spread, b.unsqueeze(centre, sorted(axes)) if keep else centre


@aten("var")
def var(
    b: Builder, x: Value, axes: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    found, _ = _variance(b, x, axes_of(axes, x.type.rank), correction, keepdim)
    return b.cast(found, x.dtype)


@aten("std")
def std(
    b: Builder, x: Value, axes: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Value:
    found, _ = _variance(b, x, axes_of(axes, x.type.rank), correction, keepdim)
    return b.cast(b.map("sqrt", found), x.dtype)


@aten("var_mean")
def var_mean(
    b: Builder, x: Value, axes: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    spread, centre = _variance(b, x, axes_of(axes, x.type.rank), correction, keepdim)
    return b.cast(spread, x.dtype), b.cast(centre, x.dtype)


def _extreme(b: Builder, op: str, x: Value, axes: list[int], keep: bool) -> Value:
    if x.dtype is dtypes.bool_:
        return b.cast(b.reduce(op, b.cast(x, dtypes.u8), axes, keep), dtypes.bool_)
    return b.reduce(op, x, axes, keep)


@aten("amax")
def amax(b: Builder, x: Value, axes: Any = None, keep: bool = False) -> Value:
    return _extreme(b, "reduce_max", x, axes_of(axes, x.type.rank), keep)


@aten("amin")
def amin(b: Builder, x: Value, axes: Any = None, keep: bool = False) -> Value:
    return _extreme(b, "reduce_min", x, axes_of(axes, x.type.rank), keep)


def _with_index(b: Builder, op: str, x: Value, axis: Any, keep: bool) -> Any:
    if axis is None:
        return _extreme(b, f"reduce_{op}", x, axes_of(None, x.type.rank), False)
    best = _extreme(b, f"reduce_{op}", x, axes_of(axis, x.type.rank), keep)
    return best, _arg(b, f"arg{op}", x, axis, keep)


@aten("max")
def max_(b: Builder, x: Value, axis: Any = None, keep: bool = False) -> Any:
    return _with_index(b, "max", x, axis, keep)


@aten("min")
def min_(b: Builder, x: Value, axis: Any = None, keep: bool = False) -> Any:
    return _with_index(b, "min", x, axis, keep)


def _arg(b: Builder, op: str, x: Value, axis: Any, keep: bool) -> Value:
    x = b.cast(x, dtypes.u8) if x.dtype is dtypes.bool_ else x
    if axis is None or not x.type.rank:
        flat = b.reshape(x, (x.type.size,))
        found = b.emit(op, flat, axis=0, select_last=False)
        return b.reshape(found, (1,) * x.type.rank if keep else ())
    at = axis_of(axis, x.type.rank)
    found = b.emit(op, x, axis=at, select_last=False)
    return b.unsqueeze(found, [at]) if keep else found


@aten("argmax")
def argmax(b: Builder, x: Value, axis: Any = None, keep: bool = False) -> Value:
    return _arg(b, "argmax", x, axis, keep)


@aten("argmin")
def argmin(b: Builder, x: Value, axis: Any = None, keep: bool = False) -> Value:
    return _arg(b, "argmin", x, axis, keep)


def _any(b: Builder, op: str, x: Value, axes: Any, keep: bool) -> Value:
    bits = b.cast(b.cast(x, dtypes.bool_), dtypes.u8)
    return b.cast(b.reduce(op, bits, named_axes(axes, x.type.rank), keep), dtypes.bool_)


@aten("any")
def any_(b: Builder, x: Value, axes: Any = None, keep: bool = False) -> Value:
    return _any(b, "reduce_max", x, axes, keep)


@aten("all")
def all_(b: Builder, x: Value, axes: Any = None, keep: bool = False) -> Value:
    return _any(b, "reduce_min", x, axes, keep)


@aten("logsumexp")
def logsumexp(b: Builder, x: Value, axes: Any, keep: bool = False) -> Value:
    where = axes_of(axes, x.type.rank)
    result = b.cast(compose.log_sum_exp(b, compose.stash(b, x), where), x.dtype)
    return b.unsqueeze(result, sorted(where)) if keep else result


@aten("linalg_vector_norm", "norm")
def vector_norm(
    b: Builder, x: Value, order: Any = 2, axes: Any = None, keep: bool = False, *, dtype: Any = None
) -> Value:
    result = optional_dtype(dtype, x.dtype)
    wide = compose.stash(b, b.cast(x, result))
    where = axes_of(axes, x.type.rank)
    size = b.map("abs", wide)
    order = 2 if order is None else order
    if order == float("inf"):
        found = b.reduce("reduce_max", size, where, keep)
    elif order == float("-inf"):
        found = b.reduce("reduce_min", size, where, keep)
    elif order == 0:
        found = b.reduce("reduce_sum", b.cast(b.map("ne", wide, 0), wide.dtype), where, keep)
    elif order == 1:
        found = b.reduce("reduce_sum", size, where, keep)
    elif order == 2:
        found = b.map("sqrt", b.reduce("reduce_sum", b.map("mul", wide, wide), where, keep))
    else:
        total = b.reduce("reduce_sum", b.map("pow", size, order), where, keep)
        found = b.map("pow", total, 1 / order)
    return b.cast(found, result)


def _sorted(b: Builder, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    wide = b.cast(x, dtypes.u8) if x.dtype is dtypes.bool_ else x
    keys, order = b.emit_node(
        "sort", wide, axis=axis_of(axis, x.type.rank), descending=descending
    ).outputs
    return b.cast(keys, x.dtype), order


@aten("sort.default")
@along_axis
def sort(b: Builder, x: Value, axis: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return _sorted(b, x, axis, descending)


@aten("sort.stable")
@along_axis
def sort_stable(
    b: Builder, x: Value, *, stable: Any = True, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return _sorted(b, x, dim, descending)


@aten("argsort")
@along_axis
def argsort(b: Builder, x: Value, axis: int = -1, descending: bool = False) -> Value:
    return _sorted(b, x, axis, descending)[1]


@aten("topk")
@along_axis
def topk(
    b: Builder, x: Value, k: int, axis: int = -1, largest: bool = True, ordered: bool = True
) -> list[Value]:
    at = axis_of(axis, x.type.rank)
    return [b.slice_axis(value, at, 0, k) for value in _sorted(b, x, at, largest)]


@aten("kthvalue")
@along_axis
def kth_value(
    b: Builder, x: Value, k: int, axis: int = -1, keep: bool = False
) -> tuple[Value, ...]:
    at = axis_of(axis, x.type.rank)
    found = [b.slice_axis(value, at, k - 1, k) for value in _sorted(b, x, at, False)]
    return tuple(value if keep else b.squeeze(value, [at]) for value in found)


@aten("median.dim")
@along_axis
def median(b: Builder, x: Value, axis: int = -1, keep: bool = False) -> tuple[Value, ...]:
    """The lower of the two in the middle, as PyTorch has it; the first NaN where there is one."""
    return _middle(b, x, axis_of(axis, x.type.rank), keep, skip=False)


@aten("nanmedian.dim")
@along_axis
def nanmedian(b: Builder, x: Value, axis: int = -1, keep: bool = False) -> tuple[Value, ...]:
    return _middle(b, x, axis_of(axis, x.type.rank), keep, skip=True)


def _middle(b: Builder, x: Value, at: int, keep: bool, skip: bool) -> tuple[Value, ...]:
    """skip: NaN, which are sorted after all numbers, are not counted."""
    size = x.shape[at]
    if not x.dtype.is_float:
        return kth_value(b, x, (size + 1) // 2, at, keep)
    numbers = b.cast(b.map("logical_not", b.map("is_nan", x)), dtypes.i64)
    count = b.reduce("reduce_sum", numbers, [at], True)
    place = b.map("max", b.map("shift_right", b.map("sub", count, 1), 1), 0)
    if not skip:
        place = b.map("select", b.map("eq", count, size), place, count)
    found = [gather_along(b, value, place, at) for value in _sorted(b, x, at, False)]
    return tuple(value if keep else b.squeeze(value, [at]) for value in found)


@aten("median.default")
def median_of_all(b: Builder, x: Value) -> Value:
    return median(b, b.reshape(x, (x.type.size,)))[0]


@aten("nanmedian.default")
def nanmedian_of_all(b: Builder, x: Value) -> Value:
    return nanmedian(b, b.reshape(x, (x.type.size,)))[0]


@aten("count_nonzero")
def count_nonzero(b: Builder, x: Value, axes: Any = None) -> Value:
    return _total(b, "reduce_sum", b.cast(x, dtypes.bool_), axes, False, None)
