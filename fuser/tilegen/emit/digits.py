"""A row by weights of 4 bits, in whole numbers: the row is split into digits of a byte first (the
slices of the Ozaki scheme: Ozaki, Ogita, Oishi, Rump 2012, of matmuls without error).

Of a block of k that shares scales, x[k] = s q[k] with q = 65536 d2 + 256 d1 + d0, digits from -128
to 127, and s so that the largest has 23 bits: the error of an element is that of rounding the
largest one to float32. Sums of codes times digits are exact; a block's are put together, and
scaled, once:

    y[n] += scale[n] s (65536 sum(d2 c[n]) + 256 sum(d1 c[n]) + sum(d0 c[n]))

Eight codes of a column share a word. Half of them, the lower ones of its bytes or the upper ones,
meet a word of four digits in one instruction (dp4a; VNNI's vpdpbusd). Byte j of digit word w of a
block of 4 W steps has step j W + w, so that neighbouring words are made of neighbouring elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.base.target import Target
from fuser.dtypes import f32, i32
from fuser.graph.ir import Node
from fuser.graph.sizes import is_symbolic
from fuser.partition.region import Partition, Region
from fuser.tilegen import ir
from fuser.tilegen.emit.dot_operands import late_scales
from fuser.tilegen.emit.dot_shape import DotShape
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import product
from fuser.tilegen.emit.placement import Places, spread, store_placed
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.emit.weights import Matrix
from fuser.tilegen.index import Index
from fuser.tilegen.program import Packing, TileProgram
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.schedule import Schedule

DIGITS = 3
MOST = 127 << 16
"""What the largest element of a block becomes. Three digits have room for 32639 more, of which
rounding takes 2."""
LEAST = 2.0**-100
"""What the largest element of a block is taken for at least, so that its inverse is a number: what
is lost of smaller ones is 2^-124, where float32 ends."""
CODES = 8
"""Of a word."""
FIRST_BITS = 0x0F0F0F0F
SIGNS = 0x08080808
ZERO = 8
"""What flipping the highest bits of signed codes adds to them."""
BLOCKS = 16
"""Blocks that a program splits."""
MOST_BLOCK = 256
"""Steps of k of a block, whose products are straight code."""


@dataclass(frozen=True)
class Digits:
    """Where the digits of a row of `blocks` blocks of `block` steps lie. words: [digit, word];
    sums: [digit, block], of the digits, times -8; factors: [2, block], the scale and the sum
    of q."""

    block: int
    blocks: int
    words: ir.View
    sums: ir.View
    factors: ir.View

    @staticmethod
    def of(em: Emission, dot: DotShape, block: int) -> Digits:
        blocks = ceildiv(dot.k, block)
        shapes = (DIGITS, blocks * block // 4), (DIGITS, blocks), (2, blocks)
        dtypes = i32, i32, f32
        views = [
            em.b.view(em.memory.workspace(dtype, product(list(shape)), number), shape)
            for number, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
        ]
        return Digits(block, blocks, *views)


_SIGNED = {"i4": True, "u4": False}
"""Numbers that codes of 4 bits may be, and whether they have a sign."""


def can_split(dot: DotShape, node: Node | None, block: int | None) -> bool:
    """Whether the weights that a node decodes are such that a row may be split for them. block:
    steps of k that share a scale."""
    if node is None or not block or block % CODES or block > MOST_BLOCK:
        return False
    if (dot.b, dot.m) != (1, 1):
        return False
    return node.attrs["numbers"] in _SIGNED and not is_symbolic(dot.k, dot.n)


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule, dots: list[DotShape]
) -> tuple[TileProgram, ...]:
    """The program that splits the row, and that of the matmuls."""
    em = Emission(region, partition, target, schedule)
    first, depth = dots[0], schedule.block("k")
    n = program(em, 0, max(dot.n for dot in dots), schedule.block("n"))
    weights = [late_scales(em, dot) for dot in dots]
    digits = Digits.of(em, first, depth)

    def body(block: Index, carried: list[Piece]) -> list[Piece]:
        sums = []
        for dot, matrix, total in zip(dots, weights, carried, strict=True):
            assert matrix is not None  # by `can_split`
            sums.append(em.map("add", total, _block_sum(em, dot, matrix, digits, block, n)))
        return sums

    inits = [Piece(f32, (0,), splat=0.0) for _ in dots]
    totals = em.loop(0, digits.blocks, 1, inits, body)
    none = Index(0)
    places: Places = {
        dot.node.output: (dot.result_coords(none, none, n), [(n, dot.n)]) for dot in dots
    }
    pieces = {
        dot.node.output: em.cast(total, dot.node.output.dtype.compute)
        for dot, total in zip(dots, totals, strict=True)
    }
    store_placed(em, spread(em, places, pieces))
    flops = sum(2 * dot.n * dot.k for dot in dots)
    return _split(region, partition, target, first, depth), em.finish(flops, rewrites=("digits",))


def _split(
    region: Region, partition: Partition, target: Target, dot: DotShape, block: int
) -> TileProgram:
    """The program that splits the row."""
    em = Emission(region, partition, target, Schedule(blocks=(("blocks", BLOCKS),)))
    digits = Digits.of(em, dot, block)
    number = program(em, 0, digits.blocks, BLOCKS)
    width = block // 4
    word = em.axis(width)
    xs = [_element(em, dot, number * block + byte * width + word) for byte in range(4)]
    sizes = [em.map("abs", x) for x in xs]
    largest = em.map("max", em.map("max", *sizes[:2]), em.map("max", *sizes[2:]))
    largest = em.map("max", em.reduce("max", largest, 1), Piece(f32, splat=LEAST))
    inverse = em.map("div", Piece(f32, splat=float(MOST)), largest)
    rest = [em.cast(em.map("round", em.map("mul", x, inverse)), i32) for x in xs]
    whole = em.reduce("sum", _added(em, rest), 1)
    for digit in range(DIGITS):
        parts = rest
        if digit + 1 < DIGITS:
            parts = [_lowest(em, q) for q in rest]
            rest = [
                em.map("shift_right", em.map("sub", q, d), Piece(i32, splat=8))
                for q, d in zip(rest, parts, strict=True)
            ]
        em.store_view(digits.words, (Index(digit), number * width + word), _packed(em, parts))
        sums = em.reduce("sum", _added(em, parts), 1)
        sums = em.map("mul", sums, Piece(i32, splat=-ZERO))
        em.store_view(digits.sums, (Index(digit), number), sums)
    scale = em.map("mul", largest, Piece(f32, splat=1 / MOST))
    em.store_view(digits.factors, (Index(0), number), scale)
    em.store_view(digits.factors, (Index(1), number), em.cast(whole, f32))
    return em.finish()


def _element(em: Emission, dot: DotShape, k: Index) -> Piece:
    """Elements of the row, 0 behind the last."""
    guards = [(k, dot.k)]
    em.load_guards = guards
    x = em.cast(em.tile(dot.left, dot.coords(0, Index(0), Index(0), k)), f32)
    em.load_guards = []
    return em.select(em.within(guards), x, Piece(f32, splat=0.0))


def _lowest(em: Emission, q: Piece) -> Piece:
    """The digit of the lowest byte."""
    byte = em.map("bitwise_and", em.map("add", q, Piece(i32, splat=128)), Piece(i32, splat=255))
    return em.map("sub", byte, Piece(i32, splat=128))


def _packed(em: Emission, parts: list[Piece]) -> Piece:
    """Four digits as the bytes of a word."""
    words = [
        em.map(
            "shift_left", em.map("bitwise_and", d, Piece(i32, splat=255)), Piece(i32, splat=8 * at)
        )
        for at, d in enumerate(parts)
    ]
    low, high = em.map("bitwise_or", *words[:2]), em.map("bitwise_or", *words[2:])
    return em.map("bitwise_or", low, high)


def _added(em: Emission, parts: list[Piece]) -> Piece:
    return em.map("add", em.map("add", *parts[:2]), em.map("add", *parts[2:]))


def _block_sum(
    em: Emission, dot: DotShape, weights: Matrix, digits: Digits, block: Index, n: Index
) -> Piece:
    """The products of a block, added up and scaled, over n."""
    at = block * digits.block
    signed = _SIGNED[weights.node.attrs["numbers"]]
    sums = [
        em.load_view(digits.sums, (Index(digit), block)) if signed else Piece(i32, splat=0)
        for digit in range(DIGITS)
    ]
    for row in range(digits.block // CODES):
        words = _words(em, weights, digits, block, row, n)
        for half in range(2):
            codes = em.map("shift_right", words, Piece(i32, splat=4)) if half else words
            codes = em.map("bitwise_and", codes, Piece(i32, splat=FIRST_BITS))
            if signed:
                codes = em.map("bitwise_xor", codes, Piece(i32, splat=SIGNS))
            place = block * (digits.block // 4) + (2 * row + half)
            sums = [
                em.map("dp4a", total, codes, em.load_view(digits.words, (Index(digit), place)))
                for digit, total in enumerate(sums)
            ]
    low, middle, high = sums
    upper = em.map("add", em.map("shift_left", high, Piece(i32, splat=8)), middle)
    found = em.map("mul", em.cast(upper, f32), Piece(f32, splat=256.0))
    found = em.map("add", found, em.cast(low, f32))
    coords = dot.coords(1, Index(0), n, at)
    for zero in weights.node.inputs[2:]:
        point = weights.factor(em, zero, (Index(0), at, n), coords)
        whole = em.load_view(digits.factors, (Index(1), block))
        found = em.map("sub", found, em.map("mul", point, whole))
    scale = weights.scale(em, (Index(0), at, n), coords)
    return em.map(
        "mul", found, em.map("mul", scale, em.load_view(digits.factors, (Index(0), block)))
    )


def _words(
    em: Emission, weights: Matrix, digits: Digits, block: Index, row: int, n: Index
) -> Piece:
    """Words of eight codes a column: nibble 2 j + h of word r has step j W + 2 r + h of a block."""
    _, depth, columns = weights.shape
    width = weights.width or columns
    panels, rows = ceildiv(columns, width), digits.block // CODES
    order = weights.order
    packing = Packing(
        transpose=() if order == tuple(range(len(order))) else order,
        reshape=(depth, columns),
        pad=((0, digits.blocks * digits.block - depth), (0, panels * width - columns)),
        split=(digits.blocks, 4, rows, 2, panels, width), permute=(4, 0, 2, 5, 1, 3), words=4,
    )  # fmt: skip
    dims = (panels, digits.blocks, rows, width)
    buffer = em.memory.buffer(weights.node.inputs[0], packing, product(list(dims)))
    return em.load_packed(buffer, dims, (n // width, block, Index(row), n % width))


__all__ = ["can_split", "emit"]
