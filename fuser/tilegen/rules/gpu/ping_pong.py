"""Schedules of matmuls by two ping-pong warp groups in persistent blocks."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import blocks_of, ceildiv
from fuser.tilegen.rules.gpu.stream_k import DEPTH, LEAST_GAIN, cut_cost, cut_of
from fuser.tilegen.schedule import Schedule

PING_PONG_TILES = ((128, 128), (64, 256), (64, 192), (128, 64), (64, 128), (64, 64))
"""(rows, columns) of a dot of one of two ping-pong warp groups."""


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
        persistent=True, stream_k=int(shared), consumer_groups=2,
    )  # fmt: skip
