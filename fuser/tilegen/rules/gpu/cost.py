"""What a schedule of a matmul or a convolution costs on a GPU, in microseconds: a roofline of its
blocks.

    cost     START + overlapped(memory, waves * iterations * iteration) + ends + shares
    memory   operands and results, once, at the rate of DRAM
    iteration   overlapped(multiply, load) + barriers
    multiply    multiply-adds of a tile at the rate of the unit that has tiles of such rows
    load        operands of a tile at the rate that a multiprocessor receives them, wherever they
             come from, or the latency of DRAM over the stages under way
    ends     results of the last wave, at the rate of DRAM, with nothing to hide them
    shares   sums of blocks that have a part of k each, starts of clusters

Overlapped is the longer of two, and a small part (`hidden`) of the shorter. Rates are those of the
target (UnitRates in fuser/base/target.py); the other constants were fitted to times of an H200 and
to schedules that were the fastest of many there (docs/schedules.md).
"""

from __future__ import annotations

from math import ceil

from fuser.base.target import (
    CLUSTER_SUMS,
    COPY_ENGINE,
    MMA_ALONE,
    MMA_SYNC,
    TF32_SYNC,
    TF32_WGMMA,
    WGMMA,
    Target,
    UnitRates,
)
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.rules.problem import MIN_CHANNELS, Problem
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.stream_k import MOST_PARTS, Cut, cut_tiles

START = 2.44
"""Microseconds in which a kernel starts, fills its pipeline and ends."""
LATENCY = 0.546
"""Microseconds until bytes that were asked for are there."""
NEXT = 0.082
"""Microseconds in which a block follows another on a multiprocessor."""
UNIT_ROWS = 64
"""Rows of a tile that a warp group multiplies; fewer are for single warps."""
LINE, SHORT_LINE = 64, 68.44
"""Columns of 16 bits in a line of the copy engine, and those as which fewer count."""
ABSENT = 2.055
"""What a row beyond the last costs, in rows that are there: the copy engine writes zeros slowly."""
MISALIGNED = 1.992
"""What a row costs that begins off the sectors of the L2, in others: it takes more requests."""
EPILOGUE = 1.726e-4
"""Microseconds that a warp takes for an element of its results."""
GATHERED, ELEMENTWISE = 2.263, 16.0
"""What a row of an image costs that threads gather, in rows of a matrix; of few channels, whose
elements are copied one by one."""
WINDOW = 0.0824
"""Microseconds in which the copy engine begins the windows of another tile."""
RESIDENT = 2
"""Blocks of a multiprocessor that hide each other's ends and latencies; more are no gain."""
PAIRS = 1.027
"""Microseconds by which blocks start later in clusters."""
RING = 216 << 10
"""Bytes of stages of all blocks of a multiprocessor, at most."""
PART, FIRST_SUM, NEXT_SUM = 0.89, 2.053, 0.343
"""Microseconds in which blocks that leave their sums of a tile in memory start, and for each 8192
elements the first and each further of them is added up."""
CUT = 1.13
"""How much longer cut tiles take: blocks at different steps of k share fewer requests to the L2."""
MAX_RUN = 2
"""Tiles of which a block does a part one after the other: for each, sums go to memory."""


def cost(target: Target, problem: Problem, schedule: Schedule) -> float:
    """See `cost` in rules/cost.py."""
    p, s = problem, schedule
    rows, columns, depth = s.block("m"), s.block("n"), s.block("k")
    count, pair = p.tiles(rows, columns), s.neighbours[0] * s.neighbours[1]
    groups, places = ceildiv(count, pair), target.units // pair
    parts = parts_of(target, p, s)
    waves: float = ceildiv(groups * parts, places)
    cut = cut_of(groups, p.iterations(depth), places) if s.persistent and s.stream_k else None
    if cut is not None:
        waves = groups // places + CUT * cut.waves
    iterations = ceildiv(p.iterations(depth), parts)
    resident = _resident(target, p, s, waves)
    loop = waves * iterations * _iteration(target, p, s, iterations, resident)
    memory = p.bytes / target.bandwidth * 1e6
    if fed_by_copies(target, p, rows) and columns < LINE:
        memory *= SHORT_LINE / LINE
    tile = rows * columns * p.accumulators
    stored = min(count, target.units) * tile * (4 if p.bits > 16 else 2) / target.bandwidth * 1e6
    stored = max(stored, EPILOGUE * tile / s.warps)
    turns = ceil(waves) / resident
    time = START + _overlapped(memory, loop, COPY_ENGINE.hidden)
    time += stored if s.consumer_groups > 1 else turns * stored
    time += 0.0 if s.persistent else (turns - 1) * NEXT
    time += waves * WINDOW if p.image is not None and s.consumer_groups > 1 else 0.0
    time += _sums(tile, parts, s.cluster > 1) + _sums_of_cut(cut)
    return time + (PAIRS if pair > 1 else 0.0)


def parts_of(target: Target, problem: Problem, schedule: Schedule) -> int:
    """Blocks that have a part of k of each tile."""
    if not schedule.stream_k or schedule.persistent:
        return schedule.cluster
    tiles = problem.tiles(schedule.block("m"), schedule.block("n"))
    return max(1, min(target.units // tiles, MOST_PARTS))


def cut_of(count: int, iterations: int, blocks: int) -> Cut | None:
    """How tiles left over after whole waves of so many blocks are cut where that may pay."""
    cut = cut_tiles(count % blocks, iterations, blocks)
    return cut if cut is not None and cut.run <= MAX_RUN else None


def stage_bytes(problem: Problem, rows: int, columns: int, depth: int) -> int:
    """Bytes of operands of an iteration of a block."""
    return (rows + columns * problem.accumulators) * depth * problem.bits // 8


def fed_by_copies(target: Target, problem: Problem, rows: int) -> bool:
    """Whether the copy engine fetches the operands of tiles of so many rows for wgmma."""
    return target.wgmma and problem.streamed and problem.bits <= 16 and rows >= UNIT_ROWS


def _resident(target: Target, p: Problem, s: Schedule, waves: float) -> int:
    """Blocks of a multiprocessor that hide what each other waits for."""
    if s.persistent or s.cluster > 1 or s.stream_k:
        return 1
    bytes = s.stages * stage_bytes(p, s.block("m"), s.block("n"), s.block("k"))
    return max(1, min(RESIDENT, ceil(waves), ring_bytes(target) // bytes))


def ring_bytes(target: Target) -> int:
    """Bytes of stages that a multiprocessor has room for."""
    return min(RING, target.shared_bytes)


def _iteration(target: Target, p: Problem, s: Schedule, iterations: int, resident: int) -> float:
    """Microseconds of an iteration of one block."""
    rows, columns, depth = s.block("m"), s.block("n"), s.block("k")
    copies, unit = fed_by_copies(target, p, rows), _unit(target, p, s)
    tile = rows * columns * p.accumulators
    multiply = tile * depth * 2e6 * target.units / (unit.peak * target.peak(bits=p.bits))
    left = float(min(rows, p.m))
    if p.image is not None and not copies:
        left *= GATHERED if p.image.channels >= MIN_CHANNELS else ELEMENTWISE
    left *= MISALIGNED if p.misaligned[0] else 1.0
    right = float(SHORT_LINE if copies and columns < LINE else columns)
    right *= p.accumulators * (MISALIGNED if p.misaligned[1] else 1.0)
    absent = -p.m % rows if p.m > rows >= UNIT_ROWS else 0
    lines = left / s.neighbours[1] + (ABSENT - 1) * absent + right / s.neighbours[0]
    load = lines * depth * p.bits / 8 / unit.copied
    if iterations > s.stages:
        load = max(load, LATENCY / (resident * s.consumer_groups * max(1, s.stages - 1)))
    return _overlapped(multiply, load, unit.hidden) + unit.barriers / resident


def _unit(target: Target, problem: Problem, schedule: Schedule) -> UnitRates:
    """The unit that multiplies a tile."""
    rows = schedule.block("m")
    if problem.bits > 16:
        return TF32_WGMMA if schedule.tf32x3 else TF32_SYNC
    if not target.wgmma:
        return MMA_ALONE
    few = problem.image is not None and problem.image.channels < MIN_CHANNELS
    if rows < UNIT_ROWS or few:
        return MMA_SYNC
    return COPY_ENGINE if fed_by_copies(target, problem, rows) else WGMMA


def _overlapped(one: float, other: float, part: float) -> float:
    """Of two that overlap: the longer, and a part of the shorter."""
    return max(one, other) + part * min(one, other)


def _sums(tile: int, parts: int, cluster: bool) -> float:
    """Microseconds in which blocks add up their parts of a tile: those of a cluster over shared
    memory, others over global memory, one after the other."""
    if parts == 1:
        return 0.0
    return CLUSTER_SUMS if cluster else PART + tile / 8192 * (FIRST_SUM + NEXT_SUM * (parts - 1))


def _sums_of_cut(cut: Cut | None) -> float:
    """The same of tiles left over by whole waves, beside which other tiles are computed."""
    return 0.29 + 1.15 * cut.parts + 1.92 * (cut.run - 1) if cut is not None else 0.0
