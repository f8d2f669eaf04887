"""Schedules of matmuls on a GPU: tiles, stages, and how blocks share the work."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import DotUnit, Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.rules.common import (
    FEW_ROWS,
    MOST_SYMBOLIC_DEPTH,
    NARROWEST,
    STREAMED,
    WIDEST,
    block_of,
    blocks_of,
    ceildiv,
)
from fuser.tilegen.rules.gpu.cluster_split_k import split_schedule
from fuser.tilegen.rules.gpu.multicast import crooked_schedule
from fuser.tilegen.rules.gpu.one_wave import SHORT, stream_schedule, warps_of
from fuser.tilegen.rules.gpu.ping_pong import ping_pong_schedule
from fuser.tilegen.rules.gpu.stream_k import parts_schedule
from fuser.tilegen.rules.gpu.tiles import deep_stages, gpu_tile
from fuser.tilegen.schedule import Schedule


def dot_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int = 1, batch: int = 1,
    unit: DotUnit | None = None, *, streamed: bool = True, folded: bool = True,
    crooked: tuple[bool, bool] = (False, False), codes: bool = False, packed: bool = False,
    panel: int = 0, decoded: int = 0,
) -> Schedule:  # fmt: skip
    """Blocks of a matmul: see `MatmulRule`."""
    if panel:
        return _thin_schedule(
            target, size_hint(m), size_hint(n), size_hint(k), accumulators, size_hint(batch),
            panel=panel,
        )  # fmt: skip
    if codes:
        return _code_schedule(target, m, n, k, accumulators, batch, streamed)
    schedule = _dot_schedule(
        target, m, n, k, bits, accumulators, batch, streamed=streamed, folded=folded,
        packed=packed, decoded=decoded,
    )  # fmt: skip
    fixed = not is_symbolic(m, n, k, batch)
    if streamed and bits == 16 and target.wgmma and fixed and m > 16 and k > 64:
        cuts = not folded and accumulators == 1
        schedule = stream_schedule(target, m, n, k, accumulators, batch, schedule, cuts)
    if not (streamed and bits == 16 and any(crooked)) or is_symbolic(m, n, k):
        return schedule
    if not target.wgmma or schedule.cluster > 1 or schedule.block("m") < 64:
        return schedule
    return crooked_schedule(target, schedule, m, n, k, accumulators, batch, crooked)


def _dot_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int, batch: int, *,
    streamed: bool, folded: bool, packed: bool = False, decoded: int = 0,
) -> Schedule:  # fmt: skip
    if bits == 8:
        return _narrow_schedule(target, m, n, k, accumulators, batch, streamed, folded)
    whole, fixed = folded or is_symbolic(k), not is_symbolic(m, n, k, batch)
    # asked of a symbol, so that it holds for all sizes that the kernel is for
    half_a_tile = decoded > 0 and size_hint(m) <= FEW_ROWS and m <= HALF_A_TILE
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    k = block_of(k, MOST_SYMBOLIC_DEPTH) if is_symbolic(k) else k
    half = bits == 16
    thin = batch * ceildiv(n, NARROWEST) >= THIN_SHARE * target.units
    if half and m <= FEW_ROWS and k >= STREAMED and thin:
        if decoded:
            rows = HALF_A_TILE if half_a_tile else 2 * HALF_A_TILE
            return _decoded_schedule(target, rows, n, k, accumulators, batch, decoded)
        packed = packed and target.wgmma
        return _thin_schedule(target, m, n, k, accumulators, batch, packed=packed)
    if bits == 32 and streamed and target.wgmma and accumulators == 1 and k >= 64:
        wide = _wide_schedule(target, m, n, batch)
        if wide is not None:
            return wide
    rows, columns, waves, reason = gpu_tile(target, m, n, bits, accumulators, batch)
    narrow = ceildiv(n, NARROWEST) * batch
    pair = bits == 32 and accumulators > 1 and (rows, columns) == (16, 2 * NARROWEST)
    if pair and m <= FEW_ROWS and narrow <= target.units:
        # as many blocks as one accumulator has: each multiprocessor receives only so much
        columns, reason = NARROWEST, f"{narrow} blocks stream the right operand"
    if half and streamed and target.wgmma and accumulators == 1 and fixed and k >= TALL_DEPTH:
        tall = gpu_tile(
            target, m, n, bits, 1, batch, most=TALL[0] * TALL[1], more=(TALL,)
        )  # fmt: skip
        if tall[:3] == (*TALL, 1):
            rows, columns, waves, reason = tall
    if half and streamed and waves == 1 and accumulators == 1 and not whole:
        shared = parts_schedule(target, m, n, k, batch) if fixed else None
        shared = shared or split_schedule(target, m, n, k, batch)
        if shared is not None:
            return shared
    if half and streamed and target.wgmma and k >= 128:
        plain = rows, columns, waves
        paired = ping_pong_schedule(target, m, n, k, accumulators, batch, plain, fixed)
        if paired is not None:
            return paired
    if bits == 32 and accumulators == 1 and (rows, columns) == (64, 64):
        taller = ceildiv(m, 128) * ceildiv(n, 64) * batch
        if m % 128 == 0 and taller >= 2 * target.units:
            # splitting float32 into two parts costs an instruction a row and a column of a warp
            rows, reason = 128, f"{taller} blocks on {target.units} processors"
    depth = 64 if half else 32 if bits < 64 else 16
    while depth > 16 and depth >= 2 * k:
        depth //= 2
    if half and not streamed and 64 < k <= 256:
        # elements are copied one by one: as few as possible beyond the last
        depth = min((64, 48, 32), key=lambda deep: ceildiv(k, deep) * (deep + 16))
    short = half and streamed and target.wgmma and waves == 1 and k < SHORT
    warps = warps_of(rows * columns * accumulators, accumulators, short=short)
    stages = 4 if half else 3
    if half and waves == 1 and rows + columns * accumulators <= 192:
        lines = rows + columns * accumulators
        stages = deep_stages(lines, depth, ceildiv(k, depth), 216 << 10, 18)
    return blocks_of(
        warps=warps, stages=stages, group=8 if batch == 1 else 0, reason=reason,
        m=rows, n=columns, k=depth,
    )  # fmt: skip


def _narrow_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, streamed: bool,
    folded: bool,
) -> Schedule:  # fmt: skip
    """Operands of 8 bits: as many bytes of k as the 16-bit matmul of half the depth, at twice its
    rate in everything."""
    half = dot_schedule(
        target, m, n, -(-k // 2), 16, accumulators, batch, streamed=streamed, folded=folded
    )
    blocks = tuple((name, size * 2 if name == "k" else size) for name, size in half.blocks)
    return replace(half, blocks=blocks)


def _code_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, streamed: bool
) -> Schedule:
    """8-bit floats: sums of a step of k are apart from those so far, which takes twice the
    registers."""
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    rows, columns, waves, reason = gpu_tile(target, m, n, 16, accumulators, batch, most=CODE_TILE)
    depth = 128
    while depth > 32 and depth >= 2 * size_hint(k):
        depth //= 2
    schedule = blocks_of(
        warps=8 if rows * columns * accumulators >= CODE_TILE else 4, stages=4,
        group=8 if batch == 1 else 0, reason=reason, m=rows, n=columns, k=depth,
    )  # fmt: skip
    return replace(schedule, persistent=streamed and waves > 1 and target.wgmma)


CODE_TILE = 128 * 128
"""The largest tile of matmuls of 8-bit floats, in elements of all accumulators."""


def _wide_schedule(target: Target, m: int, n: int, batch: int) -> Schedule | None:
    """float32 on asynchronous tensor cores: a warp group with 64 rows, two blocks a multiprocessor.
    None where there are too few of them."""
    if ceildiv(m, 64) * ceildiv(n, 64) * batch < target.units:
        return None
    count = {c: ceildiv(m, 64) * ceildiv(n, c) * batch for c in (96, 64)}

    def cost(columns: int) -> int:
        return ceildiv(count[columns], 2 * target.units) * (64 * columns + 24 * (64 + columns))

    columns = min(count, key=cost)
    schedule = blocks_of(
        stages=3 if columns > 64 else 4, group=8 if batch == 1 else 0,
        reason=f"{count[columns]} blocks, two of them on each of {target.units} processors",
        m=64, n=columns, k=32,
    )  # fmt: skip
    return replace(schedule, tf32x3=True)


def _thin_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, *,
    packed: bool = False, panel: int = 0,
) -> Schedule:  # fmt: skip
    """Few rows: the time is that of streaming the right operand, so what counts is how many bytes
    are under way, and that they lie together in memory. packed: they do, whatever the columns: as
    few of them as give each multiprocessor a block. Else blocks as wide as leaves most
    multiprocessors one. Where there are more blocks than those, several on each hide each other.
    panel: the columns, where these are given."""
    wide = ((c, WIDE_SHARE if c > 32 else THIN_SHARE) for c in (128, 64, 32))
    even = target.one_wave_columns(batch * n)
    one_wave = (packed and even * accumulators <= WIDEST) or panel > 0
    columns = panel or even if one_wave else next((
        c for c, share in wide
        if c * accumulators <= WIDEST and batch * ceildiv(n, c) >= share * target.units
    ), NARROWEST)  # fmt: skip
    blocks = batch * ceildiv(n, columns)
    depth = min(256, max(64, THIN_STAGE // (columns * accumulators)))
    if one_wave:
        depth = 256 if columns * accumulators <= 64 else 128
    stage, trips = (16 + columns * accumulators) * depth * 2, ceildiv(k, depth)
    if blocks <= target.units:
        ring = THIN_RING_LONG if trips * stage > THIN_RING_LONG else THIN_RING
    else:
        paired = PAIRED_SHARE * target.units <= blocks <= 2 * target.units
        ring = THIN_RING_PAIRED if paired else THIN_RING_SHARED
    return blocks_of(
        stages=max(2, min(ring // stage, trips)),
        group=8 if batch == 1 else 0, reason=f"{blocks} narrow blocks stream the right operand",
        m=16, n=columns, k=depth,
    )  # fmt: skip


def _decoded_schedule(
    target: Target, rows: int, n: int, k: int, accumulators: int, batch: int, bits: int
) -> Schedule:
    """Few rows times weights that threads decode: the time is that of the codes, which travel to
    registers an iteration ahead (passes/prefetch_loads.py). What counts is how many are under way:
    blocks as wide as gives most multiprocessors one, and as much of k an iteration as a thread has
    registers for. Warps share k."""
    columns = next((
        c for c in (64, 32) if batch * ceildiv(n, c) >= DECODED_SHARE * target.units
    ), NARROWEST)  # fmt: skip
    least = DECODED_WARPS * 4 * (32 // bits)
    deepest = min(k // 2, DECODED_BYTES * 8 // bits // (columns * accumulators))
    deepest = max(1, deepest // least)
    depth = next((d for d in range(deepest, 0, -1) if k % (d * least) == 0), deepest) * least
    stage, trips = depth * 2 * rows, ceildiv(k, depth)
    blocks = batch * ceildiv(n, columns)
    schedule = blocks_of(
        warps=DECODED_WARPS, stages=max(2, min(DECODED_RING // stage, trips, 3)),
        group=8 if batch == 1 else 0, reason=f"{blocks} blocks decode {bits} bits an element",
        m=rows, n=columns, k=depth,
    )  # fmt: skip
    # what does not run at once with its neighbours runs beside one of them
    return replace(schedule, blocks_per_sm=2) if blocks > target.units else schedule


HALF_A_TILE = 8
"""Rows of a left operand up to which the other half of what an instruction takes is nothing."""
DECODED_WARPS, DECODED_SHARE = 8, 0.9
"""Warps of a block of few rows of codes; and of the multiprocessors, that have a block."""
DECODED_BYTES, DECODED_RING = 24 << 10, 96 << 10
"""Of codes of an iteration, 24 registers of each thread; of the stages of what they multiply."""
TALL, TALL_DEPTH = (192, 192), 1024
"""(rows, columns) of three warp groups, for matmuls that are one wave of it, and the steps of k
from which on its epilogue, which nothing hides, is a small part. 32 x 197 rows by 768 columns are
132 tiles: 44.8 to 42.4 us for a k of 3072, 14.1 to 14.8 for one of 768 (docs/lab/gpu-models.md)."""
THIN_SHARE, WIDE_SHARE = 0.45, 0.65
"""Of the multiprocessors, that have a block of few rows at least: 64 of 132 read memory as fast in
blocks of 32 columns as 128 of them in blocks of 16, but not in blocks of 64 columns."""
THIN_STAGE = 8192
"""Elements of the right operand in a stage."""
THIN_RING, THIN_RING_LONG, THIN_RING_SHARED = 128 << 10, 200 << 10, 72 << 10
"""Bytes of stages of a block that has a multiprocessor for itself, of one whose k is longer than
all of that holds, and of one of three there. Room for all of a short k leaves none for the kernel
behind, and is slower."""
PAIRED_SHARE, THIN_RING_PAIRED = 1.4, 110 << 10
"""Blocks for each multiprocessor from which on most have two, which then share all of its memory:
250 blocks behind a norm 43.3 to 39.3 us; 160 of them are 5 % slower so (docs/lab/gpu-decode.md)."""
