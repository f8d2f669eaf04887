"""What a schedule of a matmul or a convolution costs on a CPU, in microseconds: a roofline of its
cores.

    cost     overlapped(memory, turns * steps * step / (multiply-adds a microsecond))
    memory   operands and results, once, at the rate of memory
    turns    tiles that a core computes one after the other, with what programs of tiles read again
    steps    of k
    step     multiply-adds of a register tile or the lines that it waits for, whichever is longer;
             its other loads, and a share of the start and end of the tile

Overlapped is the longer of two and a tenth of the shorter. Of a unit such as AMX (`Problem.unit`) a
step is one of all columns, and what counts is what hangs over the rows. Rates are of cores of
NOMINAL_CLOCK, so that plans do not depend on clocks (docs/schedules.md).
"""

from __future__ import annotations

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
    return max(work, memory) + HIDDEN * min(work, memory)


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
    line = LINE_CYCLES * target.vector_fmas * target.vector_bits / 512
    lines = vectors + _evicted(target, rows, _pitch(problem))
    others = LOADS * (rows + vectors) + START
    return max(rows * vectors, lines * line) + others * (0.1 if target.vector_fmas == 1 else 1)


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
