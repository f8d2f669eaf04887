"""Schedules of matmuls whose tiles fill no whole waves of a GPU's multiprocessors: ping-pong
warp groups, parts of k of several blocks (stream-K), of the blocks of a cluster (split-K)."""

from __future__ import annotations

from dataclasses import replace

from fuser.target import Target
from fuser.tilegen.cuts import MOST_PARTS, Cut, cut_tiles
from fuser.tilegen.rules import blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule

PING_PONG_TILES = ((128, 128), (64, 256), (64, 192), (128, 64), (64, 128), (64, 64))
"""(rows, columns) of a dot of one of two ping-pong warp groups."""
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


def ping_pong_schedule(
    target: Target, m: int, n: int, k: int, accumulators: int, batch: int,
    plain: tuple[int, int, int], fixed: bool, *, least: int = 12288, widest: int = 256,
    each: float = 0, alone: float = 1.0,
) -> Schedule | None:  # fmt: skip
    """Two ping-pong warp groups, in a block a multiprocessor that runs program after program:
    what follows the matmuls of one is hidden behind those of the other, and so are their loads.
    Where sizes are fixed, the tiles left over behind whole waves are cut if that takes less time.
    None where `plain`, (rows, columns, waves) of one program a block, takes less. least: the
    smallest tile, in elements of all accumulators; widest: the most columns. each: what a wave
    takes besides, in multiply-adds of all steps of k. alone: how much longer `plain` takes where
    it is one wave.

    Costs are multiply-adds of a step of k. What is left to wait for at the end takes the time of
    some 200 steps of the last tile; a line of an operand that of 12 elements. From an H200.
    """

    def wave_of(rows: int, columns: int) -> tuple[float, float]:
        """What a wave costs, and its end."""
        tile, lines = rows * columns * accumulators, rows + columns * accumulators
        return tile + 12 * lines, tile * 200 / k

    best: tuple[float, int, int, int, bool] | None = None
    for rows, columns in PING_PONG_TILES:
        wide = columns * accumulators
        if wide > widest or not least <= rows * wide <= 16384:
            continue
        count = ceildiv(m, rows) * ceildiv(n, columns) * batch
        if count <= target.units:
            continue
        wave, end = wave_of(rows, columns)
        time = ceildiv(count, target.units) * (wave + each / k) + end
        cut = cut_of(count, k, target.units) if fixed else None
        shared = False
        if cut is not None:
            other = count // target.units * (wave + each / k) + cut_cost(wave, cut, k) + end
            shared = other < LEAST_GAIN * time
            time = other if shared else time
        if best is None or time < best[0]:
            best = (time, rows, columns, count, shared)
    rows, columns, waves = plain
    wave, end = wave_of(rows, columns)
    begun = 2048 * waves if waves > 1 else 0
    single = waves * (wave + end) * (alone if waves == 1 else 1)
    if best is None or best[0] > single + begun:
        return None
    _, rows, columns, count, shared = best
    done = "cut and whole, by" if shared else "on"
    return replace(
        blocks_of(
            warps=4, stages=4, group=8 if batch == 1 else 0,
            reason=f"{count} programs {done} {target.units} processors, two teams in turns",
            m=rows, n=columns, k=DEPTH,
        ),
        persistent=True, stream_k=int(shared), extra={"teams": 2},
    )  # fmt: skip


def parts_schedule(target: Target, m: int, n: int, k: int, batch: int) -> Schedule | None:
    """A matmul of few tiles and a long k, of 16-bit operands: two to four blocks do a part of a
    tile each. None where tiles are so few that more blocks could, those of a cluster, or parts so
    short that their sums would take longer than what they save. From an H200."""
    if target.arch != "sm_90a":
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


def split_schedule(target: Target, m: int, n: int, k: int, batch: int) -> Schedule | None:
    """A matmul of few tiles and a long k, of 16-bit operands: the blocks of a cluster take a part
    of k each, as many as run at once. None where there are tiles enough, where the sums of parts
    would take longer than what they save (about 2 us on an H200), or without clusters."""
    tiles = ceildiv(m, 64) * ceildiv(n, 64) * batch
    cluster = next((c for c in (8, 4, 2) if tiles * c <= target.units), 1)
    if target.arch != "sm_90a" or cluster == 1 or k < SPLIT_DEPTH:
        return None
    schedule = blocks_of(
        stages=min(6, k // 64 // cluster), group=8 if batch == 1 else 0,
        reason=f"{tiles} tiles, each of a cluster of {cluster} blocks that share k",
        m=64, n=64, k=64,
    )  # fmt: skip
    return replace(schedule, cluster=cluster)


SPLIT_DEPTH = 2048
"""The least k that is shared by the blocks of a cluster."""
