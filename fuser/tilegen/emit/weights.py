"""Weights of a few bits: the codes of a `dequantize`, packed in memory and decoded in the kernel.

Codes of 4 bits lie 8 to a word of 32 bits, neighbours along the axis that a matmul sums over: a
vector of words, one a column, holds 8 steps of k, and reading one is a shift and a mask of it.

On a GPU codes of 8 bits lie in words, too, 4 in each, and neighbours are 16 bits apart: the first,
third, ... of a word in its low half, the others in its high one. So one instruction on a word does
what is done to both, and numbers of 16 bits come out in pairs, as tensor cores take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.dtypes import DType, bf16, f16, f32, i16, i32
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
    words = _packed(
        em, node, plain, (1, last, rows), (Index(0), coords[-1], row), 0, transposed=True
    )
    numbers = _numbers(em, node, words, coords[-1])
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
        words = _packed(em, self.node, self.order, self.shape, at, self.width)
        piece = _numbers(em, self.node, words, at[1])
        for zero in self.node.inputs[2:]:
            piece = em.map("sub", piece, self.factor(em, zero, at, coords))
        return piece

    def tile(
        self, em: Emission, at: tuple[Index, Index, Index], coords: Coords, dtype: DType
    ) -> TileValue:
        """The weights themselves over (k, n), as an operand of a dot. Behind the last k they are
        finite, so that nothing comes of them where the other operand is 0."""
        if em.target.is_cuda and self._are_whole(dtype):
            numbers = self._whole_numbers(em, at, coords, dtype)
            piece = em.map("mul", numbers, self.factor(em, self.node.inputs[1], at, coords, dtype))
            return em.full_value(piece, (1, 2))
        piece = em.map("mul", self.numbers(em, at, coords), self.scale(em, at, coords))
        return em.full_value(em.cast(piece, dtype, for_matmul=True), (1, 2))

    def _are_whole(self, dtype: DType) -> bool:
        """Whether a type of 16 bits has all that a code less its zero point may be, and the scales:
        their product is rounded once in that type, as it is behind one in float32."""
        numbers, (scale, *zeros) = self.node.attrs["numbers"], self.node.inputs[1:]
        place = _ONES.get(dtype.name)
        if place is None or numbers not in _SIGNED or bits_of(numbers) > place.room:
            return False
        near = all(_is_code(zero, bits_of(numbers)) for zero in zeros)
        return near and _half_of(scale, dtype) is dtype

    def _whole_numbers(
        self, em: Emission, at: tuple[Index, Index, Index], coords: Coords, dtype: DType
    ) -> Piece:
        """The codes less their zero points, in a type of 16 bits. A code takes the last places of
        the fraction of a number whose last place is the ones, which is taken away then. Every other
        code of 4 bits stays where it is, 4 places further up, where there is room, and the number
        is divided by 16 before: a shift less, and no instruction more.

            code            ->  bits 0x6400 | code       =  1024 + code,         less 1024
            code << 4       ->  bits 0x6400 | code << 4  =  1024 + 16 code, / 16, less 64
        """
        numbers, place = self.node.attrs["numbers"], _ONES[dtype.name]
        words = _packed(em, self.node, self.order, self.shape, at, self.width)
        bits, offset = bits_of(numbers), _SIGNED[numbers]
        begin = _place_in_word(em, at[1], bits)
        up = begin // bits % 2 if 2 * bits <= place.room else Index(0)  # whether 4 places further

        def either(plain: int, further: int, dtype: DType = i16) -> Piece:
            return em.index_piece(up * (further - plain) + plain, dtype)

        short = em.cast(em.map("shift_right", words, em.index_piece(begin - up * bits)), i16)
        mask, one = (1 << bits) - 1, place.bits | offset
        code = em.map("bitwise_and", short, either(mask, mask << bits))
        code = em.map("bitwise_xor", code, either(one, place.bits | offset << bits))
        piece = em.bits_as(code, dtype)
        if not up.is_constant:
            by = em.bits_as(either(_ONE, _ONE - (bits << _FRACTION)), dtype)
            piece = em.map("mul", piece, by)
        less = place.number + offset, (place.number >> bits) + offset
        piece = em.map("sub", piece, either(*less, dtype))
        for zero in self.node.inputs[2:]:
            piece = em.map("sub", piece, self.factor(em, zero, at, coords, dtype))
        return piece

    def scale(self, em: Emission, at: tuple[Index, Index, Index], coords: Coords) -> Piece:
        return self.factor(em, self.node.inputs[1], at, coords)

    def factor(
        self, em: Emission, factor: Value, at: tuple[Index, Index, Index], coords: Coords,
        dtype: DType = f32,
    ) -> Piece:  # fmt: skip
        """A scale or zero point, packed like the codes where it is a matrix of one a column. dtype:
        in which it is wanted; it has the number."""
        blocks = tuple(self.node.attrs["blocks"][axis] for axis in self.order)
        if uniform(factor) is not None or len(blocks) != 2 or blocks[1] != 1:
            return em.cast(_factor(em, self.node, factor, coords), dtype)
        columns = self.shape[2]
        width = self.width or columns
        depth, panels = factor.shape[self.order[0]], -(-columns // width)
        packing = Packing(
            transpose=self.order if self.order != (0, 1) else (),
            reshape=(depth, columns),
            pad=((0, 0), (0, panels * width - columns)),
            split=(depth, panels, width),
            permute=(1, 0, 2),
            dtype=_half_of(factor, dtype) if em.target.is_cuda else None,
        )
        buffer = em.memory.buffer(factor, packing, panels * depth * width)
        _, k, n = at
        place = (n // width, k // blocks[0], n % width)
        return em.cast(em.load_packed(buffer, (panels, depth, width), place), dtype)


def _is_code(zero: Value, bits: int) -> bool:
    """Whether zero points are whole numbers that so many bits have, with a sign or without, so that
    codes less them are exact in 16 bits."""
    array = zero.constant
    if array is None:
        return False
    inside = (array >= -(1 << bits - 1)) & (array < 1 << bits)
    return bool((inside & (np.rint(array) == array)).all())


def _half_of(factor: Value, wanted: DType = f32) -> DType | None:
    """The type of 16 bits that has all of a constant's numbers, the wanted one if it does, as
    scales of models in that type do: a GPU waits for their bytes, too."""
    array = factor.constant
    if array is None or array.dtype != np.float32:
        return None
    for dtype in sorted((f16, bf16), key=lambda dtype: dtype is not wanted):
        with np.errstate(over="ignore"):
            if (array.astype(dtype.numpy).astype(np.float32) == array).all():
                return dtype
    return None


@dataclass(frozen=True)
class _Ones:
    """Of a type of 16 bits: a number whose last place is the ones, its bits, and how many places of
    its fraction are free."""

    number: int
    bits: int
    room: int


_ONE, _FRACTION = 0x3C00, 10
"""1 as float16, and the bits of its fraction, above which the exponent begins."""
_ONES = {"f16": _Ones(1024, 0x6400, 10), "bf16": _Ones(128, 0x4300, 7)}
_SIGNED = {"i4": 8, "u4": 0, "i8": 128, "u8": 0}
"""Of whole numbers, what codes get more so that they are none below 0: their highest bit flips."""


def _packed(
    em: Emission, node: Node, order: tuple[int, ...], shape: tuple[int, int, int],
    at: tuple[Index, Index, Index], width: int, transposed: bool = False,
) -> Piece:  # fmt: skip
    """The codes, or the words that have them, at (batch, k, n) of them as [batch, k, n]: `order`
    makes that of their axes. transposed: [batch, n, k] instead, and stored so."""
    codes, bits = node.inputs[0], bits_of(node.attrs["numbers"])
    (batches, depth, columns), (batch, k, n) = shape, at
    group = _codes_of_word(em, bits)
    width = width or columns
    panels, steps = -(-columns // width), -(-depth // group)
    plain = order == tuple(range(len(order)))
    pad = ((0, 0), (0, steps * group - depth), (0, panels * width - columns))
    words = bits if group > 1 else 0
    halves = (group // 2, 2) if em.target.is_cuda else (group,)
    if transposed:
        inner = (4, 3) if em.target.is_cuda else (3,)
        packing = Packing(
            reshape=(batches, columns, depth), pad=(pad[0], pad[2], pad[1]),
            split=(batches, columns, steps, *halves), permute=(0, 1, 2, *inner), words=words,
        )  # fmt: skip
        dims: tuple[int, ...] = (batches, columns, steps)
        place: Coords = (batch, n, k // group)
    else:
        permute = (0, 4, 1, 5, 3, 2) if em.target.is_cuda else (0, 3, 1, 4, 2)
        packing = Packing(
            transpose=() if plain else order, reshape=shape, pad=pad,
            split=(batches, steps, *halves, panels, width), permute=permute, words=words,
        )  # fmt: skip
        dims, place = (batches, panels, steps, width), (batch, n // width, k // group, n % width)
    buffer = em.memory.buffer(codes, packing, product(list(dims)))
    return em.load_packed(buffer, dims, place)


def _codes_of_word(em: Emission, bits: int) -> int:
    """How many codes a word has; 1 where they are bytes by themselves."""
    return WORD_BITS // bits if bits == 4 or em.target.is_cuda else 1


def _place_in_word(em: Emission, k: Index, bits: int) -> Index:
    """Where the code of step k begins in its word, in bits."""
    count = WORD_BITS // bits
    return k % 2 * 16 + k % count // 2 * bits if em.target.is_cuda else k % count * bits


def _numbers(em: Emission, node: Node, codes: Piece, k: Index) -> Piece:
    """The numbers that codes, or those of step k in words, stand for, as float32."""
    numbers = node.attrs["numbers"]
    bits = bits_of(numbers)
    if _codes_of_word(em, bits) == 1:
        return _number(em, codes, numbers)
    # Its 12 constants take registers, of which the sums of more rows leave none.
    few = em.target.vector_bits == 512 and em.schedule.block("m") <= 2
    if numbers in ("i4", "u4") and few:
        return _in_fraction(em, codes, k, numbers)
    shift, spare = _place_in_word(em, k, bits), WORD_BITS - bits
    if numbers in ("i4", "i8"):
        top = em.map("shift_left", codes, em.index_piece((shift - spare) * -1))
        return em.cast(em.map("shift_right", top, Piece(i32, splat=spare)), f32)
    codes = em.map("shift_right", codes, em.index_piece(shift))
    codes = em.map("bitwise_and", codes, Piece(i32, splat=(1 << bits) - 1))
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
