"""ONNX operators that make tensors or read shapes: Shape, Constant, Range and the like."""

from __future__ import annotations

import math

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.narrow import narrow_of, to_codes
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.frontends.onnx.importer.types import onnx_dtype
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, ceildiv, maximum, product
from fuser.graph.ir import TensorType, Value


@onnx_op("Shape")
def shape(b: Builder, node: OnnxNode) -> Value:
    dims = node.x.type.shape
    return b.dims(dims[slice(node.attr("start", 0), node.attr("end", None))])


@onnx_op("Size")
def size(b: Builder, node: OnnxNode) -> Value:
    return b.dim(product(node.x.type.shape))


@onnx_op("Constant")
def constant(b: Builder, node: OnnxNode) -> Value:
    for name, kind in (("value_float", np.float32), ("value_floats", np.float32),
                       ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if name in node.attrs:
            return b.constant(np.asarray(node.attrs[name], kind))
    if "value" not in node.attrs:
        raise node.unsupported(f"the constant has {', '.join(node.attrs) or 'no value'}")
    array = node.attrs["value"]
    dtype = narrow_of(array)
    return b.constant(array) if dtype is None else node.mark(b.constant(to_codes(array)), dtype)


@onnx_op("ConstantOfShape")
def constant_of_shape(b: Builder, node: OnnxNode) -> Value:
    value = node.attr("value", np.zeros(1, np.float32))
    fill = b.constant(value.reshape(()))
    return b.broadcast_to(fill, b.read_dims(node.x, "the shape"))


@onnx_op("Range")
def arange(b: Builder, node: OnnxNode) -> Value:
    """iota * delta + start, with as many elements as fit before limit."""
    start, limit, delta = (b.reshape(node.operand(i), ()) for i in range(3))
    dtype = start.dtype
    if dtype.is_float:
        first, last, step = (float(b.read_scalar(v, "a bound")) for v in (start, limit, delta))
        if step == 0 or not math.isfinite((last - first) / step):
            raise InvalidModelError(f"{first}, {last}, {step} is no range", where=node.where)
        count: Dim = max(0, math.ceil((last - first) / step))
        first_dim: Dim = 0 if first == 0 else 1
    else:
        first_dim, last_dim, step_dim = (
            b.read_dims(v, "a bound of Range")[0] for v in (start, limit, delta)
        )
        if step_dim == 0:
            raise InvalidModelError("the step is 0", where=node.where)
        if not isinstance(step_dim, int):
            raise node.unsupported("the step is symbolic")
        step = step_dim
        forward = last_dim - first_dim if step > 0 else first_dim - last_dim
        count = maximum(ceildiv(forward, abs(step_dim)), 0)
    result = b.iota((count,), 0, dtype)
    if step != 1:
        result = b.map("mul", result, step)
    return result if first_dim == 0 else b.map("add", result, start)


@onnx_op("EyeLike")
def eye_like(b: Builder, node: OnnxNode) -> Value:
    dtype = onnx_dtype(node.attrs["dtype"], node.where) if "dtype" in node.attrs else node.x.dtype
    return b.cast(_diagonal(b, node.x.type, "eq", node.attr("k", 0)), dtype)


@onnx_op("Trilu", since=14)
def trilu(b: Builder, node: OnnxNode) -> Value:
    x, offset = node.x, node.optional(1)
    keep = b.map("ge" if node.attr("upper", 1) else "le", *_positions(b, x.type, offset))
    keep = b.broadcast_to(keep, x.type.shape)
    return b.map("select", keep, x, 0)


def _diagonal(b: Builder, type: TensorType, op: str, offset: int) -> Value:
    rows, columns = (b.iota(type.shape[-2:], axis) for axis in (0, 1))
    return b.map(op, columns, rows if offset == 0 else b.map("add", rows, offset))


_FARTHEST = 1 << 30
"""More rows or columns than a matrix has."""


def _positions(b: Builder, type: TensorType, offset: Value | None) -> tuple[Value, Value]:
    """The column of each element of a matrix, and its row shifted by offset. An offset beyond
    every matrix is cut down, so that the sum does not wrap."""
    rows, columns = (b.iota(type.shape[-2:], axis) for axis in (0, 1))
    if offset is None:
        return columns, rows
    near = b.map("min", b.map("max", b.reshape(offset, ()), -_FARTHEST), _FARTHEST)
    return columns, b.map("add", rows, near)


@onnx_op("OneHot", since=9)
def one_hot(b: Builder, node: OnnxNode) -> Value:
    indices, values = node.operand(0), node.operand(2)
    depth = b.read_dims(node.operand(1), "depth")[0]
    rank = indices.type.rank + 1
    axis = node.axis(node.attr("axis", -1), rank)
    wide = b.cast(indices, dtypes.i64)
    wide = b.map("select", b.map("lt", wide, 0), b.map("add", wide, _as_value(b, depth)), wide)
    full = (*indices.type.shape[:axis], depth, *indices.type.shape[axis:])
    kept = [a for a in range(rank) if a != axis]
    hit = b.map("eq", b.iota(full, axis), b.broadcast(wide, full, kept))
    off, on = (b.reshape(b.slice_axis(values, 0, i, i + 1), ()) for i in (0, 1))
    return b.map("select", hit, on, off)


def _as_value(b: Builder, dim: Dim, dtype: DType = dtypes.i64) -> Value:
    return b.scalar(dim, dtype) if isinstance(dim, int) else b.dim(dim, dtype)
