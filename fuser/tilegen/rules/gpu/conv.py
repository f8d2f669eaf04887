"""Schedules of convolutions on a GPU: as a matmul whose rows are gathered, and without one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fuser.base.target import DotUnit, Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.rules.common import block_of, blocks_of, ceildiv, cover, power_of_two
from fuser.tilegen.rules.gpu.cluster_split_k import split_schedule
from fuser.tilegen.rules.gpu.ping_pong import ping_pong_schedule
from fuser.tilegen.rules.gpu.tiles import PREFETCHED, SHARED, deep_stages, gpu_tile
from fuser.tilegen.rules.record import Window
from fuser.tilegen.schedule import Schedule

ALONE = 1.2
"""How much longer a block takes that has a multiprocessor for itself: nothing hides its ends."""
ONE_WAVE = (192, 64)
"""A tile of 12 warps that fills a multiprocessor: fast where all blocks run at once."""
WAVE = 2.5e5
"""What a wave of two ping-pong warp groups costs besides matmuls and loads, in multiply-adds of all
steps of k."""
DEEP, MANY = 256, 8
"""Steps of k, and waves of blocks, from which on a convolution of few channels has many."""
ALL_SHARED = 216 << 10
"""Bytes of the ring of a block that has a multiprocessor for itself, where the copy engine, which
takes a line of 128 bytes in a few cycles, fills it."""


def conv_schedule(
    target: Target, m: int, n: int, channels: int, taps: int, bits: int, groups: int,
    unit: DotUnit | None = None, *, staged: bool = False, window: Window | None = None,
    run: int = 1, pitch: int = 0,
) -> Schedule:  # fmt: skip
    """Blocks of a convolution: see `ConvRule`."""
    staged = staged and not is_symbolic(channels)
    m, n, groups = size_hint(m), size_hint(n), size_hint(groups)
    channels = cover(channels)
    half = bits == 16
    # rows are gathered; with a short k the output dominates, and several blocks a processor hide it
    k = channels * taps
    most = 1 << 12 if k <= 64 else 1 << 13 if k <= 512 else 3 << 13
    tall = ((192, 128),) if half and target.wgmma else ()
    streamed = half and staged and bool(tall) and channels % 64 == 0 == n % 8 and k >= 128
    tile = partial(
        gpu_tile, target, m, n, bits, 1, groups, most, row_cost=60,
        tall_cost=24 if streamed and taps > 1 else 0, alone=ALONE,
    )  # fmt: skip
    rows, columns, waves, reason = tile(more=(*tall, ONE_WAVE) if streamed else tall)
    if (rows, columns) == ONE_WAVE and waves > 1:
        rows, columns, waves, reason = tile(more=tall)
    depth = 64 if half else 32 if bits < 64 else 16
    if half and staged and waves == 1 and channels % 64 == 0:
        shared = split_schedule(target, m, n, k, groups)
        if shared is not None:
            return replace(shared, group=0)
    if streamed:
        paired = ping_pong_schedule(
            target, m, n, k, 1, groups, (rows, columns, waves), fixed=False, least=1 << 13,
            widest=192, each=WAVE, alone=ALONE,
        )  # fmt: skip
        if paired is not None:
            return replace(paired, group=0)
    if channels < 16:
        if half and k >= DEEP:
            return _deep_schedule(target, m, n, groups)
        many = half and waves >= MANY  # what two warps have on its way suffices
        return blocks_of(
            warps=2 if many else 4, stages=2 if many else 3, reason=reason,
            m=min(rows, 64), n=min(columns, 64), k=16,
        )  # fmt: skip
    while depth > 16 and channels % depth and depth > channels % depth:
        depth //= 2
    warps = 8 if rows * columns >= 128 * 128 else 4
    warps = 12 if rows == 192 else warps
    stages = 6 if (rows, columns) == ONE_WAVE else 4 if half else 3
    iterations = taps * ceildiv(channels, depth)
    if half and warps == 4 and (3 <= waves <= 4 or (waves > 4 and k <= 512)):
        # three blocks at once, and so all of the last wave
        stages = max(2, min(stages, SHARED // (3 * 2 * (rows + columns) * depth), iterations))
    if half and waves == 1 and warps < 12:
        # one block a multiprocessor: many bytes on their way, and few barriers
        if rows + columns <= 96 and channels % 128 == 0:
            depth = 128
        room = ALL_SHARED if streamed and rows >= 64 else PREFETCHED
        stages = deep_stages(rows + columns, depth, taps * ceildiv(channels, depth), room)
    schedule = blocks_of(warps=warps, stages=stages, reason=reason, m=rows, n=columns, k=depth)
    # narrow boxes were not measured
    return schedule if depth >= 64 else replace(schedule, im2col=False)


def _deep_schedule(target: Target, m: int, n: int, groups: int) -> Schedule:
    """Few channels and many taps, as where an image is cut into patches: to fetch the rows takes
    longer than to multiply them. Where there are few blocks, small ones fetch side by side."""
    count = ceildiv(m, 64) * ceildiv(n, 64) * groups
    rows, columns = (64, 64) if count >= target.units else (16, 32)
    return blocks_of(
        stages=3, reason=f"gathered; {count} blocks of 64x64 on {target.units} processors",
        m=rows, n=columns, k=64,
    )  # fmt: skip


def direct_schedule(target: Target, m: int, n: int, row: int, products: int) -> Schedule:
    """Blocks of a convolution without a matmul: see `DirectConvRule`."""
    m, n = block_of(m, 1 << 20), block_of(n, 1 << 20)
    width = min(power_of_two(n), 64)
    return blocks_of(m=min(power_of_two(m), 1024 // width), n=width)
