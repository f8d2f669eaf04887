"""ATen's views of the same bytes as another dtype."""

from __future__ import annotations

from typing import Any

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import aten, dtype_of
from fuser.graph.builder import Builder
from fuser.graph.ir import Value

_WORDS = {8: dtypes.u8, 16: dtypes.u16, 32: dtypes.i32, 64: dtypes.i64}
"""By how many bits an element has: the integers that hold them."""


@aten("view.dtype")
def view_as(b: Builder, x: Value, dtype: Any) -> Value:
    """The last axis grows or shrinks by the ratio of the widths; bytes are little-endian."""
    wanted = dtype_of(dtype)
    if wanted is x.dtype:
        return x
    if wanted.bits < 8 or x.dtype.bits < 8:
        raise UnsupportedError(f"a view of {x.dtype} as {wanted}")
    words = _to_words(b, x)
    if wanted.bits < x.dtype.bits:
        words = _narrower(b, words, wanted)
    elif wanted.bits > x.dtype.bits:
        words = _wider(b, words, wanted)
    return _from_words(b, words, wanted)


def _to_words(b: Builder, x: Value) -> Value:
    """The bits of elements as integers of their width."""
    if not x.dtype.is_float:
        return b.cast(x, _WORDS[x.dtype.bits])
    if x.dtype.bits >= 32:
        return b.emit("float_bits", x, dtype=_WORDS[x.dtype.bits])
    bits = b.emit("float_bits", b.cast(x, dtypes.f32), dtype=dtypes.i32)
    if x.dtype is dtypes.bf16:
        return b.cast(b.map("shift_right", bits, 16), dtypes.u16)
    return b.cast(_half_bits(b, b.cast(x, dtypes.f32), bits), dtypes.u16)


def _half_bits(b: Builder, x: Value, bits: Value) -> Value:
    """The bits of a float16, from those of the float32 of its value: subnormals as multiples of
    2^-24, others with the exponent moved."""
    sign = b.map("bitwise_and", b.map("shift_right", bits, 16), 0x8000)
    size = b.map("bitwise_and", bits, 0x7FFFFFFF)
    usual = b.map("shift_right", b.map("sub", size, (127 - 15) << 23), 13)
    small = b.cast(b.map("mul", b.map("abs", x), 2.0**24), dtypes.i32)
    payload = b.map("bitwise_and", b.map("shift_right", size, 13), 0x3FF)
    endless = b.map("bitwise_or", payload, 0x7C00)
    found = b.map("select", b.map("lt", size, (127 - 14) << 23), small, usual)
    found = b.map("select", b.map("ge", size, 0xFF << 23), endless, found)
    return b.map("bitwise_or", found, sign)


def _from_words(b: Builder, words: Value, dtype: DType) -> Value:
    if dtype is dtypes.bool_:
        return b.map("ne", words, 0)
    if not dtype.is_float:
        return b.cast(words, dtype)
    if dtype.bits >= 32:
        return b.emit("bits_float", words, dtype=dtype)
    wide = b.cast(words, dtypes.i32)
    if dtype is dtypes.bf16:
        found = b.emit("bits_float", b.map("shift_left", wide, 16), dtype=dtypes.f32)
        return b.cast(found, dtype)
    return b.cast(_half_of_bits(b, wide), dtype)


def _half_of_bits(b: Builder, bits: Value) -> Value:
    """The float32 of the value that the bits of a float16 have."""
    sign = b.map("shift_left", b.map("bitwise_and", bits, 0x8000), 16)
    size = b.map("bitwise_and", bits, 0x7FFF)
    moved = b.map("shift_left", size, 13)
    usual = b.map("add", moved, (127 - 15) << 23)
    endless = b.map("bitwise_or", moved, 0xFF << 23)
    small = b.map("mul", b.cast(size, dtypes.f32), 2.0**-24)
    small = b.emit("float_bits", small, dtype=dtypes.i32)
    found = b.map("select", b.map("lt", size, 1 << 10), small, usual)
    found = b.map("select", b.map("ge", size, 0x1F << 10), endless, found)
    return b.emit("bits_float", b.map("bitwise_or", found, sign), dtype=dtypes.f32)


def _narrower(b: Builder, words: Value, dtype: DType) -> Value:
    """Each word as several of fewer bits, the lowest first."""
    parts = words.dtype.bits // dtype.bits
    shape = (*words.shape, parts)
    shifts = b.map("mul", b.iota(shape, len(shape) - 1, words.dtype), dtype.bits)
    wide = b.broadcast(words, shape, range(words.type.rank))
    found = b.cast(b.map("shift_right", wide, shifts), _WORDS[dtype.bits])
    *outer, last, _ = shape
    return b.reshape(found, (*outer, last * parts))


def _wider(b: Builder, words: Value, dtype: DType) -> Value:
    """Several words as one of more bits."""
    parts = dtype.bits // words.dtype.bits
    *outer, last = words.shape
    split = b.reshape(words, (*outer, last // parts, parts))
    target = _WORDS[dtype.bits]
    own = b.cast(split, {8: dtypes.u8, 16: dtypes.u16, 32: dtypes.u32}[words.dtype.bits])
    wide = b.cast(own, target)
    total: Value | None = None
    axis = split.type.rank - 1
    for part in range(parts):
        piece = b.squeeze(b.slice_axis(wide, axis, part, part + 1), [axis])
        moved = b.map("shift_left", piece, part * words.dtype.bits) if part else piece
        total = moved if total is None else b.map("bitwise_or", total, moved)
    assert total is not None
    return total
