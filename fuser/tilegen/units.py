"""Schedules of CPU matmuls by tile or dot-product instructions (DOT_UNITS in
fuser/base/target.py)."""

from __future__ import annotations

from fuser.base.target import DotUnit, Target
from fuser.dtypes import BY_NAME
from fuser.tilegen.schedule import Schedule


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def schedule(
    target: Target, unit: DotUnit, m: int, n: int, k: int, accumulators: int, batch: int,
    rows: int = 0,
) -> Schedule:  # fmt: skip
    """Blocks of a CPU matmul by tile or dot-product instructions.

    Rows are rounded to the narrow type, or copied, once a program, and that costs as much as some
    16 columns; the panels of a program are read again by the program of the next rows, from L2.
    rows: of a block, where that is decided.
    """
    rows = rows or rows_of(m)
    blocks = ceildiv(m, rows) * batch
    most = 512
    if blocks > batch:
        bytes = k * BY_NAME[unit.dtype].bytes * accumulators
        most = max(32, min(most, target.l2_bytes // 2 // bytes // 32 * 32))
    while most > 64 and ceildiv(n, most) * blocks < 2 * target.workers:
        most = most // 2 // 32 * 32
    columns = balanced(n, most, 32)
    blocks_of = (("m", rows), ("n", columns), ("k", k))
    return Schedule(blocks=blocks_of, reason=f"{unit.name}, panels in half of L2")


MOST_ROWS = 128
MOST_PART = 224


def rows_of(m: int) -> int:
    """Rows of a block for a dot unit: whole tiles of 16, few of them hanging over the edge of m, or
    an equal part of m, whose last tile computes some rows twice. A block that hangs over is copied
    first; every block reads the panels again, which costs some 6 rows."""
    if m <= 16:
        return m

    def cost(rows: int) -> float:
        return ceildiv(m, rows) * (padded(rows) + 6) * (1.0 if m % rows == 0 else 1.1)

    parts = [rows for rows in range(17, MOST_PART + 1) if m % rows == 0 and rows % 16]
    candidates: list[int] = [*range(16, MOST_ROWS + 1, 16), *parts]
    return min(candidates, key=cost)


def padded(rows: int) -> int:
    return ceildiv(rows, 16) * 16


def balanced(extent: int, most: int, multiple: int) -> int:
    """The block that covers an extent in as few blocks as `most` allows, and evenly."""
    return ceildiv(ceildiv(extent, ceildiv(extent, most)), multiple) * multiple
