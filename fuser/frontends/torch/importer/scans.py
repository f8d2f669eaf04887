"""ATen's running sums, products, maxima and minima."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.frontends.torch.importer.registry import along_axis, aten, axis_of, optional_dtype
from fuser.graph import compose, numeric
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.linear_index import gather_along
from fuser.graph.scans import by_doubling, running_max


def _running(b: Builder, x: Value, axis: int, dtype: Any, **attrs: Any) -> Value:
    wide = b.cast(x, optional_dtype(dtype, x.dtype if x.dtype.is_float else dtypes.i64))
    at = axis_of(axis, x.type.rank)
    return b.emit("cumsum", wide, axis=at, exclusive=False, reverse=False, **attrs)


@aten("cumsum")
@along_axis
def cumsum(b: Builder, x: Value, axis: int, *, dtype: Any = None) -> Value:
    return _running(b, x, axis, dtype)


@aten("cumprod")
@along_axis
def cumprod(b: Builder, x: Value, axis: int, *, dtype: Any = None) -> Value:
    return _running(b, x, axis, dtype, fn="prod")


@aten("cummax")
@along_axis
def cummax(b: Builder, x: Value, axis: int) -> tuple[Value, Value]:
    return _with_places(b, x, x, axis_of(axis, x.type.rank))


@aten("cummin")
@along_axis
def cummin(b: Builder, x: Value, axis: int) -> tuple[Value, Value]:
    kind = x.dtype.kind
    turn = {"float": "neg", "bool": "logical_not"}.get(kind, "bitwise_not")
    return _with_places(b, x, b.map(turn, x), axis_of(axis, x.type.rank))


def _with_places(b: Builder, x: Value, key: Value, axis: int) -> tuple[Value, Value]:
    """x at the last place so far where the key is greatest, or NaN; and these places."""
    if not x.type.size:
        return x, b.cast(x, dtypes.i64)
    key = b.cast(key, dtypes.u8) if key.dtype is dtypes.bool_ else key
    best = running_max(b, key, axis)
    found = b.map("eq", key, best)
    if key.dtype.is_float:
        found = b.map("logical_or", found, b.map("is_nan", key))
    place = b.iota(x.shape, axis)
    last = running_max(b, b.map("select", found, place, b.scalar(-1, dtypes.i64)), axis)
    return gather_along(b, x, last, axis), last


@aten("logcumsumexp")
@along_axis
def logcumsumexp(b: Builder, x: Value, axis: int) -> Value:
    """In a wider dtype, as PyTorch has it: its gradient subtracts such sums."""
    at = axis_of(axis, x.type.rank)
    if not x.type.size:
        return x

    def combine(before: Value, after: Value) -> Value:
        return numeric.logaddexp(b, before, after)

    wide = b.cast(x, dtypes.f64) if x.dtype is dtypes.f32 else compose.stash(b, x)
    # PyTorch begins with the sum with -inf, of which no -0 is left.
    wide = b.map("add", wide, b.scalar(0.0, wide.dtype))
    return b.cast(by_doubling(b, wide, at, combine, -np.inf), x.dtype)
