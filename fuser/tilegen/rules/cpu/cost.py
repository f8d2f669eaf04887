"""What a schedule of a matmul or a convolution costs on a CPU, in microseconds: a roofline of its
cores.

    cost     overlapped(memory, turns * steps * step / (multiply-adds a microsecond)) + packing
    memory   operands and results, once, at the rate of memory
    turns    tiles that a core computes one after the other, with what programs of tiles read again
    steps    of k
    step     multiply-adds of a register tile or the lines that it waits for, whichever is longer;
             its other loads, and a share of the start and end of the tile
    packing  of right operands that are copied to panels first (`Schedule.packs`)

Overlapped is the longer of two and a tenth of the shorter. Of a unit such as AMX (`Problem.unit`) a
step is one of all columns, and what counts is what hangs over the rows. Rates are of cores of
NOMINAL_CLOCK, so that plans do not depend on clocks (docs/schedules.md).
"""

from __future__ import annotations

import functools
from collections import Counter

from fuser.base.target import NOMINAL_CLOCK, Target
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

LINE_BYTES = 64
PAGE_BYTES = 4096
"""Bytes of a way of L1: the address within a page names the set."""
LINE_CYCLES = 2.7
"""Cycles in which L2 gives a line, of 512 bits."""
LOADS, START = 0.15, 2.0
"""Multiply-adds as which a load of a step counts, and the start and end of a tile, for each step.
Where a core begins one multiply-add a cycle, they pass beside it: a tenth."""
FIRST_PANEL, FEW_ROWS = 0.1, 0.05
"""How much longer the first panel of a program takes, whose rows come from beyond L2, and all of a
program of few rows, which wait for weights."""
UNIT_TILE, READ_PANELS, COPIED = 16, 6, 1.1
"""Rows of a tile of a unit; rows as which reading the panels again counts; and how much longer
blocks take that hang over, as they are copied first."""
HIDDEN = 0.1
NEAR_CYCLES, FAR_CYCLES, WALK_CYCLES, TURNED_CYCLES = 7.0, 16.0, 8.0, 8.0
"""Cycles in which a line of rows that lie apart arrives from L2, and from beyond it: the processor
sees no order in them. In which a row's page is looked up, where there are more than TLB_PAGES. And
in which a vector of columns is put together where k is innermost."""
TLB_PAGES = 64
SUM_CYCLES, STREAMED_TILE = 2.0, (6, 4)
"""Cycles in which a vector of sums is loaded and stored; rows and vectors of the register tiles of
blocks whose sums are in cache."""
PACK_CYCLES, PACK_LAUNCHES = 4.0, 2
"""Cycles in which a vector is copied to a panel; kernel boundaries as which the program counts."""


def cost(target: Target, problem: Problem, schedule: Schedule) -> float:
    """See `cost` in rules/cost.py."""
    vectors = target.vector_fmas * NOMINAL_CLOCK / 1e6  # multiply-adds a microsecond and core
    if problem.unit is not None:
        work = unit_work(problem, schedule.block("m")) / problem.unit.rate / target.lanes(32)
        work /= target.workers
    else:
        work = _turns(target, problem, schedule) * tile_step(target, problem, schedule) * problem.k
    memory = problem.bytes / target.bandwidth * 1e6
    work *= problem.accumulators / vectors
    packing = pack_cost(target, problem) if schedule.packs else 0.0
    return max(work, memory) + HIDDEN * min(work, memory) + packing


def pack_cost(target: Target, problem: Problem) -> float:
    """Microseconds in which right operands are copied to panels: read, written and read again."""
    elements = problem.batch * problem.accumulators * problem.k * problem.n
    cycles = elements / target.lanes(problem.bits) * PACK_CYCLES
    if problem.pitch == 0:
        cycles *= TURNED_CYCLES / PACK_CYCLES
    work = cycles / target.workers / NOMINAL_CLOCK * 1e6
    bytes = elements * problem.bits / 8
    beyond = 3 * bytes / target.bandwidth * 1e6 if bytes > target.l2_cache_bytes / 4 else 0.0
    return max(work, beyond) + PACK_LAUNCHES * target.launch_cost * 1e6


def unit_work(problem: Problem, rows: int) -> float:
    """Multiply-adds of a matmul by a unit in blocks of so many rows."""
    blocks = ceildiv(problem.m, rows) * problem.batch
    copied = COPIED if problem.m % rows else 1.0
    padded = ceildiv(rows, UNIT_TILE) * UNIT_TILE
    return blocks * (padded + READ_PANELS) * copied * problem.n * problem.k


def tile_step(target: Target, problem: Problem, schedule: Schedule) -> float:
    """Multiply-adds of vectors as which a step of k of a register tile counts.

    Tiles of few rows wait for B, and so do tiles of rows that L1 cannot hold. Tiles that fill the
    registers run at about the same speed: what counts is what hangs over the edges of [m, n].
    """
    rows = min(schedule.block("m"), problem.m)
    vectors = ceildiv(schedule.block("n"), target.lanes(64 if problem.bits == 64 else 32))
    begun = target.vector_fmas * target.vector_bits / 512
    lines = LINE_CYCLES * (vectors + _evicted(target, rows, _pitch(problem)))
    if problem.pitch and not schedule.packs and schedule.block("k", problem.k) < problem.k:
        return _streamed_step(target, rows, vectors, schedule.block("k"))
    others = LOADS * (rows + vectors) + START
    step = others * (0.1 if target.vector_fmas == 1 else 1)
    if problem.pitch is not None and not schedule.packs:
        if problem.pitch == 0:
            step += TURNED_CYCLES * vectors * target.vector_fmas
        else:
            width = schedule.block("n") * problem.bits // 8
            apart = _row_cycles(target, problem.k, problem.pitch, width)
            return max(rows * vectors, lines * begun, apart * target.vector_fmas) + step
    return max(rows * vectors, lines * begun) + step


def _streamed_step(target: Target, rows: int, vectors: int, depth: int) -> float:
    """`tile_step` of rows of the right operand in order, in so many steps of k at a time, whose
    sums are loaded and stored once for all of these."""
    begun = target.vector_fmas * target.vector_bits / 512
    high, wide = STREAMED_TILE
    tiles = ceildiv(rows, high) * ceildiv(vectors, wide)
    sums = SUM_CYCLES * target.vector_fmas * rows * vectors / depth
    others = (LOADS * (min(rows, high) + wide) + START) * tiles
    step = others * (0.1 if target.vector_fmas == 1 else 1)
    return max(rows * vectors, LINE_CYCLES * vectors * begun) + sums + step


@functools.lru_cache(maxsize=1024)
def _row_cycles(target: Target, rows: int, pitch: int, width: int) -> float:
    """Cycles in which a row of `width` bytes arrives, of so many that lie `pitch` bytes apart and
    are read again and again; 0 where L1 holds all of them, or they follow each other. Rows of an
    array begin anywhere in a line."""
    if pitch <= width:
        return 0.0
    lines = width // LINE_BYTES + 1
    places = (row * pitch + line * LINE_BYTES for row in range(rows) for line in range(lines))
    crowd = max(Counter(place % PAGE_BYTES // LINE_BYTES for place in places).values())
    if crowd <= target.l1_bytes // PAGE_BYTES:
        return 0.0
    cycles = lines * (NEAR_CYCLES if crowd <= target.l2_bytes // PAGE_BYTES else FAR_CYCLES)
    return cycles + (WALK_CYCLES if rows * pitch > TLB_PAGES * PAGE_BYTES else 0.0)


def _turns(target: Target, p: Problem, s: Schedule) -> float:
    """Tiles that a core computes. k_panels: of a program, of which there are so many."""
    tiles, panels = ceildiv(p.m, s.block("m")), ceildiv(p.n, s.block("n"))
    if s.k_panels is None:
        return tiles * panels * p.batch / target.workers
    high, wide = s.k_panels
    programs = p.batch * ceildiv(tiles, high) * ceildiv(panels, wide)
    slower = 1 + FIRST_PANEL / wide
    slower *= 1 + FEW_ROWS * (64 / (high * s.block("m"))) ** 2
    return ceildiv(programs, target.workers) * high * wide * slower


def _pitch(problem: Problem) -> int:
    """Bytes from a row of the left operand to the next, 0 where unknown."""
    if problem.image is not None:
        return problem.image.pitch
    return 0 if problem.decoded else problem.k * problem.bits // 8


def _evicted(target: Target, rows: int, pitch: int) -> int:
    """Cache lines of `rows` rows that L1 evicts between two steps of k: all lines of a set that
    cannot hold them. Rows a multiple of 4 KiB apart share one set."""
    if not pitch:
        return 0
    crowds = Counter(row * pitch % PAGE_BYTES // LINE_BYTES for row in range(rows)).values()
    ways = target.l1_bytes // PAGE_BYTES
    return sum(crowd for crowd in crowds if crowd > ways)
