"""Convolutions of 3x3 windows by Winograd's minimal filtering, on CPUs.

F(4x4, 3x3): every 4x4 square of outputs is A' ((G w G') * (B' d B)) A of the 6x6 square d of inputs
under it, 36 products a channel pair where the sum over windows takes 144. F(2x2, 3x3): 2x2 squares
of 4x4 inputs, 16 products instead of 36; it takes more of them than the larger squares, but less
than half as many weights, which come from memory where they are many. Three programs, with
workspaces between them: squares of inputs to matrices [squares, channels]; matmuls with weights
that were transformed when the plan was built; sums of these to squares of outputs, and the
epilogue.

The matrices are those of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
(2015), for the points 0, 1, -1 (2, -2) and infinity. Errors of the larger squares in float32 are a
few times those of the sum over windows: about 1e-6 of the largest result of the square. An infinite
input makes the squares around it nan. So it is a rewrite of fast numerics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuser.base.target import Target
from fuser.dtypes import f32
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.conv import ConvShape, conv_shape
from fuser.tilegen.emit.dot_operands import dot_op
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import delinearise
from fuser.tilegen.emit.placement import Places, spread, store_placed
from fuser.tilegen.emit.primitives import padded
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Index
from fuser.tilegen.program import Packing, TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.rules.cpu.winograd import squares_schedule
from fuser.tilegen.rules.problem import Problem

Mixed = Callable[[Callable[..., Piece], Sequence[Piece]], list[Piece]]
"""Sums of some pieces, written with a function that adds up (factor, piece) pairs."""


@dataclass(frozen=True)
class Filtering:
    """One of the ways. side: of a square of outputs. filter: G. inputs_row: B' of a row of inputs;
    outputs_row: A' of a row of products."""

    side: int
    filter: tuple[tuple[float, ...], ...]
    inputs_row: Mixed
    outputs_row: Mixed

    @property
    def inputs(self) -> int:
        """Rows of the square of inputs under a square of outputs."""
        return self.side + 2

    @property
    def matmuls(self) -> int:
        return self.inputs**2


def choose(region: Region, target: Target) -> Filtering | None:
    """How the region's convolution is best computed this way; None where it cannot, or not be. Only
    under fast numerics: a square's sums mix inputs that an output does not see."""
    node = next(node for node in region.nodes if node.op == "conv")
    side_of = rules_of(target).winograd_side
    if side_of is None or any(n.op.startswith(("reduce_", "arg", "cum")) for n in region.nodes):
        return None
    conv, attrs = conv_shape(node), node.attrs
    plain = conv.kernel == (3, 3) and conv.groups == 1 and conv.x.dtype == f32
    plain = plain and not attrs.get("exact")
    plain = plain and "operands" not in attrs  # rounding after the transform would be another sum
    plain = plain and tuple(attrs["strides"]) == (1, 1) and tuple(attrs["dilation"]) == (1, 1)
    inside = conv.x.node in region.nodes or conv.w.node in region.nodes
    if not plain or conv.w.constant is None or inside:
        return None
    return WAYS.get(side_of(target, conv.channels, conv.outputs, conv.pixels))


def _grid(conv: ConvShape, way: Filtering) -> tuple[int, int, int]:
    """Images, and squares down and across each."""
    n, height, width = conv.pixels
    return n, -(-height // way.side), -(-width // way.side)


def _squares(conv: ConvShape, way: Filtering) -> int:
    n, down, across = _grid(conv, way)
    return n * down * across


def emit(
    region: Region, partition: Partition, target: Target, way: Filtering
) -> tuple[TileProgram, ...]:
    """The three programs of a region around one convolution, the way that was chosen for it."""
    conv = conv_shape(next(node for node in region.nodes if node.op == "conv"))
    return (
        _inputs(region, partition, target, conv, way),
        _matmuls(region, partition, target, conv, way),
        _outputs(region, partition, target, conv, way),
    )


def _inputs(
    region: Region, partition: Partition, target: Target, conv: ConvShape, way: Filtering
) -> TileProgram:
    """B' d B of every square and channel, as matrices [squares, channels]."""
    squares = _squares(conv, way)
    em = Emission(region, partition, target, squares_schedule(target, squares, conv.channels))
    square = program(em, 0, squares, em.schedule.block("m"))
    channel = program(em, 1, conv.channels, em.schedule.block("n"))
    n, down, across = delinearise(square, _grid(conv, way))
    (top, _), (left, _) = conv.node.attrs["padding"]

    def at(i: int, j: int) -> Piece:
        y, x = down * way.side + (i - top), across * way.side + (j - left)
        return padded(em, conv.x, (n, channel, y, x), 0.0)

    rows = range(way.inputs)
    columns = [_mix(em, way.inputs_row, [at(i, j) for i in rows]) for j in rows]
    work = em.memory.workspace(f32, way.matmuls * squares * conv.channels, 0)
    view = em.b.view(work, (way.matmuls, squares, conv.channels))
    for i in rows:
        row = _mix(em, way.inputs_row, [columns[j][i] for j in rows])
        for j, piece in enumerate(row):
            em.store_view(view, (Index(i * way.inputs + j), square, channel), piece)
    return em.finish(squares * conv.channels * 5 * way.matmuls)


def _matmuls(
    region: Region, partition: Partition, target: Target, conv: ConvShape, way: Filtering
) -> TileProgram:
    """The matmuls [squares, channels] x [channels, outputs]."""
    squares, channels, outputs = _squares(conv, way), conv.channels, conv.outputs
    problem = Problem(squares, outputs, channels, 32, batch=way.matmuls)
    chosen = rules_of(target).matmul(target, problem)
    em = Emission(region, partition, target, chosen)
    which = program(em, 0, way.matmuls, 1, "")
    square = program(em, 2, squares, chosen.block("m"))
    k = em.axis(channels)
    output = program(em, 1, outputs, chosen.block("n"))
    source = em.memory.workspace(f32, way.matmuls * squares * channels, 0)
    left = em.b.view(source, (way.matmuls, squares, channels))
    a = em.full_value(em.load_view(left, (which, square, k), axes=(0, 1)), (0, 1))
    width = chosen.block("n")
    panels = -(-outputs // width)
    packing = Packing(
        mix=both_ways(way.filter),
        reshape=(way.matmuls, outputs, channels),
        pad=((0, 0), (0, panels * width - outputs), (0, 0)) if outputs % width else (),
        split=(way.matmuls, panels, width, channels),
        permute=(0, 1, 3, 2),
    )
    weights = em.memory.buffer(conv.w, packing, way.matmuls * panels * channels * width)
    shape = (way.matmuls, panels, channels, width)
    packed = em.load_packed(weights, shape, (which, output // width, k, output % width), (1, 2))
    b = em.full_value(packed, (1, 2))
    zero = em.full_value(Piece(f32, (0, 2), splat=0.0), (0, 2))
    result = Piece(f32, (0, 2), dot_op(em, a, b, zero))
    work = em.memory.workspace(f32, way.matmuls * squares * outputs, 1)
    view = em.b.view(work, (way.matmuls, squares, outputs))
    em.store_view(view, (which, square, output), result)
    return em.finish(2 * way.matmuls * squares * channels * outputs)


def _outputs(
    region: Region, partition: Partition, target: Target, conv: ConvShape, way: Filtering
) -> TileProgram:
    """A' m A of every square, and what follows the convolution at each of its places."""
    squares, outputs = _squares(conv, way), conv.outputs
    em = Emission(region, partition, target, squares_schedule(target, squares, outputs))
    square = program(em, 0, squares, em.schedule.block("m"))
    channel = program(em, 1, outputs, em.schedule.block("n"))
    n, down, across = delinearise(square, _grid(conv, way))
    work = em.memory.workspace(f32, way.matmuls * squares * outputs, 1)
    view = em.b.view(work, (way.matmuls, squares, outputs))

    def at(i: int, j: int) -> Piece:
        return em.load_view(view, (Index(i * way.inputs + j), square, channel), 0.0)

    rows = range(way.inputs)
    columns = [_mix(em, way.outputs_row, [at(i, j) for i in rows]) for j in rows]
    _, height, width = conv.pixels
    for i in range(way.side):
        row = _mix(em, way.outputs_row, [columns[j][i] for j in rows])
        for j, piece in enumerate(row):
            y, x = down * way.side + i, across * way.side + j
            guards = [(square, squares), (channel, outputs), (y, height), (x, width)]
            places: Places = {conv.node.output: ((n, channel, y, x), guards)}
            store_placed(em, spread(em, places, {conv.node.output: piece}))
    return em.finish(squares * outputs * 4 * way.matmuls, rewrites=("winograd",))


def both_ways(matrix: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """The matrix that multiplies a flattened square as `matrix` does its rows and its columns."""
    return tuple(
        tuple(a * b for a in rows for b in columns) for rows in matrix for columns in matrix
    )


def _mix(em: Emission, row: Mixed, pieces: Sequence[Piece]) -> list[Piece]:
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


def _two_inputs(sum_of: Callable[..., Piece], d: Sequence[Piece]) -> list[Piece]:
    return [
        sum_of((1, d[0]), (-1, d[2])),
        sum_of((1, d[1]), (1, d[2])),
        sum_of((1, d[2]), (-1, d[1])),
        sum_of((1, d[1]), (-1, d[3])),
    ]


def _two_outputs(sum_of: Callable[..., Piece], m: Sequence[Piece]) -> list[Piece]:
    return [
        sum_of((1, m[0]), (1, m[1]), (1, m[2])),
        sum_of((1, m[1]), (-1, m[2]), (-1, m[3])),
    ]


def _four_inputs(sum_of: Callable[..., Piece], d: Sequence[Piece]) -> list[Piece]:
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


def _four_outputs(sum_of: Callable[..., Piece], m: Sequence[Piece]) -> list[Piece]:
    one, minus_one = sum_of((1, m[1]), (1, m[2])), sum_of((1, m[1]), (-1, m[2]))
    two, minus_two = sum_of((1, m[3]), (1, m[4])), sum_of((1, m[3]), (-1, m[4]))
    return [
        sum_of((1, m[0]), (1, one), (1, two)),
        sum_of((1, minus_one), (2, minus_two)),
        sum_of((1, one), (4, two)),
        sum_of((1, minus_one), (8, minus_two), (1, m[5])),
    ]


TWO = Filtering(
    2,
    ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)),
    _two_inputs,
    _two_outputs,
)
FOUR = Filtering(
    4,
    (
        (1 / 4, 0.0, 0.0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0.0, 0.0, 1.0),
    ),
    _four_inputs,
    _four_outputs,
)
WAYS = {way.side: way for way in (TWO, FOUR)}
"""By the side of a square of outputs."""
