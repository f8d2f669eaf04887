"""Floats of 4 and 8 bits and integers of 2 and 4: kernels hold their codes, one a byte, as u8.

To read a code is to look it up in a table of all of them. To write one is a binary search among the
thresholds between neighbours, rounding half to even as the tables of ml_dtypes have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.builder import Builder
from fuser.graph.ir import TensorType, Value
from fuser.graph.ops.primitive import Array

NARROW_OPS = frozenset(("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Shape", "Size"))
"""Operators that know what codes stand for."""

NARROW_MOVES = frozenset(
    (
        "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split",
        "Expand", "Tile", "Gather", "GatherElements", "GatherND",
    )
)  # fmt: skip
"""Operators that move elements of their first operand, whatever those are."""

_BITS = {"f4e2m1": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}


def narrow_of(array: Array) -> DType | None:
    """The narrow dtype of an array, else None."""
    return next((dtype for dtype in dtypes.NARROW if dtype.numpy == array.dtype), None)


def to_codes(array: Array) -> Array:
    """The bytes of an array of a narrow dtype."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


def _table(dtype: DType) -> Array:
    """The number each code stands for, float32."""
    codes = np.arange(1 << _BITS.get(dtype.name, 8), dtype=np.uint8)
    return codes.view(dtype.numpy).astype(np.float32)


def decode(b: Builder, codes: Value, dtype: DType) -> Value:
    """The numbers of codes: float32, or int32 for integers."""
    table = _table(dtype)
    if len(table) < 256:  # the upper bits of a byte are not part of the code
        codes = b.map("bitwise_and", codes, len(table) - 1)
    if not dtype.is_float:
        table = table.astype(np.int32)
    return b.emit("gather", b.constant(table), b.cast(codes, dtypes.i32), axis=0)


def encode(b: Builder, x: Value, dtype: DType, saturate: bool) -> Value:
    """The codes of numbers. Floats round half to even; what is out of range becomes the largest
    number, or without `saturate` infinity or nan; integers then take the low bits."""
    if dtype.is_float:
        return _encode_float(b, b.cast(x, dtypes.f32), dtype, saturate)
    table = _table(dtype)
    if saturate:
        x = b.map("min", b.map("max", x, table.min().item()), table.max().item())
    wide = b.cast(x, dtypes.i32)
    return b.cast(b.map("bitwise_and", wide, len(table) - 1), dtypes.u8)


def _encode_float(b: Builder, x: Value, dtype: DType, saturate: bool) -> Value:
    table = _table(dtype)
    sign = len(table) // 2
    numbers = table[:sign].astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]  # ascending: codes follow the order of magnitudes
    count = len(numbers)
    middle = (numbers[1:] + numbers[:-1]) / 2
    # Code k is reached above threshold k - 1, and on it if k is even.
    thresholds = middle.astype(np.float32)
    lower = np.nextafter(thresholds, np.float32(0))
    thresholds = np.where(np.arange(1, count) % 2 == 0, lower, thresholds)
    depth = int(count - 1).bit_length()
    padded = np.full(1 << depth, np.inf, np.float32)
    padded[: count - 1] = thresholds
    steps = b.constant(padded)
    magnitude = b.emit("abs", x)
    code = b.full(0, _like(magnitude, dtypes.i32))
    for bit in reversed(range(depth)):
        probe = b.map("add", code, (1 << bit) - 1)
        above = b.map("gt", magnitude, b.emit("gather", steps, probe, axis=0))
        code = b.map("add", code, b.map("select", above, b.full(1 << bit, code.type), 0))
    special = _specials(dtype, table)
    if not saturate and special.overflow is not None:
        step = numbers[-1] - numbers[-2]
        beyond = b.map("gt", magnitude, float(numbers[-1] + step / 2))
        edge = b.map("eq", magnitude, float(numbers[-1] + step / 2))
        if count % 2 == 0:  # the largest number is odd: a tie goes up
            beyond = b.map("logical_or", beyond, edge)
        code = b.map("select", beyond, b.full(special.overflow, code.type), code)
    negative = b.map("lt", x, 0)
    if special.negative_zero:
        # -0 compares equal to 0: its reciprocal tells.
        zero = b.map("logical_and", b.map("eq", x, 0), b.map("lt", b.emit("reciprocal", x), 0))
        negative = b.map("logical_or", negative, zero)
        signed = b.map("bitwise_or", code, sign)
    else:
        kept = b.map("eq", code, 0)
        signed = b.map("select", kept, code, b.map("bitwise_or", code, sign))
    code = b.map("select", negative, signed, code)
    code = b.map("select", b.emit("is_nan", x), b.full(special.nan, code.type), code)
    return b.cast(code, dtypes.u8)


def _like(value: Value, dtype: DType) -> TensorType:
    return TensorType(dtype, value.type.shape)


@dataclass(frozen=True)
class _Special:
    """The codes of what is no number. overflow: None if it always saturates."""

    nan: int
    overflow: int | None
    negative_zero: bool


def _specials(dtype: DType, table: Array) -> _Special:
    nan, infinity = (
        int(np.asarray(x).astype(dtype.numpy).view(np.uint8)) for x in (np.nan, np.inf)
    )
    overflow = None if np.isfinite(table).all() else infinity
    return _Special(nan, overflow, bool(table[len(table) // 2] == 0))
