"""Schedules of matmuls on a GPU: of the legal ones that of least cost (cost.py), and those of few
rows, which follow from how blocks stream their weights (few_rows.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import FEW_ROWS, blocks_of, ceildiv
from fuser.tilegen.rules.gpu.cost import cost, cut_of, fed_by_copies, ring_bytes, stage_bytes
from fuser.tilegen.rules.gpu.few_rows import few_rows_schedule
from fuser.tilegen.rules.gpu.tiles import (
    MAX_STAGES,
    MAX_TILE,
    PING_PONG_TILES,
    plain_schedule,
    tiles_of,
)
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.stream_k import MAX_PARTS

PING_PONG = (12288, 16384)
"""Elements of the smallest and the largest tile of one of two ping-pong warp groups."""
PAIRS = ((2, 1), (1, 2))
"""Programs that load for each other what they share; more of them leave multiprocessors idle."""
CLUSTERS = (8, 4, 2)
SHARED_TILE = 128 * 192
"""The largest tile whose sums blocks leave for each other."""


def dot_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a matmul: see `MatmulRule`."""
    few = few_rows_schedule(target, problem)
    if few is not None:
        return few
    closed = problem.closed()
    return least(target, closed, candidates(target, closed))


def least(target: Target, problem: Problem, options: Iterable[Schedule]) -> Schedule:
    """The option of least cost; of equal ones that which asks the L2 for least."""
    costs = [(option, cost(target, problem, option)) for option in options]

    def order(item: tuple[Schedule, float]) -> tuple[float, int, bool]:
        option, time = item
        rows, columns = option.block("m"), option.block("n")
        lines = problem.tiles(rows, columns) * (rows + columns * problem.accumulators)
        return round(time, 6), lines, not option.persistent

    best, time = min(costs, key=order)
    tiles = problem.tiles(best.block("m"), best.block("n"))
    reason = f"{tiles} tiles on {target.units} multiprocessors, {time:.1f} us"
    return replace(best, reason=f"{reason}, the least of {len(costs)} schedules")


def candidates(target: Target, problem: Problem) -> Iterator[Schedule]:
    """The legal schedules of a matmul of known sizes, of more than few rows: tiles of one block
    each, tiles that blocks share, and persistent blocks."""
    for rows, columns in tiles_of(target, problem):
        plain = plain_schedule(target, problem, rows, columns)
        several = problem.tiles(rows, columns) > target.units
        if several and rows * columns * problem.accumulators > MAX_TILE:
            continue
        copies = fed_by_copies(target, problem, rows)
        if copies and not problem.codes:
            yield from shared(target, problem, plain)
        if rows > FEW_ROWS >= problem.m:
            continue  # what one block multiplies, single warps do
        yield replace(plain, persistent=problem.codes and copies and several)
        if copies and not problem.codes:
            yield from _in_pairs(problem, plain)
            if several and problem.k * problem.bits >= 128 * 16:
                yield from persistent(target, problem, plain, *PING_PONG)
    yield from _as_tf32x3(target, problem)


def shared(target: Target, problem: Problem, plain: Schedule) -> Iterator[Schedule]:
    """Tiles that several blocks have a part of k of: those of a cluster, which add up over shared
    memory, or others, which leave their sums in memory."""
    p, rows, columns = problem, plain.block("m"), plain.block("n")
    tiles, iterations = p.tiles(rows, columns), p.iterations(plain.block("k"))
    if p.folded or p.accumulators > 1 or 2 * tiles > target.units:
        return
    parts = min(target.units // tiles, MAX_PARTS)
    stage = stage_bytes(p, rows, columns, plain.block("k"))
    stages = min(ring_bytes(target) // stage, MAX_STAGES, iterations // parts)
    if (
        not p.open
        and p.image is None
        and columns >= 64
        and stages >= 4
        and rows * columns <= SHARED_TILE
    ):
        yield replace(plain, stages=stages, stream_k=1)
    cluster = next((c for c in CLUSTERS if tiles * c <= target.units), 1)
    if (rows, columns) == (64, 64) and cluster > 1 and iterations >= 2 * cluster:
        yield replace(plain, warps=4, stages=min(6, iterations // cluster), cluster=cluster)


def persistent(
    target: Target, problem: Problem, plain: Schedule, fewest: int, most: int, widest: int = 256
) -> Iterator[Schedule]:
    """Blocks that run tile after tile, two ping-pong warp groups in each, of tiles of so many
    elements and columns; what whole waves leave over is cut along k, or is not. One group in
    larger tiles only where rows begin off the sectors of the L2, which those ask less of."""
    p, rows, columns = problem, plain.block("m"), plain.block("n")
    wide, misaligned = columns * p.accumulators, any(p.misaligned) and not p.open
    options = []
    if (rows, columns) in PING_PONG_TILES and wide <= widest and fewest <= rows * wide <= most:
        options.append(replace(plain, warps=4, stages=4, consumer_groups=2))
    if misaligned and rows * wide == MAX_TILE and p.accumulators == 1:
        options.append(replace(plain, warps=8, stages=4))
    for option in options:
        one = replace(option, persistent=True)
        for whole in (one, *(_in_pairs(p, one) if misaligned else ())):
            yield whole
            pair = whole.neighbours[0] * whole.neighbours[1]
            tiles, places = p.tiles(rows, columns) // pair, target.units // pair
            divisible = not (p.open or p.folded or p.image is not None)
            if divisible and cut_of(tiles, p.iterations(plain.block("k")), places):
                yield replace(whole, stream_k=1)


def _in_pairs(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """The same with programs that load for each other, where requests to the L2 may limit."""
    if problem.open or not any(problem.misaligned):
        return
    rows, columns = ceildiv(problem.m, schedule.block("m")), ceildiv(problem.n, schedule.block("n"))
    for pair in PAIRS:
        if rows % pair[0] == 0 == columns % pair[1]:
            yield replace(schedule, neighbours=pair)


def _as_tf32x3(target: Target, problem: Problem) -> Iterator[Schedule]:
    """float32 on asynchronous tensor cores: a warp group with 64 rows, two blocks a
    multiprocessor."""
    p = problem
    if p.bits != 32 or not target.wgmma or not p.streamed or p.accumulators > 1 or p.k < 64:
        return
    for columns, stages in ((96, 3), (64, 4)):
        group = 8 if p.batch == 1 else 0
        yield replace(blocks_of(stages=stages, group=group, m=64, n=columns, k=32), tf32x3=True)
