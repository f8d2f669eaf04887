"""Dots of few rows whose second operand lies along k: vectors run along k, too.

    for 16 columns at once
      for k in vectors:  sums[c] += a[row, k : k + 16] * b[k : k + 16, c]     c = 0 .. 15
      turn the square of sums, add its rows up: lane c has column c

A register tile along columns would want b turned: a square of shuffles for every 16 x 16 elements
and a copy. Here it is one square for 16 columns, however long k is.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.dots.records import DotPlan
from fuser.backend.cpu.loops import register_transpose
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.lowering.maps import literal
from fuser.backend.cpu.memory.storage import Memory, Point
from fuser.backend.text import Reg
from fuser.tilegen import ops
from fuser.tilegen.index import Index

UNROLLED = 8
"""Vectors of k up to which there is no loop over them."""


def cells(low: Lowering, op: ops.Dot, plan: DotPlan) -> dict[Point, Reg]:
    """The result in registers."""
    width = low.target.lanes(max(32, op.result.dtype.bits))
    return {
        coords: _columns(low, op, plan, coords, lanes, width)
        for coords, lanes in low.cells(op.result.shape)
    }


def fill(low: Lowering, op: ops.Dot, plan: DotPlan, place: Memory) -> None:
    """The result in scratch."""
    width = low.target.lanes(max(32, op.result.dtype.bits))
    rows, columns = op.result.shape

    def group(start: Index, lanes: int) -> None:
        for row in range(rows):
            with low.scope():
                coords = (Index(row), start + affine.lane(lanes))
                sums = _columns(low, op, plan, coords, lanes, width)
                low.write_at(place, op.result.dtype, coords, sums, lanes)

    low.cover(columns, width, "columns", group)


def _columns(
    low: Lowering, op: ops.Dot, plan: DotPlan, coords: Point, lanes: int, width: int
) -> Reg:
    """A vector of the result, of `lanes` columns of a row."""
    f, depth = low.f, op.a.shape[1]
    row, start = coords[0], coords[1] - affine.lane(lanes)
    zero = literal(0.0, op.result.dtype, width)

    def steps(ks: list[Index], sums: list[Reg]) -> list[Reg]:
        """Column by column: in the order of memory, which is read ahead best so."""
        places = [k + affine.lane(width) for k in ks]
        a = [low.vector_at(plan.a.value, (row, along), width) for along in places]
        out = []
        for c, total in enumerate(sums):
            for x, along in zip(a, places, strict=True):
                total = f.fma(x, low.vector_at(plan.b.value, (along, start + c), width), total)
            out.append(total)
        return out

    def iteration(i: Reg, sums: list[Reg]) -> list[Reg]:
        with low.scope():
            return steps([low.counter(i, 0, depth - width, width)], sums)

    sums = [zero] * lanes
    if depth <= UNROLLED * width:
        sums = steps([Index(k) for k in range(0, depth, width)], sums)
    else:
        sums = f.loop(0, depth, width, sums, iteration, hint="k")
    parts = register_transpose.transpose(f, [*sums, *[zero] * (width - lanes)])
    while len(parts) > 1:
        parts = [f.binary("fadd", x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    total = parts[0]
    if lanes == 1:
        total = f.extract(total, 0)
    elif lanes < width:
        total = f.shuffle(total, None, range(lanes))
    return f.binary("fadd", low.vector_at(op.acc, coords, lanes), total)
