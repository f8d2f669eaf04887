"""Dots on a CPU: a register tile of accumulators and one step of k per iteration of the innermost
loop.

An iteration loads the vectors of one operand and broadcasts elements of the other from memory, one
FMA for each accumulator. LLVM must not unroll the loop: it would hoist broadcasts and spill.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.analysis.kernel_facts import DotPlan
from fuser.backend.cpu.dots.dot_along_k import lower_lane_dot
from fuser.backend.cpu.dots.dot_products import lower_unit_dot
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Cells, Memory, Point
from fuser.backend.cpu.prefetch.next_rows import RowPrefetches, row_prefetches
from fuser.backend.cpu.prefetch.streams import stream_prefetch
from fuser.backend.cpu.prefetch.weights import Prefetch, weight_prefetches
from fuser.backend.text import Reg
from fuser.errors import LoweringError
from fuser.tilegen import ops
from fuser.tilegen.index import Index

Chunk = tuple[Index, int]


def lower_dot(low: Lowering, op: ops.Dot) -> None:
    """Compute a dot into registers (its tile is one register tile) or into scratch."""
    plan = low.known.dots[op]
    if op.codes:
        raise LoweringError(f"a CPU does not multiply {op.codes}", hint="decode it before")
    for operand in (plan.a, plan.b, op.acc):
        low.require(operand)
    if plan.unit is not None:
        lower_unit_dot(low, op, plan.unit)
        return
    if plan.along_k:
        lower_lane_dot(low, op, plan)
        return
    rows, columns = op.result.shape
    if low.known.kind(op.result) == "registers":
        cells = low.cells(op.result.shape)
        accs = [low.vector_at(op.acc, coords, lanes) for coords, lanes in cells]
        per_row = len(cells) // rows
        chunks = [(coords[1] - affine.lane(n), n) for coords, n in cells[:per_row]]
        all_rows = [Index(r) for r in range(rows)]
        early = weight_prefetches(low, op, plan) or _streamed(low, op, plan, all_rows, chunks)
        ahead = row_prefetches(low, op, plan)
        regs = _tile(low, op, plan, all_rows, chunks, accs, early, ahead)
        table = {coords: reg for (coords, _), reg in zip(cells, regs, strict=True)}
        low.keep_cells(op.result, Cells(table))
        return
    place = low.in_place.get(op) or low.allocate(op.result)
    if plan.vector_axis == 1:
        _blocks(low, op, plan, rows, columns, place)
    else:
        _blocks(low, op, plan, columns, rows, place)
    low.places[op.result] = place


def _blocks(
    low: Lowering, op: ops.Dot, plan: DotPlan, rows: int, columns: int, place: Memory
) -> None:
    """Cover the result with register tiles: column blocks outside, so that they stay in cache."""
    width = low.target.lanes(max(32, op.result.dtype.bits))
    full, tail = divmod(columns, width)
    groups = full // plan.chunks

    def column_block(start: Index, chunks: list[Chunk]) -> None:
        here = [(start + offset, lanes) for offset, lanes in chunks]
        count = rows // plan.rows

        def row_block(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                first = low.counter(i, 0, (count - 1) * plan.rows, plan.rows)
                _one(low, op, plan, [first + r for r in range(plan.rows)], here, place)
            return []

        if count == 1:
            _one(low, op, plan, [Index(r) for r in range(plan.rows)], here, place)
        elif count:
            low.f.loop(0, count * plan.rows, plan.rows, [], row_block, hint="rows")
        if rows % plan.rows:
            left = [Index(r) for r in range(count * plan.rows, rows)]
            _one(low, op, plan, left, here, place)

    step = plan.chunks * width
    block = [(Index(c * width), width) for c in range(plan.chunks)]
    if groups == 1:
        column_block(Index(0), block)
    elif groups:

        def columns_iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                column_block(low.counter(i, 0, (groups - 1) * step, step), block)
            return []

        low.f.loop(0, groups * step, step, [], columns_iteration, hint="columns")
    rest = [(Index(c * width), width) for c in range(groups * plan.chunks, full)]
    if tail:
        rest.append((Index(full * width), tail))
    if rest:
        column_block(Index(0), rest)


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
        address = low.memory_address(place, coords)
        low.write(place.pointer, op.result.dtype, address, reg, lanes)


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
    found = stream_prefetch(low, op, plan.b, first, count, steps)
    return [found] if found is not None else []


def _tile(
    low: Lowering,
    op: ops.Dot,
    plan: DotPlan,
    rows: list[Index],
    chunks: list[Chunk],
    accs: list[Reg],
    early: Sequence[Prefetch] = (),
    ahead: RowPrefetches | None = None,
) -> list[Reg]:
    """The k loop of a register tile; accs are row by row."""
    f = low.f
    depth = op.a.shape[1]
    row_operand, vector_operand = (plan.a, plan.b) if plan.vector_axis == 1 else (plan.b, plan.a)
    is_float = op.result.dtype.is_float

    def step(k: Index, carried: list[Reg]) -> list[Reg]:
        out = []
        vectors = []
        for start, lanes in chunks:
            here = start + affine.lane(lanes)
            point = (k, here) if plan.vector_axis == 1 else (here, k)
            vectors.append(low.vector_at(vector_operand, point, lanes))
        for r, row in enumerate(rows):
            point = (row, k) if plan.vector_axis == 1 else (k, row)
            item = low.at(row_operand, point)
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

    begun = ahead.iterations if ahead is not None else 0

    def iteration(i: Reg, carried: list[Reg], ahead: RowPrefetches | None = None) -> list[Reg]:
        with low.scope():
            first = low.counter(i, 0, depth - plan.steps, plan.steps)
            for fetch in early:
                fetch.step(low, i)
            if ahead is not None:
                ahead.step(low, i)
            for k in range(plan.steps):
                with low.scope():
                    carried = step(first + k, carried)
        return carried

    if ahead is not None:
        accs = f.loop(0, begun, 1, accs, lambda i, carried: iteration(i, carried, ahead), hint="k")
    return f.loop(begun, depth, plan.steps, accs, iteration, hint="k") if begun < depth else accs
