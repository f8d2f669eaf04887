"""Schedules of matmuls that a GPU does in one wave, most of whose time is to bring operands: few
rows, and weights that are read once.

What a block asks for comes at some rate to each multiprocessor, whatever part of it is in the L2,
and not faster than what is under way in a time of latency. Larger tiles ask for less; tiles that
leave multiprocessors idle ask too few of them. Sums of shared tiles take their time. All costs are
microseconds, with constants measured on an H200 (docs/lab/gpu-one-wave.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuser.base.target import HOPPER, Target
from fuser.tilegen.rules.common import blocks_of, ceildiv
from fuser.tilegen.rules.gpu.stream_k import LONG_PART, PART_DEPTH
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.stream_k import MOST_PARTS

START = 2.0
"""Microseconds in which a kernel starts, fills its pipeline and stores its results."""
LATENCY = 1.05
"""Microseconds until bytes that were asked for are there."""
ABSENT = 3
"""What a row of zeros costs, in rows that are there: the copy engine writes it slowly."""
LEAST_GAIN, LEAST_GAIN_OF_PARTS = 0.94, 0.8
"""Of the time of another schedule, what a better one may be reckoned to take."""
LEAST_SAVED = 0.5
"""Microseconds: what costs leave out of a small kernel counts as much."""
LEAST_DEPTH = 512
"""Steps of k below which most of the time is the start."""
ITERATION = 64
"""Steps of k of a stage."""
RING = 216 << 10
"""Bytes of stages of all blocks of a multiprocessor."""
MOST_STAGES = 18
TILES = ((64, 64), (64, 128), (64, 192), (128, 64), (128, 128), (128, 192))
"""(rows, columns of all accumulators) of a block."""
NARROW = (64, 32)
"""One more where k is short: lines of 64 bytes come slowly where weights stream for long."""
SHORT = 1024
"""Steps of k below which the epilogue is a large part."""
SHARED_TILE = 64 * 128
"""Elements of a tile of one accumulator whose epilogue two warp groups share then. 64x192 is
slower by two (GPT-2 0.446 to 0.532 ms, docs/lab/gpu-models.md); why is not known. Two accumulators
have too few columns each: their dots would not be wgmma (128x3072x768, a gate: 5.3 to 8.0 us)."""


def stream_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, plain: Schedule,
    parts: bool,
) -> Schedule:  # fmt: skip
    """`plain`, or a schedule of a 16-bit matmul on Hopper that takes clearly less time: with other
    tiles, more stages, or, where tiles may be cut (`parts`), of several blocks each."""
    if plain.persistent or plain.neighbours != (1, 1) or k < LEAST_DEPTH:
        return plain
    cost = _cost(target, m, n, k, accumulators, batch, plain)
    best: tuple[float, Schedule] = (1.0, plain)
    for option in _options(target, m, n, k, accumulators, batch, parts):
        time = _cost(target, m, n, k, accumulators, batch, option)
        if cost - time < LEAST_SAVED:
            continue
        least = LEAST_GAIN_OF_PARTS if option.stream_k > plain.stream_k else LEAST_GAIN
        if time < least * cost and time / cost < best[0]:
            best = time / cost, option
    return best[1]


def warps_of(tile: int, accumulators: int, *, short: bool) -> int:
    """Warps that compute a tile of so many elements of all accumulators. short: a block has one
    tile, of a short k."""
    if tile > 128 * 256:
        return 12
    shared = short and tile == SHARED_TILE and accumulators == 1
    return 8 if tile >= 128 * 128 or shared else 4


def _options(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, parts: bool
) -> Iterator[Schedule]:
    iterations = ceildiv(k, ITERATION)
    for rows, wide in (NARROW, *TILES) if k < SHORT else TILES:
        columns = wide // accumulators
        if columns % 32 or (rows > 64 and m <= 64):
            continue
        tiles = _tiles(m, n, batch, rows, columns)
        most = min(MOST_PARTS, target.units // tiles) if parts else 1
        least = PART_DEPTH if rows * wide <= 64 * 64 else LONG_PART
        for count in (1, most) if most > 1 and k >= least * most else (1,):
            waves = ceildiv(tiles * count, target.units)
            stages = min(
                RING // waves // ((rows + wide) * ITERATION * 2), MOST_STAGES, iterations // count
            )
            if waves > 2 or stages < 4:
                continue
            words = f", each of {count} blocks that share k" if count > 1 else ""
            schedule = blocks_of(
                warps=warps_of(rows * wide, accumulators, short=k < SHORT), stages=stages,
                group=8 if batch == 1 else 0, reason=f"{tiles} tiles stream operands{words}",
                m=rows, n=columns, k=ITERATION,
            )  # fmt: skip
            yield replace(schedule, stream_k=int(count > 1))


def _tiles(m: int, n: int, batch: int, rows: int, columns: int) -> int:
    return ceildiv(m, rows) * ceildiv(n, columns) * batch


def _cost(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int, schedule: Schedule
) -> float:
    """Microseconds of a schedule of one program, or a part of one, a block."""
    rows, columns, depth = (schedule.block(name) for name in ("m", "n", "k"))
    tiles, lines = _tiles(m, n, batch, rows, columns), columns * accumulators
    blocks = schedule.cluster
    sums = HOPPER.cluster_sums if blocks > 1 else 0.0
    if schedule.stream_k:
        blocks = max(1, min(target.units // tiles, MOST_PARTS))
        sums = _sums(rows * lines, blocks)
    waves = ceildiv(tiles * blocks, target.units)
    # zeros: of the last tile, unless it is the only one (backend/nvptx/memory/tensor_map.py), or
    # threads write them
    over = -m % rows if m > rows >= 64 else 0
    asked = (min(rows, m) + lines) * depth * 2
    each = ceildiv(ceildiv(k, depth), blocks)
    rate = HOPPER.copied if rows >= 64 else HOPPER.copied_by_threads
    waited = (asked + (ABSENT - 1) * over * depth * 2) / rate
    if each > schedule.stages:
        waited = max(waited, LATENCY / (waves * (schedule.stages - 1)))
    iterations = waves * each
    once = (m * k + accumulators * n * k + m * n) * batch * 2 / target.bandwidth * 1e6
    busy = rows * lines * depth / HOPPER.multiply_adds
    return START + max(once, iterations * max(waited, busy)) + sums


def _sums(tile: int, blocks: int) -> float:
    """Microseconds in which sums of blocks that share a tile of so many elements are added up."""
    return 1 + tile / 8192 * (1.1 + 0.6 * (blocks - 1)) if blocks > 1 else 0.0
