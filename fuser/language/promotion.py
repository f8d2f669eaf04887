"""Which type an operation of two operands computes in: Triton's rules, as one function.

A Python number (or constexpr) yields to a tensor of its own kind or a higher one, where bool < int
< float; otherwise the wider float, float32 for float16 with bfloat16, the wider integer, and of two
equally wide integers the unsigned one. Division and remainder of 16-bit floats compute in float32.
Source: triton/language/semantic.py, `computation_type_impl` and `to_tensor` of Triton 3.6.
"""

from __future__ import annotations

import math

from fuser.language.types import (
    ElementType,
    bfloat16,
    float16,
    float32,
    float64,
    int1,
    int32,
    int64,
    uint32,
    uint64,
)

LARGEST_F32 = 3.4028234663852886e38


def of_number(number: float | int | bool) -> ElementType | None:
    """The type that a Python number has by itself; None for an integer of more than 64 bits."""
    if isinstance(number, bool):
        return int1
    if isinstance(number, int):
        if -(2**31) <= number < 2**31:
            return int32
        if 2**31 <= number < 2**32:
            return uint32
        if -(2**63) <= number < 2**63:
            return int64
        return uint64 if 2**63 <= number < 2**64 else None
    size = abs(number)
    small = size == 0 or not math.isfinite(number) or 2**-149 <= size <= LARGEST_F32
    return float32 if small else float64


def kind_of(dtype: ElementType) -> int:
    """bool 0, integers 1, floats 2."""
    return 0 if dtype.is_bool() else 1 if dtype.is_int() else 2


def of_operands(
    a: ElementType, a_number: bool, b: ElementType, b_number: bool, division: bool = False
) -> ElementType | None:
    """The type to compute in. a_number: whether a is a Python number. division: of / and %.
    None: integers of different signs are not divided."""
    if a_number != b_number:
        number, tensor = (a, b) if a_number else (b, a)
        if kind_of(number) <= kind_of(tensor):
            return float32 if division and tensor in (float16, bfloat16) else tensor
    for wide in (float64, float32):
        if wide in (a, b):
            return wide
    if float16 in (a, b) and bfloat16 in (a, b):
        return float32
    if float16 in (a, b):
        return float32 if division else float16
    if bfloat16 in (a, b):
        return float32 if division or a != b else bfloat16
    if a.is_fp8() and b.is_fp8():
        return a if a == b else float16
    if a.is_floating() or b.is_floating():
        return float32 if division else float16
    if division and a.kind != b.kind and not (a.is_bool() or b.is_bool()):
        return None
    return _wider(a, b)


def _wider(a: ElementType, b: ElementType) -> ElementType:
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
    return unsigned if unsigned.bits >= signed.bits else signed
