"""Dots of few rows whose second operand lies along k: vectors run along k, too.

    for 16 columns at once, 4 after 4
      for k in vectors:  sums[r, c] += a[r, k : k + 16] * b[k : k + 16, c]     c = 0 .. 3, all rows
      turn the square of the sums of a row, add its rows up: lane c has column c

A register tile along columns would want b turned: a square of shuffles for every 16 x 16 elements
and a copy. Here it is one square for 16 columns, however long k is. More columns at a time would be
more streams than the processor follows, in lines of one set of L1 where rows are 4 KiB apart.
"""

from __future__ import annotations

from fuser.backend import text
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
COLUMNS, VECTORS = 4, 4
"""Columns of b that are read side by side in such a loop, and vectors of each in an iteration."""


def cells(low: Lowering, op: ops.Dot, plan: DotPlan) -> dict[Point, Reg]:
    """The result in registers."""
    width = low.target.lanes(max(32, op.result.dtype.bits))
    rows = op.result.shape[0]
    found: dict[Point, Reg] = {}
    every = low.cells(op.result.shape)
    for coords, lanes in every[: len(every) // rows]:
        start = coords[1] - affine.lane(lanes)
        for row, reg in enumerate(_columns(low, op, plan, start, lanes, width)):
            found[Index(row), coords[1]] = reg
    return {coords: found[coords] for coords, _ in every}


def fill(low: Lowering, op: ops.Dot, plan: DotPlan, place: Memory) -> None:
    """The result in scratch."""
    width = low.target.lanes(max(32, op.result.dtype.bits))

    def group(start: Index, lanes: int) -> None:
        for row, sums in enumerate(_columns(low, op, plan, start, lanes, width)):
            coords = (Index(row), start + affine.lane(lanes))
            low.write_at(place, op.result.dtype, coords, sums, lanes)

    low.cover(op.result.shape[1], width, "columns", group)


def _columns(
    low: Lowering, op: ops.Dot, plan: DotPlan, start: Index, lanes: int, width: int
) -> list[Reg]:
    """A vector of the result, of `lanes` columns, for each row."""
    f, (rows, depth) = low.f, op.a.shape
    zero = literal(0.0, op.result.dtype, width)
    long = depth > UNROLLED * width
    wide = COLUMNS if long else lanes
    while long and wide > 1 and (rows + 1) * wide + 1 >= low.target.vector_registers:
        wide //= 2
    sums: list[list[Reg]] = [[] for _ in range(rows)]
    for first in range(0, lanes, wide):
        columns = [start + c for c in range(first, min(first + wide, lanes))]
        found = [zero] * (rows * len(columns))
        whole = depth // width * width
        if long:
            found, done = _loop(low, op, plan, columns, found, width)
        else:
            done = 0
        ks = [(Index(k), width) for k in range(done, whole, width)]
        if depth > whole:
            ks.append((Index(whole), depth - whole))
        found = _steps(low, plan, columns, ks, found, width)
        for row in range(rows):
            sums[row] += found[row * len(columns) : (row + 1) * len(columns)]
    out = []
    for row in range(rows):
        parts = register_transpose.transpose(f, [*sums[row], *[zero] * (width - lanes)])
        while len(parts) > 1:
            parts = [f.binary("fadd", x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        total = parts[0]
        if lanes == 1:
            total = f.extract(total, 0)
        elif lanes < width:
            total = f.shuffle(total, None, range(lanes))
        coords = (Index(row), start + affine.lane(lanes))
        out.append(f.binary("fadd", low.vector_at(op.acc, coords, lanes), total))
    return out


def _loop(
    low: Lowering, op: ops.Dot, plan: DotPlan, columns: list[Index], sums: list[Reg], width: int
) -> tuple[list[Reg], int]:
    """The sums after whole iterations of a loop over k, and where it ends."""
    step = VECTORS * width
    end = op.a.shape[1] // step * step

    def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
        with low.scope():
            first = low.counter(i, 0, end - step, step)
            ks = [(first + k, width) for k in range(0, step, width)]
            return _steps(low, plan, columns, ks, carried, width)

    return low.f.loop(0, end, step, sums, iteration, hint="k"), end


def _steps(
    low: Lowering, plan: DotPlan, columns: list[Index], ks: list[tuple[Index, int]],
    sums: list[Reg], width: int,
) -> list[Reg]:  # fmt: skip
    """The sums, row by row, after vectors of k, the last of which may be shorter than the others.
    Column by column: in the order of memory, which is read ahead best so."""
    f, out = low.f, list(sums)

    def wide(reg: Reg, lanes: int) -> Reg:
        """A vector with zeros after its last lane."""
        if lanes == width:
            return reg
        if lanes == 1:
            return f.insert(text.zero(out[0].type), reg, 0)
        order = [min(i, lanes) for i in range(width)]
        return f.shuffle(reg, text.zero(reg.type), order)

    places = [(k + affine.lane(lanes), lanes) for k, lanes in ks]
    a = [
        [wide(low.vector_at(plan.a.value, (Index(row), along), lanes), lanes)
         for along, lanes in places]
        for row in range(len(sums) // len(columns))
    ]  # fmt: skip
    for c, column in enumerate(columns):
        for at, (along, lanes) in enumerate(places):
            b = wide(low.vector_at(plan.b.value, (along, column), lanes), lanes)
            for row, vectors in enumerate(a):
                number = row * len(columns) + c
                out[number] = f.fma(vectors[at], b, out[number])
    return out
