"""8-bit floats, which are codes in memory and in the Tile IR, and rounding toward zero.

Codes become float32, exactly; float32 becomes codes by rounding to nearest even, and what is too
large becomes the largest finite number, as GPUs from sm_89 convert. The rules of fp8e4b15, which no
machine has, are those of Triton's own conversion: float16 first, cut; then halves away from zero,
and 1.75 for NaN and what is greater.
"""

from __future__ import annotations

import math

from fuser.dtypes import DType, f16, f32, f64, i16, i32, i64, u8
from fuser.language.emitter import Emitter
from fuser.language.formats import FORMATS, Format
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType
from fuser.tilegen.value import Value

# codes to numbers ---------------------------------------------------------------------------------


def decoded(e: Emitter, codes: Value, known: Format) -> Value:
    """The numbers of codes, as float32."""
    b, shape = e.builder, codes.shape

    def number(value: int) -> Value:
        return b.full(value, shape, i32)

    whole = b.cast(codes, i32)
    size = b.map("bitwise_and", whole, number(0x7F))
    raised = b.map("add", size, number(known.moved))
    normal = b.bitcast(b.map("shift_left", raised, number(23 - known.mantissa)), f32)
    tiny = b.map("mul", b.cast(size, f32), b.full(known.step, shape, f32))
    is_tiny = b.map("lt", size, number(1 << known.mantissa))
    found = b.map("select", is_tiny, tiny, normal)
    if known.infinity is not None:
        endless = b.map("eq", size, number(known.infinity))
        found = b.map("select", endless, b.full(math.inf, shape, f32), found)
        none = b.map("gt", size, number(known.infinity))
    elif known.unsigned_zero:
        none = b.map("eq", whole, number(known.nan))
    else:
        none = b.map("gt", size, number(known.largest))
    if known.largest != known.nan:  # else it has no NaN
        found = b.map("select", none, b.full(math.nan, shape, f32), found)
    negative = b.map("ge", whole, number(0x80))
    return b.map("select", negative, b.map("neg", found), found)


# numbers to codes ---------------------------------------------------------------------------------


def encoded(e: Emitter, x: Value, known: Format, cut: bool = False) -> Value:
    """The codes of float32 numbers. cut: toward zero, where infinity stays infinity."""
    b, shape = e.builder, x.shape

    def number(value: int) -> Value:
        return b.full(value, shape, i32)

    def real(value: float) -> Value:
        return b.full(value, shape, f32)

    bits = b.bitcast(x, i32)
    size = b.map("bitwise_and", bits, number(0x7FFFFFFF))
    magnitude = b.bitcast(size, f32)
    shift = number(23 - known.mantissa)
    if cut:
        rounded = size
        below = b.map("mul", magnitude, real(1 / known.step))
        small = b.cast(b.map("min", below, real(256.0)), i32)
    else:
        odd = b.map("bitwise_and", b.map("shift_right", size, shift), number(1))
        half = number((1 << (22 - known.mantissa)) - 1)
        rounded = b.map("add", b.map("add", size, half), odd)
        # A sum with 2**23 steps has one step as its last bit.
        base = 2.0**23 * known.step
        small = b.map("sub", b.bitcast(b.map("add", magnitude, real(base)), i32),
                      b.bitcast(real(base), i32))  # fmt: skip
    normal = b.map("sub", b.map("shift_right", rounded, shift), number(known.moved))
    is_small = b.map("lt", magnitude, real(known.least_normal))
    code = b.map("select", is_small, small, normal)
    code = b.map("min", code, number(known.largest))
    if cut and known.infinity is not None:
        endless = b.map("eq", size, number(0x7F800000))
        code = b.map("select", endless, number(known.infinity), code)
    sign = b.map("bitwise_and", b.map("shift_right", bits, number(24)), number(0x80))
    if known.unsigned_zero:
        sign = b.map("select", b.map("eq", code, number(0)), number(0), sign)
    code = b.map("bitwise_or", code, sign)
    none = b.map("gt", size, number(0x7F800000))
    nan = number(known.nan)
    if not known.unsigned_zero:
        nan = b.map("bitwise_or", nan, sign)
    return b.cast(b.map("select", none, nan, code), u8)


def _encoded_b15(e: Emitter, x: Value) -> Value:
    """float32 as codes of fp8e4b15: through float16, cut; then halves away from zero."""
    b, shape = e.builder, x.shape
    half = b.cast(b.bitcast(_cut(e, x, f16), i16), i32)
    size = b.map("bitwise_and", half, b.full(0x7FFF, shape, i32))
    size = b.map("min", size, b.full(0x3F00, shape, i32))
    code = b.map("add", b.map("add", size, size), b.full(0x80, shape, i32))
    code = b.map("shift_right", code, b.full(8, shape, i32))
    sign = b.map("bitwise_and", b.map("shift_right", half, b.full(8, shape, i32)),
                 b.full(0x80, shape, i32))  # fmt: skip
    return b.cast(b.map("bitwise_or", code, sign), u8)


# casts --------------------------------------------------------------------------------------------


def widened(e: Emitter, value: Tensor) -> Value:
    """A tensor's value in the type that it is computed in: 8 and 16 bits in float32."""
    made = e.value_of(value)
    if value.dtype.is_fp8():
        return decoded(e, made, FORMATS[value.dtype.name])
    return e.builder.cast(made, f32) if made.dtype.compute is not made.dtype else made


def narrowed(e: Emitter, value: Value, dtype: ElementType) -> Tensor:
    """A value that was computed in a wide type, as a tensor of this type."""
    if dtype.is_fp8():
        return e.tensor(_codes(e, e.builder.cast(value, f32), dtype, False), dtype)
    return e.tensor(e.builder.cast(value, dtype.ir), dtype)


def with_sign(e: Emitter, fn: str, value: Tensor) -> Tensor:
    """abs or neg of 8-bit floats: of their signs alone, infinities and NaN too."""
    b, codes, known = e.builder, e.value_of(value), FORMATS[value.dtype.name]

    def number(code: int) -> Value:
        return b.full(code, value.shape, i32)

    whole = b.cast(codes, i32)
    size = b.map("bitwise_and", whole, number(0x7F))
    made = size if fn == "abs" else b.map("bitwise_xor", whole, number(0x80))
    if known.unsigned_zero:
        made = b.map("select", b.map("eq", size, number(0)), whole, made)
    return e.tensor(b.cast(made, codes.dtype), value.dtype)


def convert(e: Emitter, value: Tensor, dtype: ElementType, cut: bool = False) -> Tensor:
    """A tensor of 8-bit floats as another type, or another as 8-bit floats."""
    wide = widened(e, value)
    if not dtype.is_fp8():
        return e.tensor(e.builder.cast(wide, dtype.ir), dtype)
    return e.tensor(_codes(e, e.builder.cast(wide, f32), dtype, cut), dtype)


def _codes(e: Emitter, x: Value, dtype: ElementType, cut: bool) -> Value:
    if dtype.name == "fp8e4b15":
        return _encoded_b15(e, x)
    return encoded(e, x, FORMATS[dtype.name], cut)


def toward_zero(e: Emitter, value: Tensor, dtype: ElementType) -> Tensor:
    """A float as a narrower one, cut instead of rounded."""
    if dtype.is_fp8():
        if value.dtype.ir is f64:  # two cuts are one
            return e.tensor(_codes(e, _cut(e, e.value_of(value), f32), dtype, True), dtype)
        return convert(e, value, dtype, True)
    return e.tensor(_cut(e, e.value_of(value), dtype.ir), dtype)


_WORDS = {16: i16, 32: i32, 64: i64}


def _cut(e: Emitter, x: Value, dtype: DType) -> Value:
    """x rounded to nearest, and one step back where that went away from zero."""
    b, shape = e.builder, x.shape
    wide = f64 if x.dtype is f64 else f32
    exact = b.cast(x, wide)
    near = b.cast(exact, dtype)
    word = _WORDS[dtype.bits]
    beyond = b.map("gt", b.map("abs", b.cast(near, wide)), b.map("abs", exact))
    back = b.map("sub", b.bitcast(near, word), b.full(1, shape, word))
    return b.bitcast(b.map("select", beyond, back, b.bitcast(near, word)), dtype)
