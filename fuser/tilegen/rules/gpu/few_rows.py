"""Schedules of matmuls of few rows on a GPU, whose time is that of streaming the right operand.

These follow from what blocks have under way, not from a cost: what a line of 32 bytes of a row
costs beside one of 128, and how the memory of a multiprocessor is shared with the next kernel, are
no terms of it (docs/schedules.md).
"""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import FEW_ROWS, NARROWEST, STREAMED, WIDEST, blocks_of, ceildiv
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

HALF_A_TILE = 8
"""Rows of a left operand up to which the other half of what an instruction takes is nothing."""
DECODED_WARPS, DECODED_SHARE = 8, 0.9
"""Warps of a block of few rows of codes; and of the multiprocessors, that have a block."""
DECODED_BYTES, DECODED_RING = 24 << 10, 96 << 10
"""Of codes of an iteration, 24 registers of each thread; of the stages of what they multiply."""
SHARE, WIDE_SHARE = 0.45, 0.65
"""Minimum share of the multiprocessors with a block of few rows: 64 of 132 read memory as fast in
blocks of 32 columns as 128 of them in blocks of 16, but not in blocks of 64 columns."""
STAGE = 8192
"""Elements of the right operand in a stage."""
RING, LONG_RING, SHARED_RING = 128 << 10, 200 << 10, 72 << 10
"""Bytes of stages of a block that has a multiprocessor for itself, of one whose k is longer than
all of that holds, and of one of three there. Room for all of a short k leaves none for the next
kernel, and is slower."""
PAIRED_SHARE, PAIRED_RING = 1.4, 110 << 10
"""Blocks for each multiprocessor from which on most have two, which then share all of its memory:
250 blocks after a norm 43.3 to 39.3 us; 160 of them are 5 % slower so (docs/lab/gpu-decode.md)."""


def few_rows_schedule(target: Target, problem: Problem) -> Schedule | None:
    """A matmul of 16 rows or fewer and a long k; None of others, or where there are too few
    columns to stream."""
    some = 16 // min(problem.bits, 16)  # operands of 8 bits: as many bytes of half the k
    p = replace(problem.closed(), k=ceildiv(problem.closed().k, some))
    few = p.bits <= 16 and not p.codes and p.m <= FEW_ROWS and p.k >= STREAMED
    many_columns = p.batch * ceildiv(p.n, NARROWEST) >= SHARE * target.units
    if p.panel:
        found = _stream_schedule(target, p)
    elif not few or not many_columns:
        return None
    elif p.decoded:
        # asked of a symbol, so that it holds for all sizes that the kernel is for
        half = problem.m <= HALF_A_TILE
        found = _decoded_schedule(target, p, HALF_A_TILE if half else 2 * HALF_A_TILE)
    else:
        found = _stream_schedule(target, p)
    blocks = tuple((name, size * some if name == "k" else size) for name, size in found.blocks)
    return replace(found, blocks=blocks)


def _stream_schedule(target: Target, p: Problem) -> Schedule:
    """Few rows: what counts is how many bytes are under way, and that they lie together in memory.
    Packed constants do, whatever the columns: as few of them as give each multiprocessor a block.
    Else blocks as wide as leaves most multiprocessors one. Where there are more blocks than those,
    several on each hide each other."""
    wide = ((c, WIDE_SHARE if c > 32 else SHARE) for c in (128, 64, 32))
    even, packed = target.one_wave_columns(p.batch * p.n), p.packed and target.wgmma
    one_wave = (packed and even * p.accumulators <= WIDEST and p.bits == 16) or p.panel > 0
    columns = p.panel or even if one_wave else next((
        c for c, share in wide
        if c * p.accumulators <= WIDEST and p.batch * ceildiv(p.n, c) >= share * target.units
    ), NARROWEST)  # fmt: skip
    blocks = p.batch * ceildiv(p.n, columns)
    depth = min(256, max(64, STAGE // (columns * p.accumulators)))
    if one_wave:
        depth = 256 if columns * p.accumulators <= 64 else 128
    stage, iterations = (16 + columns * p.accumulators) * depth * 2, ceildiv(p.k, depth)
    if blocks <= target.units:
        ring = LONG_RING if iterations * stage > LONG_RING else RING
    else:
        paired = PAIRED_SHARE * target.units <= blocks <= 2 * target.units
        ring = PAIRED_RING if paired else SHARED_RING
    return blocks_of(
        stages=max(2, min(ring // stage, iterations)), group=8 if p.batch == 1 else 0,
        reason=f"{blocks} narrow blocks stream the right operand", m=16, n=columns, k=depth,
    )  # fmt: skip


def _decoded_schedule(target: Target, p: Problem, rows: int) -> Schedule:
    """Few rows times weights that threads decode: the time is that of the codes, which travel
    to registers an iteration ahead (prefetch/prefetch_loads.py). What counts is how many are
    under way: blocks as wide as gives most multiprocessors one, and as much of k an iteration
    as a thread has registers for. Warps share k."""
    columns = next((
        c for c in (64, 32) if p.batch * ceildiv(p.n, c) >= DECODED_SHARE * target.units
    ), NARROWEST)  # fmt: skip
    shortest = DECODED_WARPS * 4 * (32 // p.decoded)
    deepest = min(p.k // 2, DECODED_BYTES * 8 // p.decoded // (columns * p.accumulators))
    deepest = max(1, deepest // shortest)
    depths = range(deepest, 0, -1)
    depth = next((d for d in depths if p.k % (d * shortest) == 0), deepest) * shortest
    stage, iterations = depth * 2 * rows, ceildiv(p.k, depth)
    blocks = p.batch * ceildiv(p.n, columns)
    schedule = blocks_of(
        warps=DECODED_WARPS, stages=max(2, min(DECODED_RING // stage, iterations, 3)),
        group=8 if p.batch == 1 else 0, reason=f"{blocks} blocks decode {p.decoded} bits each",
        m=rows, n=columns, k=depth,
    )  # fmt: skip
    # what does not run at once with its neighbours runs beside one of them
    return replace(schedule, blocks_per_sm=2) if blocks > target.units else schedule
