"""ATen operators that write, or fold, elements at indices that tensors give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.dtypes import DType
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.movement import strided_places
from fuser.frontends.torch.importer.registry import along_axis, aten, axis_of
from fuser.graph import compose, numeric
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim
from fuser.graph.ir import TensorType, Value
from fuser.graph.linear_index import linear_index, linear_index_along


def _write_along(
    b: Builder, x: Value, axis: int, index: Value, updates: Value, reduction: str
) -> Value:
    if not index.type.size:  # of any rank
        return x
    at = axis_of(axis, x.type.rank)
    if _is_one_number(x) and reduction == "none" and index.shape == _with_one(x, at):
        # One element a row, the others alike: what reads it computes it, and it is never written.
        hit = b.map("eq", b.iota(x.shape, at, index.dtype), b.broadcast_to(index, x.shape))
        return b.map("select", hit, b.broadcast_to(updates, x.shape), x)
    linear = linear_index_along(b, index, x.shape, at)
    flat = b.emit(
        "scatter", b.reshape(x, (x.type.size,)), b.reshape(linear, (linear.type.size,)),
        b.reshape(updates, (linear.type.size,)), axis=0, reduction=reduction,
    )  # fmt: skip
    return b.reshape(flat, x.type.shape)


def _is_one_number(x: Value) -> bool:
    return x.node is not None and x.node.op == "broadcast" and not x.node.inputs[0].type.rank


def _with_one(x: Value, axis: int) -> tuple[Dim, ...]:
    """Its shape with 1 along an axis."""
    return (*x.shape[:axis], 1, *x.shape[axis + 1 :])


def _front(b: Builder, source: Value, index: Value) -> Value:
    """The part of a source that an index reads: as much of it as the index has elements."""
    if not index.type.size:  # of any rank, and nothing is read
        return source
    return b.slice(source, [0] * source.type.rank, index.shape)


_REDUCTIONS = {
    "add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min",
    "mean": "add",
}  # fmt: skip


@aten("scatter")
@along_axis
def scatter(
    b: Builder, x: Value, axis: int, index: Value, source: Any, *, reduce: str = ""
) -> Value:
    if isinstance(source, Value):
        updates = _front(b, source, index)
    else:
        updates = b.broadcast_to(b.scalar(source, x.dtype), index.type.shape)
    return _write_along(b, x, axis, index, updates, _REDUCTIONS.get(reduce, "none"))


@aten("scatter_add")
@along_axis
def scatter_add(b: Builder, x: Value, axis: int, index: Value, source: Value) -> Value:
    updates = _front(b, source, index)
    return _write_along(b, x, axis, index, updates, "add")


def _neutral(dtype: DType, reduction: str) -> float | int:
    """What a reduction starts from where the element itself is not part of it."""
    if reduction in ("max", "min"):
        return dtype.lowest if reduction == "max" else dtype.highest
    return 1 if reduction == "mul" else 0


Write = Callable[[Value, "Value | float", str], Value]
"""A base with updates scattered by a reduction; a number stands for updates that are all alike."""


def _reduced(
    b: Builder, x: Value, source: Value, reduce: str, include_self: bool, write: Write
) -> Value:
    """x with sources folded into some of its elements. 16-bit floats are folded in float32 and
    rounded once."""
    if reduce not in _REDUCTIONS:
        raise UnsupportedError(f"scatter with the reduction {reduce!r}")
    reduction, wide = _REDUCTIONS[reduce], compose.stash(b, x)
    if wide.dtype is dtypes.bool_:
        wide = b.cast(x, dtypes.u8)
    if not include_self:
        touched = write(b.full(0, TensorType(dtypes.u8, x.type.shape)), 1, "none")
        start = b.scalar(_neutral(wide.dtype, reduction), wide.dtype)
        wide = b.map("select", b.map("ne", touched, 0), start, wide)
    found = write(wide, b.cast(source, wide.dtype), reduction)
    if reduce == "mean":
        count = write(b.full(int(include_self), TensorType(dtypes.i64, x.type.shape)), 1, "add")
        count = b.cast(b.map("max", count, 1), wide.dtype)
        divide = numeric.floor_divide if wide.dtype.is_integer else _divide
        found = divide(b, found, count)
    return b.cast(found, x.dtype)


def _divide(b: Builder, x: Value, y: Value) -> Value:
    return b.map("div", x, y)


@aten("scatter_reduce")
@along_axis
def scatter_reduce(
    b: Builder, x: Value, axis: int, index: Value, source: Value, reduce: str, *,
    include_self: bool = True,
) -> Value:  # fmt: skip
    def write(base: Value, updates: Value | float, reduction: str) -> Value:
        if not isinstance(updates, Value):
            updates = b.full(updates, TensorType(base.dtype, index.type.shape))
        return _write_along(b, base, axis, index, updates, reduction)

    return _reduced(b, x, _front(b, source, index), reduce, include_self, write)


@aten("index_reduce")
@along_axis
def index_reduce(
    b: Builder, x: Value, axis: int, index: Value, source: Value, reduce: str, *,
    include_self: bool = True,
) -> Value:  # fmt: skip
    at = axis_of(axis, x.type.rank)

    def write(base: Value, updates: Value | float, reduction: str) -> Value:
        if not isinstance(updates, Value):
            updates = b.full(updates, TensorType(base.dtype, source.type.shape))
        linear = linear_index(b, [index], [x.shape[at]])
        return b.emit("scatter", base, linear, updates, axis=at, reduction=reduction)

    return _reduced(b, x, source, reduce, include_self, write)


@aten("index_add")
@along_axis
def index_add(
    b: Builder, x: Value, axis: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    source = source if alpha == 1 else b.map("mul", source, alpha)
    return b.emit("scatter", x, index, source, axis=axis_of(axis, x.type.rank), reduction="add")


def _write_places(b: Builder, x: Value, places: np.ndarray, source: Value) -> Value:
    """x with the elements at linear indices replaced."""
    if not places.size:
        return x
    flat = b.emit(
        "scatter", b.reshape(x, (x.type.size,)), b.constant(places.reshape(-1)),
        b.reshape(b.cast(source, x.dtype), (places.size,)), axis=0, reduction="none",
    )  # fmt: skip
    return b.reshape(flat, x.type.shape)


@aten("diagonal_scatter")
def diagonal_scatter(
    b: Builder, x: Value, source: Value, offset: int = 0, first: int = 0, second: int = 1
) -> Value:
    check_table("the places of a diagonal", *x.shape)
    places = np.arange(x.type.size).reshape(x.shape)
    return _write_places(b, x, np.diagonal(places, offset, first, second), source)


@aten("as_strided_scatter")
def as_strided_scatter(
    b: Builder, x: Value, source: Value, shape: Any, strides: Any, offset: Any = None
) -> Value:
    return _write_places(b, x, strided_places(x, shape, strides, offset), source)
