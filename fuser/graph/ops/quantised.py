"""dequantize: numbers of few bits, and the scales that make weights of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuser.dtypes import BY_NAME, DType, i8, u8
from fuser.errors import ShapeError
from fuser.graph.ir import Attrs, Node, TensorType
from fuser.graph.ops.primitive import Array, Primitive

BITS = {"f4e2m1": 4, "i4": 4, "u4": 4}
"""Bits of a code, where they are not 8."""


def bits_of(numbers: str) -> int:
    """Bits that kernels store of each code of a dtype (by name)."""
    return BITS.get(numbers, 8)


def spare_bytes(node: Node) -> int:
    """What the codes of a `dequantize` do not take in memory, of the byte each that its operand
    has."""
    codes = node.inputs[0]
    return codes.type.bytes * (8 - bits_of(node.attrs["numbers"])) // 8


def saved_bytes(node: Node) -> int:
    """Bytes of weights that a `dequantize` makes, less those of the codes and factors."""
    stored = sum(value.type.bytes for value in node.inputs) - spare_bytes(node)
    return node.output.type.bytes - stored


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    codes, *factors = types
    blocks = tuple(attrs["blocks"])
    if len(factors) not in (1, 2) or len(blocks) != codes.rank:
        raise ShapeError(f"dequantize: {codes} in blocks of {blocks} with {len(factors)} factors")
    if codes.dtype is not (i8 if attrs["numbers"] == "i8" else u8):
        raise ShapeError(f"dequantize: {codes} does not hold codes of {attrs['numbers']}")
    shape = codes.static_shape
    wanted = tuple(-(-dim // block) for dim, block in zip(shape, blocks, strict=True))
    for factor in factors:
        if factor.shape != wanted or factor.dtype.compute is not factor.dtype:
            raise ShapeError(f"dequantize: {factor} should be float32 of {list(wanted)}")
    dtype: DType = attrs["dtype"]
    return (TensorType(dtype, shape),)


def decode(codes: Array, numbers: str) -> Array:
    """What codes stand for, as float32. numbers: their dtype by name."""
    if numbers in ("i8", "u8"):
        return codes.astype(np.float32)
    return codes.view(BY_NAME[numbers].numpy).astype(np.float32)


def _stretched(factor: Array, shape: tuple[int, ...], blocks: Sequence[int]) -> Array:
    for axis, (dim, block) in enumerate(zip(shape, blocks, strict=True)):
        if factor.shape[axis] > 1 and block > 1:
            repeated = np.repeat(factor, block, axis)
            factor = repeated[(slice(None),) * axis + (slice(0, dim),)]
    return factor


def _evaluate(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    codes, scale, *zero = arrays
    numbers = decode(codes, attrs["numbers"]).astype(scale.dtype, copy=False)
    for factor in zero:
        numbers = numbers - _stretched(factor, codes.shape, attrs["blocks"])
    with np.errstate(all="ignore"):
        result = numbers * _stretched(scale, codes.shape, attrs["blocks"])
        dtype: DType = attrs["dtype"]
        return (result.astype(dtype.numpy, copy=False),)


PRIMITIVES = (Primitive("dequantize", "other", None, _infer, _evaluate),)

__all__ = ["BITS", "PRIMITIVES", "bits_of", "decode", "saved_bytes", "spare_bytes"]
