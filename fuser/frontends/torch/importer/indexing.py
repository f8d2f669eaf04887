"""ATen operators that read at indices that tensors give, and assignments to indexed elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.base.limits import check_table
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.movement import _bound
from fuser.frontends.torch.importer.registry import along_axis, as_values, aten, axis_of
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int, maximum, product
from fuser.graph.ir import TensorType, Value
from fuser.graph.linear_index import gather_along, gather_at, linear_index


@aten("embedding")
def embedding(b: Builder, weight: Value, indices: Value, *_: Any) -> Value:
    return b.emit("gather", weight, indices, axis=0)


@aten("index_select")
@along_axis
def index_select(b: Builder, x: Value, axis: int, index: Value) -> Value:
    flat = b.reshape(index, (index.type.size,))
    return b.emit("gather", x, flat, axis=axis_of(axis, x.type.rank))


@aten("gather")
def gather(b: Builder, x: Value, axis: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if not index.type.size:  # of any rank
        return b.full(0, TensorType(x.dtype, index.type.shape))
    if not x.type.rank:
        return b.broadcast_to(b.reshape(x, (1,) * index.type.rank), index.type.shape)
    if not index.type.rank:
        return b.reshape(gather(b, x, axis, b.reshape(index, (1,))), ())
    starts = [0] * x.type.rank
    at = axis_of(axis, x.type.rank)
    kept = [n if i == at else m for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))]
    return gather_along(b, b.slice(x, starts, kept), index, at)


def _index_arrays(b: Builder, x: Value, indices: Any) -> dict[int, Value]:
    """Integer tensors by axis. A mask whose values are known is the indices where it holds."""
    arrays: dict[int, Value] = {}
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
        elif index.dtype is dtypes.bool_:
            known = b.known(index)
            if known is None:
                raise UnsupportedError("the shape of x[mask] depends on data")
            for positions in np.nonzero(known):
                arrays[axis] = b.constant(positions)
                axis += 1
        else:
            arrays[axis] = index
            axis += 1
    return arrays


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(b: Builder, x: Value, indices: Any) -> Value:
    return gather_at(b, x, _index_arrays(b, x, indices))


@aten("_unsafe_masked_index")
def masked_index(b: Builder, x: Value, mask: Value, indices: Any, fill: Any) -> Value:
    found = gather_at(b, x, _index_arrays(b, x, indices))
    return b.map("select", mask, found, b.scalar(fill, x.dtype))


@aten("index_put", "_unsafe_index_put", "index_put_")
def index_put(b: Builder, x: Value, indices: Any, values: Value, accumulate: bool = False) -> Value:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is dtypes.bool_:
        return _put_masked(b, x, indices[0], values, accumulate)
    arrays = _index_arrays(b, x, indices)
    axes = sorted(arrays)
    if len(axes) == 1 and (at := arrays[axes[0]]).type.rank:
        (axis,) = axes
        return b.emit(
            "scatter", x, linear_index(b, [at], [x.shape[axis]]),
            b.broadcast_to(values, (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])),
            axis=axis, reduction="add" if accumulate else "none",
        )  # fmt: skip
    rest = [axis for axis in range(x.type.rank) if axis not in arrays]
    front = b.transpose(x, [*axes, *rest])
    linear = linear_index(b, [arrays[a] for a in axes], [x.shape[a] for a in axes])
    merged = b.reshape(front, (product([x.shape[a] for a in axes]), *(x.shape[a] for a in rest)))
    rank, shape = linear.type.rank, linear.shape
    if axes[-1] - axes[0] == len(axes) - 1 and axes[0] > 0:
        # The axes of the indices stand where the first indexed axis is: bring them to the front.
        before = sum(axis < axes[0] for axis in rest)
        sizes = [x.shape[a] for a in rest]
        values = b.broadcast_to(values, (*sizes[:before], *shape, *sizes[before:]))
        values = b.transpose(
            values,
            [
                *range(before, before + rank),
                *range(before),
                *range(before + rank, rank + len(rest)),
            ],
        )
    else:
        values = b.broadcast_to(values, (*shape, *(x.shape[a] for a in rest)))
    written = b.emit(
        "scatter", merged, linear, values, axis=0, reduction="add" if accumulate else "none"
    )
    unmerged = b.reshape(written, front.type.shape)
    order = [*axes, *rest]
    return b.transpose(unmerged, [order.index(axis) for axis in range(x.type.rank)])


def _put_masked(b: Builder, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    if values.type.size != 1:
        raise UnsupportedError(
            "x[mask] = values needs one value: how many there are depends on data"
        )
    wide = b.broadcast(mask, x.type.shape, range(mask.type.rank))
    value = b.reshape(values, ())
    return b.map("select", wide, b.map("add", x, value) if accumulate else value, x)


@aten("slice_scatter")
def slice_scatter(
    b: Builder, x: Value, source: Value, axis: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Value:  # fmt: skip
    at = axis_of(axis, x.type.rank)
    size = x.shape[at]
    low = _bound(start, size, 0)
    high = maximum(low, _bound(end, size, size))
    (source,) = as_values(b, (source,), x.dtype)
    if step != 1:
        check_table("the places of a slice", as_int(high - low))
        linear = b.constant(np.arange(as_int(low), as_int(high), step))
        return b.emit("scatter", x, linear, source, axis=at, reduction="none")
    parts = (b.slice_axis(x, at, 0, low), source, b.slice_axis(x, at, high, size))
    return b.concat([part for part in parts if part.shape[at]] or [x], at)


@aten("select_scatter")
def select_scatter(b: Builder, x: Value, source: Value, axis: int, index: int) -> Value:
    at = axis_of(axis, x.type.rank)
    index = index + x.shape[at] if index < 0 else index
    return slice_scatter(b, x, b.unsqueeze(source, [at]), at, index, index + 1)


@aten("masked_select", "nonzero", "unique", "_unique2")
def data_dependent(b: Builder, *_: Any, **__: Any) -> Value:
    raise UnsupportedError("the shape of the result depends on data")
