"""Arrays made from nothing, or shaped like another."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.dtypes import from_numpy
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import (
    current,
    is_traced,
    lift,
    promotion_kind,
    traced,
    wrap,
)
from fuser.frontends.numpy.trace.context import result_type as promote
from fuser.frontends.numpy.trace.functions.reductions import sum_
from fuser.frontends.numpy.trace.functions.registry import array_function, as_shape, many_axes
from fuser.frontends.numpy.trace.numbers import check_fits
from fuser.graph.dims import DimExpr, ceildiv, maximum
from fuser.graph.ir import TensorType
from fuser.graph.sizes import is_symbolic, same


def _full(shape: Any, fill: Any, dtype: Any) -> Any:
    b = current().builder
    if dtype is not None:
        check_fits(fill, np.dtype(dtype))
    if is_traced(fill):
        return wrap(b.broadcast_to(lift(fill, dtype and np.dtype(dtype)), as_shape(shape)))
    kind = np.asarray(fill).dtype if dtype is None else np.dtype(dtype)
    return wrap(b.full(fill, TensorType(from_numpy(kind), as_shape(shape))))


@array_function("zeros")
def zeros(shape: Any, dtype: Any = None, *, device: Any = None, order: str = "C") -> Any:
    return _full(shape, 0, dtype or np.float64)


@array_function("empty")
def empty(shape: Any, dtype: Any = None, *, device: Any = None, order: str = "C") -> Any:
    return _full(shape, 0, dtype or np.float64)


@array_function("ones")
def ones(shape: Any, dtype: Any = None, *, device: Any = None, order: str = "C") -> Any:
    return _full(shape, 1, dtype or np.float64)


@array_function("full")
def full(
    shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None, order: str = "C"
) -> Any:
    return _full(shape, fill_value, dtype)


@array_function("zeros_like", "empty_like")
def zeros_like(
    x: Any, /, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *,
    device: Any = None,
) -> Any:  # fmt: skip
    value = lift(x)
    return _full(value.shape if shape is None else shape, 0, dtype or value.dtype.numpy)


@array_function("ones_like")
def ones_like(
    x: Any, /, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *,
    device: Any = None,
) -> Any:  # fmt: skip
    value = lift(x)
    return _full(value.shape if shape is None else shape, 1, dtype or value.dtype.numpy)


@array_function("full_like")
def full_like(
    x: Any, /, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True,
    shape: Any = None, *, device: Any = None,
) -> Any:  # fmt: skip
    value = lift(x)
    return _full(value.shape if shape is None else shape, fill_value, dtype or value.dtype.numpy)


@array_function("arange")
def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None
) -> Any:
    """Positions are `iota`, so that masks made of them are computed, not stored."""
    if is_symbolic(start, stop):
        return _open_line(start, stop, step, dtype)
    low, high = (0, start) if stop is None else (start, stop)
    line = np.arange(low, high, step, dtype=dtype)
    b = current().builder
    if line.dtype.kind not in "iu" or line.size < 2:
        return wrap(b.constant(line))
    value = b.iota(line.shape, 0, from_numpy(line.dtype))
    first, stride = int(line[0]), int(line[1] - line[0])
    if stride != 1:
        value = b.map("mul", value, stride)
    return wrap(b.map("add", value, first) if first else value)


def _open_line(start: Any, stop: Any, step: Any, dtype: Any) -> Any:
    """Positions between sizes that are open."""
    low, high = (0, start) if stop is None else (start, stop)
    b, kind = current().builder, np.dtype(dtype or np.int64)
    if not all(isinstance(x, int | DimExpr) for x in (low, high, step)):
        raise TraceError("arange to an open size takes integers")
    value = b.iota((maximum(0, ceildiv(high - low, step)),), 0, from_numpy(kind))
    if step != 1:
        value = b.map("mul", value, step)
    return wrap(value if same(low, 0) else b.map("add", value, low))


@array_function("linspace")
def linspace(
    start: Any, stop: Any, /, num: int = 50, endpoint: bool = True, dtype: Any = None, *,
    device: Any = None,
) -> Any:  # fmt: skip
    return wrap(current().builder.constant(np.linspace(start, stop, num, endpoint, dtype=dtype)))


def _diagonal_mask(rows: int, columns: int, op: str, offset: int) -> Any:
    """column `op` row + offset."""
    b = current().builder
    row = b.iota((rows, columns), 0)
    column = b.iota((rows, columns), 1)
    return b.map(op, column, b.map("add", row, offset) if offset else row)


@array_function("eye")
def eye(
    rows: int, columns: int | None = None, /, k: int = 0, dtype: Any = None, *, device: Any = None,
    order: str = "C",
) -> Any:  # fmt: skip
    mask = _diagonal_mask(rows, rows if columns is None else columns, "eq", k)
    return wrap(current().builder.cast(mask, from_numpy(dtype or np.float64)))


def _triangle(x: Any, op: str, k: int) -> Any:
    """A vector stands for a square whose rows it is."""
    b, value = current().builder, lift(x)
    if not value.type.rank:
        raise TraceError(f"{value.type} has no triangle: a matrix is wanted")
    if value.type.rank == 1:
        value = b.broadcast_to(value, (*value.shape, *value.shape))
    rank = value.type.rank
    mask = _diagonal_mask(value.shape[-2], value.shape[-1], op, k)
    mask = b.broadcast(mask, value.shape, (rank - 2, rank - 1))
    return wrap(b.map("select", mask, value, b.scalar(0, value.dtype)))


@array_function("tril")
def tril(x: Any, /, k: int = 0) -> Any:
    return _triangle(x, "le", k)


@array_function("triu")
def triu(x: Any, /, k: int = 0) -> Any:
    return _triangle(x, "ge", k)


@array_function("meshgrid")
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False, copy: bool = True) -> Any:
    b = current().builder
    lines = [lift(x) for x in arrays]
    order = list(range(len(lines)))
    if indexing == "xy" and len(lines) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(lines)
    for place, line in zip(order, lines, strict=True):
        shape[place] = line.type.size
    made = []
    for place, line in zip(order, lines, strict=True):
        if sparse:
            wide = b.reshape(line, [line.type.size if i == place else 1 for i in order])
        else:
            wide = b.broadcast(b.reshape(line, (line.type.size,)), shape, (place,))
        made.append(wrap(wide))
    return made


@array_function("array")
def array(
    x: Any, dtype: Any = None, *, copy: Any = True, device: Any = None, order: Any = "K",
    subok: bool = False, ndmin: int = 0,
) -> Any:  # fmt: skip
    found = asarray(x, dtype)
    if ndmin > found.ndim:
        found = found[(None,) * (ndmin - found.ndim)]
    return found.copy() if copy else found


@array_function("copy")
def copy(x: Any, order: Any = "K", subok: bool = False) -> Any:
    return array(x)


@array_function("asarray", "asanyarray", "ascontiguousarray")
def asarray(
    x: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, device: Any = None
) -> Any:
    kind = None if dtype is None else np.dtype(dtype)
    if kind is not None:
        check_fits(x, kind)
    if is_traced(x) and x.weak is None and (kind is None or kind == x.dtype):
        return x.copy() if copy else x
    return traced(x, kind)


@array_function("astype")
def astype(x: Any, dtype: Any, /, **_: Any) -> Any:
    return wrap(lift(x, np.dtype(dtype)))


@array_function("trace")
def trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    return sum_(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


@array_function("diagonal")
def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The flattened matrices at every (columns + 1)-th element."""
    b, value = current().builder, lift(x)
    pair = many_axes((axis1, axis2), value.type.rank)
    if axis1 % value.type.rank > axis2 % value.type.rank:
        pair = pair[::-1]
    rest = [axis for axis in range(value.type.rank) if axis not in pair]
    value = b.transpose(value, [*rest, *pair])
    *outer, rows, columns = value.shape
    row, column = (0, offset) if offset >= 0 else (-offset, 0)
    count = max(0, min(rows - row, columns - column))
    flat = b.reshape(value, (*outer, rows * columns))
    first = row * columns + column if count else 0
    limit = first + (count - 1) * (columns + 1) + 1 if count else 0
    return wrap(b.slice_axis(flat, len(outer), first, limit, columns + 1))


@array_function("result_type")
def result_type(*operands: Any) -> np.dtype:
    return promote(*operands)


@array_function("shape")
def shape(x: Any) -> tuple[int, ...]:
    return lift(x).shape


@array_function("ndim")
def ndim(x: Any) -> int:
    return lift(x).type.rank


@array_function("size")
def size(x: Any, axis: Any = None) -> int:
    value = lift(x)
    return value.type.size if axis is None else value.shape[axis]


@array_function("real")
def real(x: Any) -> Any:
    return wrap(lift(x))


@array_function("iscomplexobj")
def iscomplexobj(x: Any) -> bool:
    return bool(np.dtype(promotion_kind(x)).kind == "c")
