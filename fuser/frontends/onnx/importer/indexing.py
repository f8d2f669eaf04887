"""ONNX gathers and scatters. All but Gather go through linear indices into flattened data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser import dtypes
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int, product
from fuser.graph.ir import TensorType, Value
from fuser.graph.linear_index import LinearIndex, linear_index_along


@onnx_op("Gather")
def gather(b: Builder, node: OnnxNode) -> Value:
    axis = node.axis(node.attr("axis", 0), node.x.type.rank)
    return b.emit("gather", node.x, node.operand(1), axis=axis)


@onnx_op("GatherElements", since=11)
def gather_elements(b: Builder, node: OnnxNode) -> Value:
    data, index = node.operand(0), node.operand(1)
    axis = node.axis(node.attr("axis", 0), data.type.rank)
    flat = b.reshape(data, (product(data.type.shape),))
    return b.emit("gather", flat, linear_index_along(b, index, data.type.shape, axis), axis=0)


def _tuple_index(b: Builder, index: Value, shape: Sequence[Dim], batch: int = 0) -> Value:
    """The linear index into an array of `shape` of index[..., k], summed over k. The first `batch`
    axes of both are the same."""
    linear = LinearIndex(b)
    last = index.type.rank - 1
    for axis in range(batch):
        at = b.iota(index.type.shape[:-1], axis)
        linear.add_inside(at, product(list(shape[axis + 1 :])))
    for k, size in enumerate(shape[batch:]):
        column = b.reshape(b.slice_axis(index, last, k, k + 1), index.type.shape[:-1])
        linear.add(column, size, product(list(shape[batch + k + 1 :])))
    return linear.result(product(list(shape)))


@onnx_op("GatherND", since=11)
def gather_nd(b: Builder, node: OnnxNode) -> Value:
    data, index = node.operand(0), node.operand(1)
    batch_dims = node.attr("batch_dims", 0)
    depth = as_int(index.type.shape[-1])
    shape = data.type.shape
    if not 0 < depth <= data.type.rank - batch_dims:
        raise InvalidModelError(f"indices {index.type} do not fit {data.type}", where=node.where)
    if depth == 1 and batch_dims == 0:
        return b.emit("gather", data, b.reshape(index, index.type.shape[:-1]), axis=0)
    linear = _tuple_index(b, index, shape[: batch_dims + depth], batch_dims)
    rest = shape[batch_dims + depth :]
    flat = b.reshape(data, (product(shape[: batch_dims + depth]), *rest))
    return b.emit("gather", flat, linear, axis=0)


def _reduction(node: OnnxNode) -> str:
    reduction: str = node.attr("reduction", "none")
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise node.unsupported(f"reduction {reduction!r}")
    return reduction


@onnx_op("ScatterElements", "Scatter", since=9)
def scatter_elements(b: Builder, node: OnnxNode) -> Value:
    data, index, updates = (node.operand(i) for i in range(3))
    axis = node.axis(node.attr("axis", 0), data.type.rank)
    flat = b.reshape(data, (product(data.type.shape),))
    count = (product(index.type.shape),)
    linear = b.reshape(linear_index_along(b, index, data.type.shape, axis), count)
    changed = b.emit(
        "scatter", flat, linear, b.reshape(updates, count), axis=0, reduction=_reduction(node)
    )
    return b.reshape(changed, data.type.shape)


@onnx_op("ScatterND", since=11)
def scatter_nd(b: Builder, node: OnnxNode) -> Value:
    data, index, updates = (node.operand(i) for i in range(3))
    depth = as_int(index.type.shape[-1])
    shape = data.type.shape
    count, rest = product(index.type.shape[:-1]), shape[depth:]
    if depth:
        linear = b.reshape(_tuple_index(b, index, shape[:depth]), (count,))
    else:  # an index of no coordinates names the whole
        linear = b.full(0, TensorType(dtypes.i64, (count,)))
    changed = b.emit(
        "scatter",
        b.reshape(data, (product(shape[:depth]), *rest)),
        linear,
        b.reshape(updates, (count, *rest)),
        axis=0,
        reduction=_reduction(node),
    )
    return b.reshape(changed, shape)


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(b: Builder, node: OnnxNode) -> Value:
    """The first lengths[i] elements of row i backwards, the others as they are."""
    x, lengths = node.operand(0), b.cast(node.operand(1), dtypes.i64)
    time = node.axis(node.attr("time_axis", 0), x.type.rank)
    batch = node.axis(node.attr("batch_axis", 1), x.type.rank)
    ends = b.broadcast(lengths, x.type.shape, (batch,))
    at = b.iota(x.type.shape, time)
    reversed_at = b.map("sub", b.map("sub", ends, 1), at)
    return take_along(b, x, b.map("select", b.map("lt", at, ends), reversed_at, at), time)


def take_along(b: Builder, data: Value, index: Value, axis: int) -> Value:
    """data[..., index[...], ...]: numpy.take_along_axis."""
    flat = b.reshape(data, (product(data.type.shape),))
    return b.emit("gather", flat, linear_index_along(b, index, data.type.shape, axis), axis=0)


@onnx_op("TensorScatter", since=24)
def tensor_scatter(b: Builder, node: OnnxNode) -> Value:
    """A cache with each row of the batch updated from its own position on."""
    cache, update, start = node.operand(0), node.operand(1), node.optional(2)
    axis = node.axis(node.attr("axis", -2), cache.type.rank)
    shape, length = cache.type.shape, update.type.shape[axis]
    count = product(shape[:axis])  # caches that are written alike, one after the other
    at = b.iota((count, length), 1)
    if start is not None:
        begin = b.broadcast(b.cast(start, dtypes.i64), (*shape[:axis], length), (0,))
        at = b.map("add", at, b.reshape(begin, (count, length)))
    room = _number(b, shape[axis])
    if node.attr("mode", "linear") == "circular":
        at = b.map("mod", at, room)
    rows = b.map("add", at, b.map("mul", b.iota((count, length), 0), room))
    flat = (count * shape[axis], *shape[axis + 1 :])
    changed = b.emit(
        "scatter", b.reshape(cache, flat), b.reshape(rows, (count * length,)),
        b.reshape(update, (count * length, *shape[axis + 1 :])), axis=0, reduction="none",
    )  # fmt: skip
    return b.reshape(changed, shape)


def _number(b: Builder, dim: Dim) -> Any:
    return dim if isinstance(dim, int) else b.dim(dim)
