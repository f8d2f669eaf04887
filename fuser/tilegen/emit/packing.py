"""Right operands of a CPU's matmuls that are not constants: a program of their own copies them to
panels, as constants are copied when a plan is built.

    panels[batch, n // width, k, n % width] = right[batch, k, n]     0 after the last column

A register tile reads a panel in order. The rows of the array itself are far apart, so that each
step of k is at another page, in lines that share a few sets of a cache; and where k is innermost
there are no vectors of columns.
"""

from __future__ import annotations

from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.graph.ir import Value
from fuser.graph.sizes import is_symbolic
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.constants import uniform
from fuser.tilegen.emit.dot_operands import dot_dtype, operand, runtime_panels, widens
from fuser.tilegen.emit.dot_shape import DotShape
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, backward
from fuser.tilegen.emit.memory import linear_in
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Index, axis
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules.common import blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule

MIN_ROWS, ROWS, MAX_ROWS, COLUMNS = 16, 32, 64, 512
"""Steps of k and columns that a program copies: enough to be worth one. ROWS where none divides k.
"""


def pitch_of(
    region: Region, dots: list[DotShape], target: Target, partition: Partition | None = None
) -> int | None:
    """`Problem.pitch` of matmuls. Without a partition arrays are taken to be row-major."""
    found = [_pitch(region, dot, target, partition) for dot in dots]
    known = [pitch for pitch in found if pitch is not None]
    alike = all(known) or not any(known)
    return max(known) if known and alike and len(known) == len(found) else None


def _pitch(
    region: Region, dot: DotShape, target: Target, partition: Partition | None
) -> int | None:
    if is_symbolic(dot.b, dot.n, dot.k):
        return None
    coords = dot.coords(1, Index(0), axis(1, dot.n), axis(0, dot.k))
    source, at = _source(region, dot.right, coords, dot_dtype(target, dot.node))
    if source.node in region.nodes or source.constant is not None or uniform(source) is not None:
        return None
    strides = _row_major(source) if partition is None else partition.strides(source)
    if is_symbolic(*strides):
        return None
    place = sum((c * stride for c, stride in zip(at, strides, strict=True)), Index(0))
    down, across = linear_in(place, 0), linear_in(place, 1)
    if not down or not across:
        return None
    return down * source.dtype.bytes if across == 1 else 0


def _source(region: Region, value: Value, coords: Coords, dtype: DType) -> tuple[Value, Coords]:
    """The array, and the coordinates, that movement and widening of the region make a value of."""
    while (node := value.node) is not None and node in region.nodes and len(node.inputs) == 1:
        moved = coords if widens(node, dtype) else backward(node, coords)
        if moved is None:
            break
        value, coords = node.inputs[0], moved
    return value, coords


def _row_major(value: Value) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(value.shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule, dots: list[DotShape]
) -> tuple[TileProgram, ...]:
    """The programs that pack the right operands of a contraction, one each."""
    return tuple(_packed(region, partition, target, schedule, dot) for dot in dots)


def _packed(
    region: Region, partition: Partition, target: Target, schedule: Schedule, dot: DotShape
) -> TileProgram:
    width = schedule.block("n")
    panels = ceildiv(dot.n, width)
    whole = (rows for rows in range(MAX_ROWS, MIN_ROWS - 1, -1) if dot.k % rows == 0)
    high, wide = next(whole, min(dot.k, ROWS)), max(1, COLUMNS // width)
    wide = ceildiv(panels, ceildiv(panels, wide))
    own = blocks_of(k=high, n=wide * width, m=schedule.block("m"), reason="packs the right operand")
    em = Emission(region, partition, target, own)
    batch = program(em, 0, dot.b, 1, "")
    at_k = program(em, 1, dot.k, high)
    at_panel = program(em, 2, panels, wide)
    column = em.axis(width)
    n = at_panel * width + column
    dtype = dot_dtype(target, dot.node)
    em.load_guards = [(at_k, dot.k), (n, dot.n)]
    tile = operand(em, dot.right, dot.coords(1, batch, n, at_k), (0, 1, 2), dtype)
    em.load_guards = []
    view = em.b.view(*runtime_panels(em, dot, dtype, width))
    em.store_view(view, (batch, at_panel, at_k, column), Piece(dtype, (0, 1, 2), tile))
    return em.finish()
