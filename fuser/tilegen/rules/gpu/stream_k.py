"""Schedules of matmuls whose tiles fill no whole waves: parts of k of several blocks (stream-k)."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.stream_k import MOST_PARTS, Cut, cut_tiles

DEPTH = 64
"""Steps of k of an iteration, of 16-bit operands."""
MICROSECOND = 3.2e6
"""Multiply-adds of all steps of k that a multiprocessor of an H200 does in one."""
LEAST_GAIN = 0.98
"""Of the time of whole tiles, what cut ones may be reckoned to take."""
LONGEST_RUN = 2
"""Tiles of which a block does a part one after the other: for each, sums go to memory."""


def cut_of(count: int, k: int, blocks: int) -> Cut | None:
    """How tiles left over behind whole waves of so many blocks are cut where that may pay."""
    cut = cut_tiles(count % blocks, ceildiv(k, DEPTH), blocks)
    return cut if cut is not None and cut.run <= LONGEST_RUN else None


def cut_cost(wave: float, cut: Cut, k: int) -> float:
    """What cut tiles cost, in multiply-adds of a step of k. wave: what whole ones do.

    Blocks at different steps share fewer requests to the L2; sums take 1.2 us for each further part
    and 2 us for each further tile of a block's run. From an H200.
    """
    sums = 0.3 + 1.2 * cut.parts + 2 * (cut.run - 1)
    return 1.1 * cut.waves * wave + MICROSECOND * sums / k


def parts_schedule(target: Target, m: int, n: int, k: int, batch: int) -> Schedule | None:
    """A matmul of few tiles and a long k, of 16-bit operands: two to four blocks do a part of a
    tile each. None where tiles are so few that more blocks could, those of a cluster, or parts so
    short that their sums would take longer than what they save. From an H200."""
    if not target.wgmma:
        return None
    for rows, columns, depth in ((64, 128, LONG_PART), (64, 64, PART_DEPTH)):
        tiles = ceildiv(m, rows) * ceildiv(n, columns) * batch
        parts = min(target.units // tiles, MOST_PARTS)
        if parts < 2 or k < depth * parts or tiles * LARGEST_CLUSTER <= target.units:
            continue
        if columns > 64 and m < 256:
            continue  # what counts is to stream the right operand
        schedule = blocks_of(
            stages=8, group=8 if batch == 1 else 0,
            reason=f"{tiles} tiles, each of {parts} blocks that share k",
            m=rows, n=columns, k=DEPTH,
        )  # fmt: skip
        return replace(schedule, stream_k=1)
    return None


PART_DEPTH, LONG_PART = 1024, 2048
"""The least steps of k of a part: of tiles 64 wide, and of wider ones."""
LARGEST_CLUSTER = 8
