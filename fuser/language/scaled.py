"""dot_scaled: products of tiles with a factor for every 32 (or 16) elements along K.

Operands and factors become bfloat16, or float16 where an operand is that: each code times its
factor is exact there but at the ends of the range. Sums are those of dot.
Source: OCP Microscaling Formats (MX) 1.0: e8m0 is 2**(code - 127), NaN for 255; e2m1 has the sizes
0, 0.5, 1, 1.5, 2, 3, 4, 6, two codes a byte, the lower four bits first.
"""

from __future__ import annotations

from typing import Any

from fuser.language import pieces, products, shapes
from fuser.language.arithmetic import as_tensor, cast
from fuser.language.elementwise import bits_as
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin
from fuser.language.tensors import Tensor
from fuser.language.terms import Formula
from fuser.language.types import (
    ElementType,
    bfloat16,
    float8e4nv,
    float8e5,
    float16,
    float32,
    int32,
    uint8,
)

FORMATS: dict[str, ElementType] = {
    "e4m3": float8e4nv, "e5m2": float8e5, "bf16": bfloat16, "fp16": float16, "e2m1": uint8,
}  # fmt: skip


@builtin("dot_scaled")
def dot_scaled(
    e: Emitter, lhs: Any, lhs_scale: Any, lhs_format: str, rhs: Any, rhs_scale: Any,
    rhs_format: str, acc: Any = None, fast_math: bool = False, lhs_k_pack: bool = True,
    rhs_k_pack: bool = True, out_dtype: ElementType = float32,
) -> Tensor:  # fmt: skip
    """acc + (lhs * its factors) @ (rhs * its factors), of tiles [M, K] and [K, N]; factors [M, K /
    32] and [N, K / 32], codes of e8m0, or None. e2m1: two numbers a byte, along K, or along M and N
    where k_pack is false."""
    a, b = as_tensor(e, lhs), as_tensor(e, rhs)
    if len(a.shape) != len(b.shape) or len(a.shape) not in (2, 3):
        e.fail(f"dot_scaled of {a.type} and {b.type}", "both must have 2 axes, or both 3")
    kind = float16 if "fp16" in (lhs_format, rhs_format) else bfloat16
    left = _numbers(e, a, lhs_format, lhs_k_pack)
    right = _swapped(e, _numbers(e, _swapped(e, b), rhs_format, rhs_k_pack))
    x = _scaled(e, left, lhs_scale, kind)
    y = _swapped(e, _scaled(e, _swapped(e, right), rhs_scale, kind))
    return products.dot(e, x, y, acc, out_dtype=out_dtype)


def _swapped(e: Emitter, x: Tensor) -> Tensor:
    rank = len(x.shape)
    return shapes.permute(e, x, [*range(rank - 2), rank - 1, rank - 2])


def _numbers(e: Emitter, x: Tensor, format: str, along_k: bool) -> Tensor:
    """The operand [rows, K] as floats."""
    if format not in FORMATS:
        e.fail(f"the format {format!r}", f"it is one of {', '.join(FORMATS)}")
    wanted = FORMATS[format]
    if format != "e2m1":
        if not along_k:
            e.fail(f"{format} packed along another axis than K", "only e2m1 is packed")
        return bits_as(e, x, wanted)
    if x.dtype.bits != 8:
        e.fail(f"e2m1 in a {x.type}", "it is packed in uint8, two codes a byte")
    t = Formula(e)
    byte = t(bits_as(e, x, uint8)).to(int32)
    low, high = (_of_e2m1(e, code.value) for code in (byte & 15, byte >> 4))
    joined = pieces.join(e, low, high)
    *batch, rows, columns = x.shape
    if along_k:
        return shapes.reshape(e, joined, (*batch, rows, 2 * columns))
    rank = len(joined.shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    return shapes.reshape(e, shapes.permute(e, joined, order), (*batch, 2 * rows, columns))


def _of_e2m1(e: Emitter, codes: Tensor) -> Tensor:
    """The float32 of a code of 4 bits: its exponent and mantissa in the place of float32's."""
    t = Formula(e)
    code = t(codes)
    size = code & 7
    normal = ((size << 22) + (126 << 23)).bits(float32)
    found = t.where(size < 2, size.to(float32) * 0.5, normal)
    return t.where((code & 8) != 0, -found, found).value


def _scaled(e: Emitter, x: Tensor, scale: Any, kind: ElementType) -> Tensor:
    """The operand [rows, K] times its factors, in the type of the product."""
    if scale is None:
        return cast(e, x, kind)
    factors = as_tensor(e, scale)
    group = 16 if factors.dtype == float8e4nv else 32
    *rows, k = x.shape
    if factors.shape != (*rows, k // group) or k % group:
        e.fail(
            f"factors {factors.type} of {x.type}", f"they are {shapes.show((*rows, k // group))}"
        )
    t = Formula(e)
    if factors.dtype == float8e4nv:
        factor = t(factors, float32)
    elif factors.dtype.bits == 8 and factors.dtype.is_int():
        code = t(bits_as(e, factors, uint8)).to(int32)
        # 2**-127 is a denormal float32, and 255 is NaN.
        plain = t.where(code == 0, 1 << 22, code << 23).bits(float32)
        factor = t.where(code == 255, float("nan"), plain)
    else:
        e.fail(f"factors {factors.type}", "they are uint8 codes of e8m0, or float8e4nv")
    wide = shapes.broadcast_to(
        e, shapes.expand_dims(e, factor.value, [len(x.shape)]), (*factors.shape, group)
    )
    repeated = shapes.reshape(e, wide, x.shape)
    return (t(x, float32) * t(repeated)).to(kind).value
