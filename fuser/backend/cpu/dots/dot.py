"""Dots on a CPU: a register tile of accumulators and one step of k per iteration of the innermost
loop.

An iteration loads the vectors of one operand and broadcasts elements of the other from memory, one
FMA for each accumulator. LLVM must not unroll the loop: it would hoist broadcasts and spill.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.analysis.in_place import updated_tile
from fuser.backend.cpu.dots import dot_along_k
from fuser.backend.cpu.dots.dot_products import lower_unit_dot
from fuser.backend.cpu.dots.records import DotPlan
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Cells, Memory, Place, Point
from fuser.backend.cpu.prefetch.next_rows import row_prefetches
from fuser.backend.cpu.prefetch.prefetch import Prefetch
from fuser.backend.cpu.prefetch.streams import stream_prefetch
from fuser.backend.cpu.prefetch.weights import weight_prefetches
from fuser.backend.text import Reg
from fuser.errors import LoweringError
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

Chunk = tuple[Index, int]


def lower_dot(low: Lowering, op: ops.Dot) -> dict[Value, Place]:
    """Compute a dot into registers (its tile is one register tile) or into scratch."""
    plan = low.known.dots[op]
    if op.codes:
        raise LoweringError(f"a CPU does not multiply {op.codes}", hint="decode it before")
    for operand in (plan.a.value, plan.b.value, op.acc):
        low.require(operand)
    if low.known.kind(op.result) == "registers":
        compute = dot_along_k.cells if plan.along_k else _cells
        return {op.result: low.place_cells(op.result, Cells(compute(low, op, plan)))}
    tile = updated_tile(low.known, op)
    place = low.allocate(op.result) if tile is None else low.places[tile]
    assert isinstance(place, Memory)
    if plan.unit is not None:
        lower_unit_dot(low, op, plan, place)
    elif plan.along_k:
        dot_along_k.fill(low, op, plan, place)
    else:
        _blocks(low, op, plan, place)
    return {op.result: place}


def _cells(low: Lowering, op: ops.Dot, plan: DotPlan) -> dict[Point, Reg]:
    """A result that is one register tile, in registers."""
    rows = op.result.shape[0]
    cells = low.cells(op.result.shape)
    accs = [low.vector_at(op.acc, coords, lanes) for coords, lanes in cells]
    chunks = [(coords[1] - affine.lane(n), n) for coords, n in cells[: len(cells) // rows]]
    all_rows = [Index(r) for r in range(rows)]
    early = weight_prefetches(low, op, plan) or _streamed(low, op, plan, all_rows, chunks)
    early = [*early, *row_prefetches(low, op, plan)]
    regs = _tile(low, op, plan, all_rows, chunks, accs, early)
    return {coords: reg for (coords, _), reg in zip(cells, regs, strict=True)}


def _blocks(low: Lowering, op: ops.Dot, plan: DotPlan, place: Memory) -> None:
    """Cover the result with register tiles: column blocks outside, so that they stay in cache."""
    rows, columns = op.result.shape if plan.vector_axis == 1 else op.result.shape[::-1]
    width = low.target.lanes(max(32, op.result.dtype.bits))
    full, tail = divmod(columns, width)
    whole = full // plan.vectors * plan.vectors

    def column_block(chunks: list[Chunk]) -> None:
        def row_block(first: Index, count: int) -> None:
            _one(low, op, plan, [first + r for r in range(count)], chunks, place)

        low.cover(rows, plan.rows, "rows", row_block)

    def vectors(start: Index, size: int) -> None:
        column_block([(start + offset, width) for offset in range(0, size, width)])

    low.cover(whole * width, plan.vectors * width, "columns", vectors)
    rest = [(Index(c * width), width) for c in range(whole, full)]
    if tail:
        rest.append((Index(full * width), tail))
    if rest:
        column_block(rest)


def _one(
    low: Lowering,
    op: ops.Dot,
    plan: DotPlan,
    rows: list[Index],
    chunks: list[Chunk],
    place: Memory,
) -> None:
    """One register tile: load or compute acc, run k, write to scratch."""

    def point(row: Index, chunk: Chunk) -> Point:
        here = chunk[0] + affine.lane(chunk[1])
        return (row, here) if plan.vector_axis == 1 else (here, row)

    points = [(point(row, chunk), chunk[1]) for row in rows for chunk in chunks]
    accs = [low.vector_at(op.acc, coords, lanes) for coords, lanes in points]
    regs = _tile(low, op, plan, rows, chunks, accs, _streamed(low, op, plan, rows, chunks))
    for (coords, lanes), reg in zip(points, regs, strict=True):
        low.write_at(place, op.result.dtype, coords, reg, lanes)


def _streamed(
    low: Lowering, op: ops.Dot, plan: DotPlan, rows: list[Index], chunks: list[Chunk]
) -> list[Prefetch]:
    """What a register tile fetches of the second operand's block in the next iteration of the loop
    around the dot. Tiles that read the same again fetch nothing."""
    lanes = sum(lanes for _, lanes in chunks)
    first, count, others = rows[0], len(rows), lanes
    if plan.vector_axis == 1:
        first, count, others = chunks[0][0], lanes, len(rows)
    if others != op.result.shape[0]:
        return []
    steps = op.a.shape[1] // plan.steps
    found = stream_prefetch(low, op, plan.b.value, first, count, steps)
    return [found] if found is not None else []


def _tile(
    low: Lowering,
    op: ops.Dot,
    plan: DotPlan,
    rows: list[Index],
    chunks: list[Chunk],
    accs: list[Reg],
    prefetches: Sequence[Prefetch] = (),
) -> list[Reg]:
    """The k loop of a register tile; accs are row by row."""
    f = low.f
    depth = op.a.shape[1]
    broadcast, vector = (plan.a, plan.b) if plan.vector_axis == 1 else (plan.b, plan.a)
    is_float = op.result.dtype.is_float

    def step(k: Index, carried: list[Reg]) -> list[Reg]:
        out = []
        vectors = []
        for start, lanes in chunks:
            point = vector.point(k, start + affine.lane(lanes))
            vectors.append(low.vector_at(vector.value, point, lanes))
        for r, row in enumerate(rows):
            item = low.at(broadcast.value, broadcast.point(k, row))
            wide: dict[int, Reg] = {}
            for c, (_, lanes) in enumerate(chunks):
                if lanes not in wide:
                    wide[lanes] = f.splat(item, lanes)
                acc = carried[r * len(chunks) + c]
                if is_float:
                    out.append(f.fma(wide[lanes], vectors[c], acc))
                else:
                    out.append(f.binary("add", acc, f.binary("mul", wide[lanes], vectors[c])))
        return out

    def loop(start: int, stop: int, accs: list[Reg], active: Sequence[Prefetch]) -> list[Reg]:
        def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                first = low.counter(i, 0, depth - plan.steps, plan.steps)
                for prefetch in active:
                    prefetch.step(f, i)
                for k in range(plan.steps):
                    with low.scope():
                        carried = step(first + k, carried)
            return carried

        return f.loop(start, stop, plan.steps, accs, iteration, hint="k")

    begun = max((p.iterations for p in prefetches if p.iterations is not None), default=0)
    if begun:
        accs = loop(0, begun, accs, prefetches)
    steady = [prefetch for prefetch in prefetches if prefetch.iterations is None]
    return loop(begun, depth, accs, steady) if begun < depth else accs
