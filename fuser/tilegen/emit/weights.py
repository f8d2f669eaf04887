"""Weights of a few bits: the codes of a `dequantize`, packed in memory and decoded in the kernel.

Codes of 4 bits lie 8 to a word of 32 bits, neighbours along the axis that a matmul sums over: a
vector of words, one a column, holds 8 steps of k, and reading one is a shift and a mask of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.dtypes import DType, bf16, f16, f32, i32
from fuser.graph.ir import Node, Value
from fuser.graph.ops.quantised import bits_of
from fuser.partition.region import Region
from fuser.tilegen.emit.constants import uniform
from fuser.tilegen.emit.maps import Coords, product
from fuser.tilegen.emit.space import Emission, Lowering, Piece
from fuser.tilegen.index import Index
from fuser.tilegen.program import WORD_BITS, Packing
from fuser.tilegen.value import Value as TileValue


@dataclass(frozen=True)
class _MiniFloat:
    """fraction: bits of the fraction. magnitude: the bits of a code but its sign. bias: what the
    exponent is stored with."""

    magnitude: int
    fraction: int
    bias: int


_FLOATS = {
    "f4e2m1": _MiniFloat(7, 1, 1),
    "f8e4m3fn": _MiniFloat(127, 3, 7),
    "f8e4m3fnuz": _MiniFloat(127, 3, 8),
    "f8e5m2": _MiniFloat(127, 2, 15),
    "f8e5m2fnuz": _MiniFloat(127, 2, 16),
}


def dequantised(em: Emission, value: Value) -> Node | None:
    """The node that decodes a value of the region, if that is what the value is."""
    return decoded_by(em.region, value)


def decoded_by(region: Region, value: Value) -> Node | None:
    node = value.node
    if node is None or node.op != "dequantize" or node not in region.nodes:
        return None
    return node


def k_block(node: Node, contract: Sequence[int]) -> int:
    """Neighbours along a contracted axis that share scales, where there are several such blocks and
    nothing else changes with k; 0 elsewhere."""
    if len(contract) != 1:
        return 0
    (axis,) = contract
    block: int = node.attrs["blocks"][axis]
    return block if block < node.output.shape[axis] else 0


def _decode(em: Emission, node: Node, coords: Coords) -> Piece:
    """The weights at `coords`, float32: codes packed along the last axis."""
    codes = node.inputs[0]
    *outer, last = codes.shape
    plain = tuple(range(codes.type.rank))
    rows, at = product(outer), coords[:-1]
    row = Index(0)
    for dim, place in zip(outer, at, strict=True):
        row = row * dim + place
    numbers = _codes(
        em, node, plain, (1, last, rows), (Index(0), coords[-1], row), 0, transposed=True
    )
    for factor in node.inputs[2:]:
        numbers = em.map("sub", numbers, _factor(em, node, factor, coords))
    return em.map("mul", numbers, _factor(em, node, node.inputs[1], coords))


def _factor(em: Emission, node: Node, factor: Value, coords: Coords) -> Piece:
    """A scale or zero point at the coordinates of a weight."""
    blocks = node.attrs["blocks"]
    return em.tile(factor, tuple(at // block for at, block in zip(coords, blocks, strict=True)))


@dataclass(frozen=True)
class Matrix:
    """A `dequantize` as [batch, k, n]: order makes these of its axes, `shape` are their extents.

    width: columns of a panel, within which all rows of k lie together; 0: no panels.
    """

    node: Node
    order: tuple[int, ...]
    shape: tuple[int, int, int]
    width: int = 0

    def numbers(self, em: Emission, at: tuple[Index, Index, Index], coords: Coords) -> Piece:
        """The codes less their zero points, float32, at (batch, k, n), which is `coords` of the
        weights."""
        piece = _codes(em, self.node, self.order, self.shape, at, self.width)
        for zero in self.node.inputs[2:]:
            piece = em.map("sub", piece, self.factor(em, zero, at, coords))
        return piece

    def tile(
        self, em: Emission, at: tuple[Index, Index, Index], coords: Coords, dtype: DType
    ) -> TileValue:
        """The weights themselves over (k, n), as an operand of a dot. Behind the last k they are
        finite, so that nothing comes of them where the other operand is 0."""
        piece = em.map("mul", self.numbers(em, at, coords), self.scale(em, at, coords))
        return em.full_value(em.cast(piece, dtype, for_matmul=True), (1, 2))

    def scale(self, em: Emission, at: tuple[Index, Index, Index], coords: Coords) -> Piece:
        return self.factor(em, self.node.inputs[1], at, coords)

    def factor(
        self, em: Emission, factor: Value, at: tuple[Index, Index, Index], coords: Coords
    ) -> Piece:
        """A scale or zero point, packed like the codes where it is a matrix of one a column."""
        blocks = tuple(self.node.attrs["blocks"][axis] for axis in self.order)
        if uniform(factor) is not None or len(blocks) != 2 or blocks[1] != 1:
            return _factor(em, self.node, factor, coords)
        columns = self.shape[2]
        width = self.width or columns
        depth, panels = factor.shape[self.order[0]], -(-columns // width)
        packing = Packing(
            transpose=self.order if self.order != (0, 1) else (),
            reshape=(depth, columns),
            pad=((0, 0), (0, panels * width - columns)),
            split=(depth, panels, width),
            permute=(1, 0, 2),
            dtype=_half_of(factor) if em.target.is_cuda else None,
        )
        buffer = em.memory.buffer(factor, packing, panels * depth * width)
        _, k, n = at
        place = (n // width, k // blocks[0], n % width)
        return em.cast(em.load_packed(buffer, (panels, depth, width), place), f32)


def _half_of(factor: Value) -> DType | None:
    """The type of 16 bits that has all of a constant's numbers, as scales of models in that type
    do: a GPU waits for their bytes, too."""
    array = factor.constant
    if array is None or array.dtype != np.float32:
        return None
    for dtype in (f16, bf16):
        with np.errstate(over="ignore"):
            if (array.astype(dtype.numpy).astype(np.float32) == array).all():
                return dtype
    return None


def _codes(
    em: Emission, node: Node, order: tuple[int, ...], shape: tuple[int, int, int],
    at: tuple[Index, Index, Index], width: int, transposed: bool = False,
) -> Piece:  # fmt: skip
    """The numbers that codes stand for, at (batch, k, n) of them as [batch, k, n]: `order` makes
    that of their axes. transposed: [batch, n, k] instead, and stored so."""
    codes, numbers = node.inputs[0], node.attrs["numbers"]
    (batches, depth, columns), (batch, k, n) = shape, at
    group = WORD_BITS // 4 if bits_of(numbers) == 4 else 1
    width = width or columns
    panels, steps = -(-columns // width), -(-depth // group)
    plain = order == tuple(range(len(order)))
    pad = ((0, 0), (0, steps * group - depth), (0, panels * width - columns))
    if transposed:
        packing = Packing(
            reshape=(batches, columns, depth), pad=(pad[0], pad[2], pad[1]),
            split=(batches, columns, steps, group), words=group > 1,
        )  # fmt: skip
        dims: tuple[int, ...] = (batches, columns, steps)
        place: Coords = (batch, n, k // group)
    else:
        packing = Packing(
            transpose=() if plain else order, reshape=shape, pad=pad,
            split=(batches, steps, group, panels, width), permute=(0, 3, 1, 4, 2), words=group > 1,
        )  # fmt: skip
        dims, place = (batches, panels, steps, width), (batch, n // width, k // group, n % width)
    buffer = em.memory.buffer(codes, packing, product(list(dims)))
    piece = em.load_packed(buffer, dims, place)
    if group > 1:
        return _unpacked(em, piece, k, numbers)
    return _number(em, piece, numbers)


def _unpacked(em: Emission, words: Piece, k: Index, numbers: str) -> Piece:
    """What 4 bits of words stand for, those of step k of the 8 in a word, as float32."""
    # Its 12 constants take registers, of which the sums of more rows leave none.
    few = em.target.vector_bits == 512 and em.schedule.block("m") <= 2
    if numbers in ("i4", "u4") and few:
        return _in_fraction(em, words, k, numbers)
    shift = (k % 8) * 4
    if numbers == "i4":
        top = em.map("shift_left", words, em.index_piece((shift - 28) * -1))
        return em.cast(em.map("shift_right", top, Piece(i32, splat=28)), f32)
    codes = em.map("shift_right", words, em.index_piece(shift))
    codes = em.map("bitwise_and", codes, Piece(i32, splat=15))
    return _number(em, codes, numbers)


def _in_fraction(em: Emission, words: Piece, k: Index, numbers: str) -> Piece:
    """4 bits as float32 where they stand in the lower half of a word, p places from its end: part
    of a fraction, under an exponent that makes that place the ones. Masking and setting the
    exponent is one instruction with AVX-512, taking 2 ** (23 - p) away another; both are exact.
    Signed codes get 8 more, which flips their highest bit, and lose it again.

        code << p  ->  float of bits (150 - p) << 23 | code << p  =  2 ** (23 - p) + code
    """
    place = em.index_piece((k % 4) * 4)
    upper = em.index_piece((k % 8 - k % 4) * 4)  # 16 for the upper half of a word
    mask = em.map("shift_left", Piece(i32, splat=15), place)
    one = em.map("shift_left", em.index_piece((k % 4) * -4 + 150), Piece(i32, splat=23))
    if numbers == "i4":
        one = em.map("bitwise_or", one, em.map("shift_left", Piece(i32, splat=8), place))
    codes = em.map("bitwise_and", em.map("shift_right", words, upper), mask)
    number = em.map("bits_float", em.map("bitwise_xor", codes, one))
    return em.map("sub", number, em.map("bits_float", one))


def _number(em: Emission, codes: Piece, numbers: str) -> Piece:
    kind = _FLOATS.get(numbers)
    if kind is None:
        return em.cast(codes, f32)
    # The fields of a code, where float32 has its own; its other bias is a power of two.
    wide = em.cast(codes, i32)
    sign = em.map("bitwise_and", wide, Piece(i32, splat=kind.magnitude + 1))
    sign = em.map("shift_left", sign, Piece(i32, splat=32 - (kind.magnitude + 1).bit_length()))
    fields = em.map("bitwise_and", wide, Piece(i32, splat=kind.magnitude))
    fields = em.map("shift_left", fields, Piece(i32, splat=23 - kind.fraction))
    whole = em.map("bits_float", em.map("bitwise_or", sign, fields))
    return em.map("mul", whole, Piece(f32, splat=2.0 ** (127 - kind.bias)))


LOWERINGS: dict[str, Lowering] = {"dequantize": Lowering(_decode)}
