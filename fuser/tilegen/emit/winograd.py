"""Convolutions of 3x3 windows by Winograd's minimal filtering F(4x4, 3x3), on CPUs.

Every 4x4 square of outputs is A' ((G w G') * (B' d B)) A of the 6x6 square d of inputs under it: 36
products a channel pair where the sum over windows takes 144. Three programs, with workspaces
between them: squares of inputs to 36 matrices [squares, channels]; 36 products with weights that
were transformed when the plan was built; sums of these to squares of outputs, and the epilogue.

The matrices are those of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
(2015), for the points 0, 1, -1, 2, -2 and infinity. Errors in float32 are a few times those of the
sum over windows: about 1e-6 of the largest result. An infinite input makes the 4x4 squares
around it nan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuser.dtypes import f32
from fuser.partition.region import Partition, Region
from fuser.target import Target
from fuser.tilegen import conv_rules, dot_rules
from fuser.tilegen.emit.contraction import dot_op, store_placed
from fuser.tilegen.emit.conv import ConvShape, conv_shape
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import delinearise
from fuser.tilegen.emit.primitives import padded
from fuser.tilegen.emit.space import Emission, Piece, Places, spread
from fuser.tilegen.index import Index
from fuser.tilegen.program import Packing, TileProgram

OUTPUTS, INPUTS = 4, 6
"""Rows of a square of outputs, and of the square of inputs under it."""
PRODUCTS = INPUTS * INPUTS
FILTER = (
    (1 / 4, 0.0, 0.0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0.0, 0.0, 1.0),
)
"""G."""


def applies(region: Region, target: Target) -> bool:
    """Whether the region's convolution can be computed this way, and should be."""
    node = next(node for node in region.nodes if node.op == "conv")
    if target.is_cuda or any(n.op.startswith(("reduce_", "arg", "cum")) for n in region.nodes):
        return False
    conv, attrs = conv_shape(node), node.attrs
    plain = conv.kernel == (3, 3) and conv.groups == 1 and conv.x.dtype == f32
    plain = plain and not attrs.get("exact")
    plain = plain and "operands" not in attrs  # rounding after the transform would be another sum
    plain = plain and tuple(attrs["strides"]) == (1, 1) and tuple(attrs["dilation"]) == (1, 1)
    inside = conv.x.node in region.nodes or conv.w.node in region.nodes
    if not plain or conv.w.constant is None or inside:
        return False
    return conv_rules.winograd_pays(
        target, conv.channels, conv.outputs, conv.pixels, _squares(conv), PRODUCTS
    )


def _grid(conv: ConvShape) -> tuple[int, int, int]:
    """Images, and squares down and across each."""
    n, height, width = conv.pixels
    return n, -(-height // OUTPUTS), -(-width // OUTPUTS)


def _squares(conv: ConvShape) -> int:
    n, down, across = _grid(conv)
    return n * down * across


def emit(region: Region, partition: Partition, target: Target) -> tuple[TileProgram, ...]:
    """The three programs of a region around one convolution that `applies`."""
    conv = conv_shape(next(node for node in region.nodes if node.op == "conv"))
    return (
        _inputs(region, partition, target, conv),
        _products(region, partition, target, conv),
        _outputs(region, partition, target, conv),
    )


def _inputs(region: Region, partition: Partition, target: Target, conv: ConvShape) -> TileProgram:
    """B' d B of every square and channel, as 36 matrices [squares, channels]."""
    squares = _squares(conv)
    em = Emission(
        region, partition, target, conv_rules.squares_schedule(target, squares, conv.channels)
    )
    square = program(em, 0, squares, em.schedule.block("m"))
    channel = program(em, 1, conv.channels, em.schedule.block("n"))
    n, down, across = delinearise(square, _grid(conv))
    (top, _), (left, _) = conv.node.attrs["padding"]

    def at(i: int, j: int) -> Piece:
        y, x = down * OUTPUTS + (i - top), across * OUTPUTS + (j - left)
        return padded(em, conv.x, (n, channel, y, x), 0.0)

    columns = [_mix(em, _input_row, [at(i, j) for i in range(INPUTS)]) for j in range(INPUTS)]
    work = em.memory.workspace(f32, PRODUCTS * squares * conv.channels, 0)
    view = em.b.view(work, (PRODUCTS, squares, conv.channels))
    for i in range(INPUTS):
        row = _mix(em, _input_row, [columns[j][i] for j in range(INPUTS)])
        for j, piece in enumerate(row):
            em.store_view(view, (Index(i * INPUTS + j), square, channel), piece)
    return em.finish(squares * conv.channels * 12 * 16)


def _products(region: Region, partition: Partition, target: Target, conv: ConvShape) -> TileProgram:
    """The 36 products [squares, channels] x [channels, outputs]."""
    squares, channels, outputs = _squares(conv), conv.channels, conv.outputs
    chosen = dot_rules.dot_schedule(target, squares, outputs, channels, 32, batch=PRODUCTS)
    em = Emission(region, partition, target, chosen)
    which = program(em, 0, PRODUCTS, 1, "")
    square = program(em, 2, squares, chosen.block("m"))
    k = em.axis(channels)
    output = program(em, 1, outputs, chosen.block("n"))
    source = em.memory.workspace(f32, PRODUCTS * squares * channels, 0)
    left = em.b.view(source, (PRODUCTS, squares, channels))
    a = em.full_value(em.load_view(left, (which, square, k), axes=(0, 1)), (0, 1))
    width = chosen.block("n")
    panels = -(-outputs // width)
    packing = Packing(
        mix=both_ways(FILTER),
        reshape=(PRODUCTS, outputs, channels),
        pad=((0, 0), (0, panels * width - outputs), (0, 0)) if outputs % width else (),
        split=(PRODUCTS, panels, width, channels),
        permute=(0, 1, 3, 2),
    )
    weights = em.memory.buffer(conv.w, packing, PRODUCTS * panels * channels * width)
    shape = (PRODUCTS, panels, channels, width)
    packed = em.load_packed(weights, shape, (which, output // width, k, output % width), (1, 2))
    b = em.full_value(packed, (1, 2))
    zero = em.full_value(Piece(f32, (0, 2), splat=0.0), (0, 2))
    result = Piece(f32, (0, 2), dot_op(em, a, b, zero))
    work = em.memory.workspace(f32, PRODUCTS * squares * outputs, 1)
    view = em.b.view(work, (PRODUCTS, squares, outputs))
    em.store_view(view, (which, square, output), result)
    return em.finish(2 * PRODUCTS * squares * channels * outputs)


def _outputs(region: Region, partition: Partition, target: Target, conv: ConvShape) -> TileProgram:
    """A' m A of every square, and what follows the convolution at each of its 16 places."""
    squares, outputs = _squares(conv), conv.outputs
    em = Emission(region, partition, target, conv_rules.squares_schedule(target, squares, outputs))
    square = program(em, 0, squares, em.schedule.block("m"))
    channel = program(em, 1, outputs, em.schedule.block("n"))
    n, down, across = delinearise(square, _grid(conv))
    work = em.memory.workspace(f32, PRODUCTS * squares * outputs, 1)
    view = em.b.view(work, (PRODUCTS, squares, outputs))

    def at(i: int, j: int) -> Piece:
        return em.load_view(view, (Index(i * INPUTS + j), square, channel), 0.0)

    columns = [_mix(em, _output_row, [at(i, j) for i in range(INPUTS)]) for j in range(INPUTS)]
    _, height, width = conv.pixels
    for i in range(OUTPUTS):
        row = _mix(em, _output_row, [columns[j][i] for j in range(INPUTS)])
        for j, piece in enumerate(row):
            y, x = down * OUTPUTS + i, across * OUTPUTS + j
            guards = [(square, squares), (channel, outputs), (y, height), (x, width)]
            places: Places = {conv.node.output: ((n, channel, y, x), guards)}
            store_placed(em, spread(em, places, {conv.node.output: piece}))
    return em.finish(squares * outputs * 10 * 12)


def both_ways(matrix: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """The matrix that multiplies a flattened square as `matrix` does its rows and its columns."""
    return tuple(
        tuple(a * b for a in rows for b in columns) for rows in matrix for columns in matrix
    )


Row = Callable[[Callable[..., Piece], Sequence[Piece]], list[Piece]]


def _mix(em: Emission, row: Row, pieces: Sequence[Piece]) -> list[Piece]:
    def sum_of(*terms: tuple[float, Piece]) -> Piece:
        total: Piece | None = None
        for factor, piece in terms:
            scaled = piece
            if abs(factor) != 1:
                scaled = em.map("mul", piece, Piece(f32, splat=abs(factor)))
            if total is None:
                assert factor > 0
                total = scaled
            else:
                total = em.map("add" if factor > 0 else "sub", total, scaled)
        assert total is not None
        return total

    return row(sum_of, pieces)


def _input_row(sum_of: Callable[..., Piece], d: Sequence[Piece]) -> list[Piece]:
    """B' of six inputs."""
    even, odd = sum_of((1, d[4]), (-4, d[2])), sum_of((1, d[3]), (-4, d[1]))
    near, far = sum_of((1, d[4]), (-1, d[2])), sum_of((1, d[3]), (-1, d[1]))
    return [
        sum_of((1, d[4]), (4, d[0]), (-5, d[2])),
        sum_of((1, even), (1, odd)),
        sum_of((1, even), (-1, odd)),
        sum_of((1, near), (2, far)),
        sum_of((1, near), (-2, far)),
        sum_of((1, d[5]), (4, d[1]), (-5, d[3])),
    ]


def _output_row(sum_of: Callable[..., Piece], m: Sequence[Piece]) -> list[Piece]:
    """A' of six products."""
    one, minus_one = sum_of((1, m[1]), (1, m[2])), sum_of((1, m[1]), (-1, m[2]))
    two, minus_two = sum_of((1, m[3]), (1, m[4])), sum_of((1, m[3]), (-1, m[4]))
    return [
        sum_of((1, m[0]), (1, one), (1, two)),
        sum_of((1, minus_one), (2, minus_two)),
        sum_of((1, one), (4, two)),
        sum_of((1, minus_one), (8, minus_two), (1, m[5])),
    ]
