"""ONNX element types and tensors as DTypes and arrays."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import InvalidModelError, UnsupportedDTypeError
from fuser.graph.ops.primitive import Array

_DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: dtypes.f32,
    TensorProto.DOUBLE: dtypes.f64,
    TensorProto.FLOAT16: dtypes.f16,
    TensorProto.BFLOAT16: dtypes.bf16,
    TensorProto.INT64: dtypes.i64,
    TensorProto.INT32: dtypes.i32,
    TensorProto.INT16: dtypes.i16,
    TensorProto.INT8: dtypes.i8,
    TensorProto.UINT64: dtypes.u64,
    TensorProto.UINT32: dtypes.u32,
    TensorProto.UINT16: dtypes.u16,
    TensorProto.UINT8: dtypes.u8,
    TensorProto.BOOL: dtypes.bool_,
}


_NARROW: dict[int, DType] = {
    getattr(TensorProto, name): dtypes.BY_NAME[short]
    for name, short in (
        ("FLOAT8E4M3FN", "f8e4m3fn"), ("FLOAT8E4M3FNUZ", "f8e4m3fnuz"),
        ("FLOAT8E5M2", "f8e5m2"), ("FLOAT8E5M2FNUZ", "f8e5m2fnuz"), ("FLOAT4E2M1", "f4e2m1"),
        ("INT4", "i4"), ("UINT4", "u4"), ("INT2", "i2"), ("UINT2", "u2"),
    )
    if hasattr(TensorProto, name)
}  # fmt: skip


ELEMENT_BITS = {number: dtype.bits for number, dtype in (*_DTYPES.items(), *_NARROW.items())}
"""Bits of an element of each element type that kernels compute on."""


def narrow_dtype(elem_type: int) -> DType | None:
    """The DType of an element type that is carried as codes of a byte (narrow.py), else None."""
    return _NARROW.get(elem_type)


def onnx_dtype(elem_type: int, where: str = "") -> DType:
    """The DType of a TensorProto element type. Raises UnsupportedDTypeError; InvalidModelError for
    a number that names none."""
    if elem_type not in _DTYPES:
        if elem_type not in TensorProto.DataType.values()[1:]:
            raise InvalidModelError(f"there is no element type {elem_type}", where=where)
        name = TensorProto.DataType.Name(elem_type)
        raise UnsupportedDTypeError(
            f"the element type {name} is not supported",
            where=where,
            hint="supported: " + ", ".join(d.name for d in dtypes.ALL),
        )
    return _DTYPES[elem_type]


def plain_dtype(elem_type: int) -> DType | None:
    """The DType of an element type whose raw data are the bytes of its array, else None."""
    return _DTYPES.get(elem_type)


def is_supported(elem_type: int) -> bool:
    """Whether kernels compute on a TensorProto element type."""
    return elem_type in _DTYPES or elem_type in _NARROW


def tensor_array(tensor: TensorProto, where: str = "") -> Array:
    """The array of a TensorProto. Raises UnsupportedDTypeError, InvalidModelError."""
    dtype = narrow_dtype(tensor.data_type) or onnx_dtype(tensor.data_type, where or tensor.name)
    array = host_array(tensor, where)
    return array if array.dtype == dtype.numpy else array.view(dtype.numpy)


def host_array(tensor: TensorProto, where: str = "") -> Array:
    """The array of a TensorProto of any element type, strings among them, as the onnx package makes
    it. Raises InvalidModelError."""
    try:
        array: Array = onnx.numpy_helper.to_array(tensor)
    except (KeyError, OverflowError, ValueError, TypeError) as error:
        message = f"the tensor {tensor.name} has broken data: {error}"
        raise InvalidModelError(message, where=where) from None
    return array
