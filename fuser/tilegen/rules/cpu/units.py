"""Schedules of CPU matmuls by tile or dot-product instructions (DOT_UNITS in
fuser/base/target.py)."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.dtypes import BY_NAME
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.rules.cpu.cost import unit_work
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

MAX_ROWS = 128
MAX_PART = 224
"""Rows of a block of whole tiles, and of one that is an equal part of m, at most."""


def schedule(target: Target, problem: Problem, rows: int = 0) -> Schedule:
    """Blocks of a CPU matmul by tile or dot-product instructions.

    Rows are rounded to the narrow type, or copied, once a program, and that costs as much as some
    16 columns; the panels of a program are read again by the program of the next rows, from L2.
    rows: of a block, where that is decided.
    """
    p, unit = problem, problem.unit
    assert unit is not None
    rows = rows or rows_of(p)
    blocks = ceildiv(p.m, rows) * p.batch
    most = 512
    if blocks > p.batch:
        bytes = p.k * BY_NAME[unit.dtype].bytes * p.accumulators
        most = max(32, min(most, target.l2_bytes // 2 // bytes // 32 * 32))
    while most > 64 and ceildiv(p.n, most) * blocks < 2 * target.workers:
        most = most // 2 // 32 * 32
    blocks_of = (("m", rows), ("n", balanced(p.n, most, 32)), ("k", p.k))
    return Schedule(blocks=blocks_of, reason=f"{unit.name}, panels in half of L2")


def rows_of(problem: Problem) -> int:
    """Rows of a block for a dot unit: whole tiles of 16, few of them hanging over the edge of m, or
    an equal part of m, whose last tile computes some rows twice."""
    if problem.m <= 16:
        return problem.m
    parts = [rows for rows in range(17, MAX_PART + 1) if problem.m % rows == 0 and rows % 16]
    options: list[int] = [*range(16, MAX_ROWS + 1, 16), *parts]
    return min(options, key=lambda rows: unit_work(problem, rows))


def balanced(extent: int, most: int, multiple: int) -> int:
    """The block that covers an extent in as few blocks as `most` allows, and evenly."""
    return ceildiv(ceildiv(extent, ceildiv(extent, most)), multiple) * multiple
