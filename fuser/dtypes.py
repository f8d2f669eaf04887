"""The dtype table: one record per element type, shared by every stage.

`name` is what IR text prints. `numpy` is the array dtype (ml_dtypes supplies bfloat16 and the 8-bit
floats). `llvm` is how LLVM IR spells a value of the type in a register; bool is stored as one byte
and computed as i1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from fuser.errors import UnsupportedDTypeError

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True)
class DType:
    """An element type. `bits` is the storage width of one element in memory."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype
    llvm: str

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def compute(self) -> DType:
        """The type that arithmetic uses: float16 and narrower floats compute in float32."""
        return f32 if self.is_float and self.bits < 32 else self

    @property
    def accumulate(self) -> DType:
        """The type that sums and dot products accumulate in: float32, float64 for float64."""
        if self.is_float:
            return self.compute
        return i64 if self.bits == 64 else i32

    @property
    def lowest(self) -> float | int:
        """The least value, the identity of a max: -inf for floats."""
        if self.is_float:
            return float("-inf")
        return 0 if self.kind in ("bool", "uint") else -(1 << (self.bits - 1))

    @property
    def highest(self) -> float | int:
        """The greatest value, the identity of a min: +inf for floats."""
        if self.is_float:
            return float("inf")
        if self.kind == "bool":
            return 1
        return (1 << (self.bits - (self.kind == "int"))) - 1

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _dtype(name: str, kind: Kind, scalar: type, llvm: str) -> DType:
    numpy_dtype = np.dtype(scalar)
    return DType(name, kind, numpy_dtype.itemsize * 8, numpy_dtype, llvm)


f64 = _dtype("f64", "float", np.float64, "double")
f32 = _dtype("f32", "float", np.float32, "float")
f16 = _dtype("f16", "float", np.float16, "half")
bf16 = _dtype("bf16", "float", ml_dtypes.bfloat16, "bfloat")
i64 = _dtype("i64", "int", np.int64, "i64")
i32 = _dtype("i32", "int", np.int32, "i32")
i16 = _dtype("i16", "int", np.int16, "i16")
i8 = _dtype("i8", "int", np.int8, "i8")
u64 = _dtype("u64", "uint", np.uint64, "i64")
u32 = _dtype("u32", "uint", np.uint32, "i32")
u16 = _dtype("u16", "uint", np.uint16, "i16")
u8 = _dtype("u8", "uint", np.uint8, "i8")
bool_ = _dtype("bool", "bool", np.bool_, "i1")

ALL: tuple[DType, ...] = (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_)

_NARROW: tuple[tuple[str, Kind, type], ...] = (
    ("f8e4m3fn", "float", ml_dtypes.float8_e4m3fn),
    ("f8e4m3fnuz", "float", ml_dtypes.float8_e4m3fnuz),
    ("f8e5m2", "float", ml_dtypes.float8_e5m2),
    ("f8e5m2fnuz", "float", ml_dtypes.float8_e5m2fnuz),
    ("f4e2m1", "float", ml_dtypes.float4_e2m1fn),
    ("i4", "int", ml_dtypes.int4),
    ("u4", "uint", ml_dtypes.uint4),
    ("i2", "int", ml_dtypes.int2),
    ("u2", "uint", ml_dtypes.uint2),
)
NARROW: tuple[DType, ...] = tuple(
    DType(name, kind, 8, np.dtype(scalar), "i8") for name, kind, scalar in _NARROW
)
"""Types of a byte an element that only inputs, outputs and weights have: kernels see their codes as
u8, and decode and encode them (frontends/onnx/importer/narrow.py)."""

BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in (*ALL, *NARROW)}
_BY_NUMPY: dict[np.dtype, DType] = {dtype.numpy: dtype for dtype in ALL}


COMPLEX_HINT = (
    "there are no complex numbers: pass real and imaginary parts,"
    " x.real and x.imag or torch.view_as_real(x)"
)


def from_numpy(dtype: np.dtype | type, where: str = "") -> DType:
    """The DType of a NumPy dtype, in native byte order. where: what has it, for messages. Raises
    UnsupportedDTypeError."""
    found = _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    if found is None:
        listed = "supported: " + ", ".join(d.name for d in ALL)
        raise UnsupportedDTypeError(
            f"the element type {np.dtype(dtype)} is not supported",
            where=where,
            hint=COMPLEX_HINT if np.dtype(dtype).kind == "c" else listed,
        )
    return found
