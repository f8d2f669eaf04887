"""Schedules of matmuls whose rows begin off the sectors of the L2: requests to it limit them, so
that pairs of programs load for each other what they share (multicast)."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.rules.gpu.ping_pong import PING_PONG_TILES
from fuser.tilegen.rules.gpu.stream_k import LEAST_GAIN, cut_cost, cut_of
from fuser.tilegen.schedule import Schedule

LINES = (24, 142)
"""What a line of a tile costs that is requested from the L2, in multiply-adds of a step of k: one
that begins at its sectors of 32 bytes, and one that does not. Of requests and matmuls the longer
takes its time, the other three tenths. From an H200: it answers 52 of the latter kind in a ns."""
CLUSTER_START = 2.6e6
"""What starting blocks in pairs costs, 0.7 us, in multiply-adds of all steps of k."""


def crooked_schedule(
    target: Target, plain: Schedule, m: int, n: int, k: int, accumulators: int, batch: int,
    crooked: tuple[bool, bool],
) -> Schedule:  # fmt: skip
    """A matmul that requests to the L2 may limit: pairs of programs load for each other what they
    share, where that costs less, and tiles may be larger. Larger clusters leave multiprocessors
    idle. plain: what would be best without."""
    options = [plain]
    if k >= 128:
        paired = replace(plain, warps=4, stages=4, persistent=True, consumer_groups=2)
        pairs = [(r, c) for r, c in PING_PONG_TILES if 12288 <= r * c * accumulators <= 16384]
        options += [_with_tile(paired, r, c) for r, c in pairs if c * accumulators <= 256]
        if accumulators == 1:
            single = replace(plain, warps=8, stages=4, persistent=True, consumer_groups=1)
            options.append(_with_tile(single, 128, 256))
    best: tuple[float, Schedule] | None = None
    for option in options:
        rows, columns = option.block("m"), option.block("n")
        grid = ceildiv(m, rows), ceildiv(n, columns)
        count = grid[0] * grid[1] * batch
        if option is not plain and count <= target.units:
            continue
        tile, lines = rows * columns * accumulators, (rows, columns * accumulators)
        is_ping_pong = option.consumer_groups > 1
        busy = (tile + 12 * sum(lines)) * (1.06 if option.persistent and not is_ping_pong else 1)
        for shape in ((1, 1), (2, 1), (1, 2)):
            if grid[0] % shape[0] or grid[1] % shape[1]:
                continue
            # blocks along the rows share the columns
            asked = LINES[crooked[0]] * lines[0] / shape[1]
            asked += LINES[crooked[1]] * lines[1] / shape[0]
            wave = max(busy, asked) + 0.3 * min(busy, asked)
            together = shape[0] * shape[1]
            groups, blocks = count // together, target.units // together
            cut = cut_of(groups, k, blocks) if option.persistent else None
            for shared in (0, 1) if cut is not None else (0,):
                whole = groups // blocks if shared else ceildiv(groups, blocks)
                cost = whole * wave + (1 if is_ping_pong else whole + shared) * tile * 200 / k
                if shared:
                    assert cut is not None
                    cost = (cost + cut_cost(wave, cut, k)) / LEAST_GAIN
                cost += CLUSTER_START / k if together > 1 else 0
                if best is None or cost < best[0]:
                    best = (cost, replace(option, neighbours=shape, stream_k=shared))
    assert best is not None
    return best[1]


def _with_tile(schedule: Schedule, rows: int, columns: int) -> Schedule:
    """A matmul's schedule with other blocks, for rows that are requested a few at a time."""
    return replace(
        schedule, blocks=(("m", rows), ("n", columns), ("k", 64)),
        reason="rows begin off the sectors of L2, whose requests count",
    )  # fmt: skip
