"""What a schedule of a matmul or a convolution costs on a GPU, in microseconds: a roofline of its
blocks.

    cost     START + overlapped(memory, loops) + ends + shares
    memory   operands and results, once, at the rate of DRAM
    loops    of the blocks that a multiprocessor runs one after the other: iterations * iteration
    iteration   overlapped(multiply, load) + barriers
    multiply    multiply-adds of a tile at the rate of the unit that has tiles of such rows
    load        operands of a tile at the rate of the L2, which all blocks share, or the latency of
             what is under way over the stages
    ends     results of a wave, at the rate of DRAM, with nothing to hide them: blocks that begin
             together end together
    shares   sums of blocks that have a part of k each, starts of clusters

Overlapped is the longer of two, and a small part (`hidden`) of the shorter. Rates are those of the
target (UnitRates in fuser/base/target.py); the other constants were fitted to times of an H200
(docs/schedules.md).
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
from fuser.tilegen.stream_k import MAX_PARTS, Cut, cut_tiles

START = 1.95
"""Microseconds in which a kernel starts, fills its pipeline and ends."""
LATENCY, COPY_LATENCY = 0.63, 0.89
"""Microseconds until bytes that threads asked for are there, and those that the copy engine brings
while all multiprocessors ask."""
NEXT = 0.085
"""Microseconds in which a block follows another on a multiprocessor."""
UNIT_ROWS = 64
"""Rows of a tile that a warp group multiplies; fewer are for single warps."""
LINE, NARROW = 64, 68.4
"""Columns of 16 bits in a line of the copy engine, and those as which a multiprocessor receives
fewer."""
RECEIVED = 150e3
"""Bytes that a multiprocessor receives in a microsecond where others ask for nothing."""
ABSENT = 2.2
"""What a row beyond the last of a box of UNIT_ROWS costs, in rows that are there: the copy engine
writes zeros slowly."""
MISALIGNED, SPLIT = 2.12, 1.5
"""What a row costs that begins off the sectors of the L2, in others: of the L2, which it asks more
often, and of the multiprocessor, which receives sectors of which it needs a part."""
EPILOGUE = 1.726e-4
"""Microseconds that a warp takes for an element of its results."""
STEP, WALK, CHUNK, PARTIAL = 0.0285, 0.0314, 0.0262, 1.6
"""Microseconds of the barriers of an iteration where threads gather windows, in which they find the
pixels under another tap, and in which each copies 16 bytes of a window; and how much longer the
last two take where the channels are no whole steps of k."""
ELEMENTWISE = 16.0
"""What a row of an image of few channels costs, whose elements are copied one by one."""
WINDOW = 0.0824
"""Microseconds in which the copy engine begins the windows of another tile."""
IM2COL = 0.115
"""Microseconds by which it begins those of the first later than a box of a matrix."""
MAX_BLOCKS, HIDING = 4, 2
"""Blocks of a multiprocessor at once at most, and of those that hide each other's latencies."""
REGISTERS, THREAD_REGISTERS = 64 << 10, 64
"""Registers of a multiprocessor; and of a thread, beside its sums."""
PAIRS = 0.1
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
    resident = _resident(target, p, s, ceil(waves), iterations)
    turns = ceildiv(ceil(waves), resident)
    last = waves - (turns - 1) * resident
    load = _load(target, p, s, min(1.0, groups * parts / places), ceil(waves))
    loop = last * _iteration(target, p, s, iterations, load, min(resident, ceil(last)))
    loop += (waves - last) * _iteration(target, p, s, iterations, load, resident)
    loop = iterations * loop + (1 if s.persistent else turns) * load
    copies, memory = fed_by_copies(target, p, rows), p.bytes / target.bandwidth * 1e6
    memory *= NARROW / LINE if copies and columns < LINE else 1.0
    time = START + _overlapped(memory, loop, COPY_ENGINE.hidden)
    tile = rows * columns * p.accumulators
    stored = min(count, target.units) * tile * (4 if p.bits > 16 else 2) / target.bandwidth * 1e6
    stored = max(stored, EPILOGUE * tile / s.warps)
    time += stored if s.consumer_groups > 1 else ceil(waves) * stored
    time += 0.0 if s.persistent else (turns - 1) * NEXT
    if p.image is not None and copies:
        time += IM2COL + (waves * WINDOW if s.consumer_groups > 1 else 0.0)
    time += _sums(tile, parts, s.cluster > 1) + _sums_of_cut(cut)
    return time + (PAIRS if pair > 1 else 0.0)


def parts_of(target: Target, problem: Problem, schedule: Schedule) -> int:
    """Blocks that have a part of k of each tile."""
    if not schedule.stream_k or schedule.persistent:
        return schedule.cluster
    tiles = problem.tiles(schedule.block("m"), schedule.block("n"))
    return max(1, min(target.units // tiles, MAX_PARTS))


def cut_of(count: int, iterations: int, blocks: int) -> Cut | None:
    """How tiles left over after whole waves of so many blocks are cut where that may pay."""
    cut = cut_tiles(count % blocks, iterations, blocks)
    return cut if cut is not None and cut.run <= MAX_RUN else None


def stage_bytes(problem: Problem, rows: int, columns: int, depth: int) -> int:
    """Bytes of operands of an iteration of a block."""
    return (rows + columns * problem.accumulators) * depth * problem.bits // 8


def fed_by_copies(target: Target, problem: Problem, rows: int) -> bool:
    """Whether the copy engine fetches the operands of tiles of so many rows for wgmma: of an image
    lines of channels, several of them."""
    p = problem
    lines = p.image is None or (
        p.bits == 16 and p.image.channels % LINE == 0 == p.n % 8 and p.k >= 2 * LINE
    )
    return target.wgmma and p.streamed and lines and p.bits <= 16 and rows >= UNIT_ROWS


def _resident(target: Target, p: Problem, s: Schedule, waves: int, iterations: int) -> int:
    """Blocks of a multiprocessor at once: as many as its registers and its memory have room for.
    Two warp groups and the one that fetches for them have all registers."""
    rows, columns = s.block("m"), s.block("n")
    alone = s.persistent or s.cluster > 1 or s.stream_k
    if alone or (iterations > 1 and s.warps >= 8 and fed_by_copies(target, p, rows)):
        return 1
    registers = rows * columns * p.accumulators + 32 * s.warps * THREAD_REGISTERS
    bytes = s.stages * stage_bytes(p, rows, columns, s.block("k"))
    return max(1, min(MAX_BLOCKS, waves, ring_bytes(target) // bytes, REGISTERS // registers))


def ring_bytes(target: Target) -> int:
    """Bytes of stages that a multiprocessor has room for."""
    return min(RING, target.shared_bytes)


def _load(target: Target, p: Problem, s: Schedule, active: float, waves: int) -> float:
    """Microseconds in which the operands of an iteration of a block come, where such a share of the
    multiprocessors asks for some. One of the tiles of a multiprocessor has rows beyond the last."""
    rows, depth, unit = s.block("m"), s.block("k"), _unit(target, p, s)
    left, copies = float(min(rows, p.m)), fed_by_copies(target, p, rows)
    lines = left * (MISALIGNED if p.misaligned[0] else 1.0)
    if p.image is not None and p.image.channels < MIN_CHANNELS:
        lines *= ELEMENTWISE
    lines += (ABSENT - 1) * (-p.m % UNIT_ROWS) / waves if copies and p.m > UNIT_ROWS else 0.0
    lines /= s.neighbours[1]
    right, bytes = float(s.block("n") * p.accumulators), depth * p.bits / 8
    lines += right * (MISALIGNED if p.misaligned[1] else 1.0) / s.neighbours[0]
    load = lines * bytes / unit.copied
    if not copies:
        return load + _partial(p, depth) * left * bytes / 16 / (32 * s.warps) * CHUNK
    right = NARROW * p.accumulators if s.block("n") < LINE else right
    left *= SPLIT if p.misaligned[0] else 1.0
    right *= SPLIT if p.misaligned[1] else 1.0
    return max(active * load, (left + right) * bytes / RECEIVED)


def _partial(p: Problem, depth: int) -> float:
    """What threads take for a step of a window of an image of many channels: 0 of other operands,
    1 of whole steps, more of partial ones."""
    if p.image is None or p.image.channels < MIN_CHANNELS:
        return 0.0
    return PARTIAL if p.image.channels % depth else 1.0


def _iteration(
    target: Target, p: Problem, s: Schedule, iterations: int, load: float, resident: int
) -> float:
    """Microseconds of an iteration of one of so many resident blocks, whose operands come in `load`
    microseconds."""
    rows, columns, depth = s.block("m"), s.block("n"), s.block("k")
    copies, unit = fed_by_copies(target, p, rows), _unit(target, p, s)
    hiding = min(resident, HIDING)
    tile = rows * columns * p.accumulators
    multiply = tile * depth * 2e6 * target.units / (unit.peak * target.peak(bits=p.bits))
    if iterations > s.stages:
        latency = COPY_LATENCY if copies else LATENCY
        load = max(load, latency / (hiding * s.consumer_groups * max(1, s.stages - 1)))
    barriers, gathered = unit.barriers, 0.0 if copies else _partial(p, depth)
    if p.image is not None and gathered:
        barriers = STEP + (WALK * gathered if p.image.taps > 1 else 0.0)
    return _overlapped(multiply, load, unit.hidden) + barriers / hiding


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
