"""ATen operators that make tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.dtypes import DType
from fuser.frontends.torch.importer.registry import aten, optional_dtype
from fuser.graph.builder import Builder
from fuser.graph.dims import DimExpr, maximum
from fuser.graph.ir import TensorType, Value


def _default(fill: Any) -> DType:
    if isinstance(fill, bool):
        return dtypes.bool_
    if isinstance(fill, Value):  # a number that kernels compute
        return dtypes.f32
    return dtypes.i64 if isinstance(fill, int | DimExpr) else dtypes.f32


@aten("full")
def full(b: Builder, shape: Any, fill: Any, *, dtype: Any = None, **_: Any) -> Value:
    return _filled(b, fill, TensorType(optional_dtype(dtype, _default(fill)), tuple(shape)))


def _filled(b: Builder, fill: Any, type: TensorType) -> Value:
    if isinstance(fill, Value):
        return b.broadcast_to(b.cast(fill, type.dtype), type.shape)
    return b.full(fill, type)


@aten("full_like")
def full_like(b: Builder, x: Value, fill: Any, *, dtype: Any = None, **_: Any) -> Value:
    return _filled(b, fill, TensorType(optional_dtype(dtype, x.dtype), x.type.shape))


@aten("fill.Scalar", "fill")
def fill(b: Builder, x: Value, value: Any) -> Value:
    return _filled(b, value, x.type)


@aten("zeros", "empty", "empty_permuted")
def zeros(b: Builder, shape: Any, *_: Any, dtype: Any = None, **__: Any) -> Value:
    return full(b, shape, 0.0, dtype=dtype)


@aten("ones")
def ones(b: Builder, shape: Any, *, dtype: Any = None, **_: Any) -> Value:
    return full(b, shape, 1.0, dtype=dtype)


@aten("empty_strided", "new_empty_strided")
def empty_strided(b: Builder, *args: Any, dtype: Any = None, **_: Any) -> Value:
    if isinstance(args[0], Value):
        return b.full(0, TensorType(optional_dtype(dtype, args[0].dtype), tuple(args[1])))
    return full(b, args[0], 0.0, dtype=dtype)


@aten("zeros_like", "empty_like")
def zeros_like(b: Builder, x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return full_like(b, x, 0, dtype=dtype)


@aten("ones_like")
def ones_like(b: Builder, x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return full_like(b, x, 1, dtype=dtype)


@aten("new_zeros", "new_empty")
def new_zeros(b: Builder, x: Value, shape: Any, *, dtype: Any = None, **_: Any) -> Value:
    return b.full(0, TensorType(optional_dtype(dtype, x.dtype), tuple(shape)))


@aten("new_ones")
def new_ones(b: Builder, x: Value, shape: Any, *, dtype: Any = None, **_: Any) -> Value:
    return b.full(1, TensorType(optional_dtype(dtype, x.dtype), tuple(shape)))


@aten("new_full")
def new_full(b: Builder, x: Value, shape: Any, value: Any, *, dtype: Any = None, **_: Any) -> Value:
    return b.full(value, TensorType(optional_dtype(dtype, x.dtype), tuple(shape)))


@aten("scalar_tensor")
def scalar_tensor(b: Builder, value: Any, *, dtype: Any = None, **_: Any) -> Value:
    result = optional_dtype(dtype, dtypes.f32)
    return b.cast(value, result) if isinstance(value, Value) else b.scalar(value, result)


def _line(b: Builder, start: Any, end: Any, step: Any, dtype: Any) -> Value:
    """Positions are `iota`, so that masks made of them are computed, not stored."""
    whole = all(isinstance(bound, int | DimExpr) for bound in (start, end, step))
    result = optional_dtype(dtype, dtypes.i64 if whole else dtypes.f32)
    if not whole and result.is_integer:
        # PyTorch truncates the bounds; the length alone is that of the fractions, but for int64
        # (aten/src/ATen/native/RangeFactories.cpp, arange_out).
        size = math.ceil((end - start) / step)
        start, end, step = (math.trunc(bound) for bound in (start, end, step))
        if result is not dtypes.i64:
            check_table("the numbers of arange", size, arrays=2)
            return b.constant((start + step * np.arange(size)).astype(result.numpy))
    elif not whole:
        check_table("the numbers of arange", math.ceil((end - start) / step), arrays=2)
        return b.constant(np.arange(start, end, step).astype(result.numpy))
    size = maximum(0, -(-(end - start) // step))
    value = b.iota((size,), 0, result if result.is_integer else dtypes.i64)
    value = value if step == 1 else b.map("mul", value, step)
    return b.cast(value if start == 0 else b.map("add", value, start), result)


@aten("arange.default")
def arange(b: Builder, end: Any, *, dtype: Any = None, **_: Any) -> Value:
    return _line(b, 0, end, 1, dtype)


@aten("arange.start")
def arange_start(b: Builder, start: Any, end: Any, *, dtype: Any = None, **_: Any) -> Value:
    return _line(b, start, end, 1, dtype)


@aten("arange.start_step")
def arange_step(
    b: Builder, start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any
) -> Value:
    return _line(b, start, end, step, dtype)


@aten("iota")
def iota(
    b: Builder, length: int, *, start: int = 0, step: int = 1, dtype: Any = None, **_: Any
) -> Value:
    return _line(b, start, start + length * step, step, dtype)


@aten("linspace")
def linspace(b: Builder, start: Any, end: Any, steps: int, *, dtype: Any = None, **_: Any) -> Value:
    result = optional_dtype(dtype, dtypes.f32)
    check_table("the numbers of linspace", steps, arrays=3)
    return b.constant(np.linspace(start, end, steps).astype(result.numpy))


def _triangle(b: Builder, x: Value, op: str, diagonal: int) -> Value:
    rank, shape = x.type.rank, x.shape[-2:]
    row = b.iota(shape, 0)
    row = b.map("add", row, diagonal) if diagonal else row
    mask = b.broadcast(b.map(op, b.iota(shape, 1), row), x.type.shape, (rank - 2, rank - 1))
    return b.map("select", mask, x, b.scalar(0, x.dtype))


@aten("tril")
def tril(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return _triangle(b, x, "le", diagonal)


@aten("triu")
def triu(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return _triangle(b, x, "ge", diagonal)


@aten("eye")
def eye(b: Builder, rows: int, columns: Any = None, *, dtype: Any = None, **_: Any) -> Value:
    shape = (rows, columns if isinstance(columns, int | DimExpr) else rows)
    mask = b.map("eq", b.iota(shape, 0), b.iota(shape, 1))
    return b.cast(mask, optional_dtype(dtype, dtypes.f32))
