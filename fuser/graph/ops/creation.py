"""Primitives without operands: constant, iota, dims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuser.dtypes import DType, from_numpy
from fuser.graph.dims import as_int
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import Array, Primitive, check_axis


def _infer_constant(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    value = attrs["value"]
    return (TensorType(from_numpy(value.dtype), tuple(value.shape)),)


def _evaluate_constant(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (attrs["value"],)


def _infer_iota(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_axis("iota", attrs["axis"], len(attrs["shape"]))
    return (TensorType(attrs["dtype"], tuple(attrs["shape"])),)


def _evaluate_iota(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    shape, axis, dtype = attrs["shape"], attrs["axis"], attrs["dtype"]
    aligned = [1] * len(shape)
    aligned[axis] = shape[axis]
    line = np.arange(shape[axis]).astype(dtype.numpy)
    return (np.broadcast_to(line.reshape(aligned), shape),)


def _infer_dims(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(attrs["dtype"], tuple(attrs["shape"])),)


def _evaluate_dims(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    dtype: DType = attrs["dtype"]
    values = [as_int(value) for value in attrs["values"]]
    return (np.asarray(values, np.int64).astype(dtype.numpy).reshape(attrs["shape"]),)


PRIMITIVES: tuple[Primitive, ...] = (
    Primitive("constant", "create", 0, _infer_constant, _evaluate_constant),
    Primitive("iota", "create", 0, _infer_iota, _evaluate_iota),
    Primitive("dims", "create", 0, _infer_dims, _evaluate_dims),
)
