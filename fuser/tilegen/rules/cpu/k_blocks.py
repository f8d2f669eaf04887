"""Where a CPU matmul takes k in blocks (emit/deep.py), and what a program of it spans."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.schedule import Schedule

DEEP_ROWS = 128
"""Rows of a program that takes k in blocks, at most."""
DEEPEST = 1024
SHALLOWEST = 256
"""Steps of such a block of k at most and at least: partial sums are added once a block."""
AS_GOOD = 1.01
"""Of two spans whose costs differ by less, the one of more programs: it suits more threads, too."""


def deep_schedule(
    target: Target, m: int, n: int, k: int, bits: int, batch: int, plain: Schedule
) -> Schedule:
    """A CPU matmul of weights whose rows do not stay in L2 beside two panels: k in blocks, with
    (row tiles, panels) of a program as `k_panels`. `plain` where k cannot be cut.

    The blocks of k decide the bits of the result, so they do not depend on the threads.
    """
    if is_symbolic(m, n, k, batch):
        return plain
    rows, columns = plain.block("m"), plain.block("n")
    most = target.l2_bytes * 3 // 10 // (min(m, DEEP_ROWS) * bits // 8)  # beside two panels
    if k <= most:
        return plain
    fewest = ceildiv(k, min(DEEPEST, most)) if most else k
    parts = next((p for p in range(fewest, k // SHALLOWEST + 1) if k % p == 0), 1)
    if parts < 2:
        return plain
    span = span_of(ceildiv(m, rows), ceildiv(n, columns), rows, batch, target.workers)
    return replace(
        plain, blocks=(("m", rows), ("n", columns), ("k", k // parts)), group=0,
        reason="blocks of k, whose rows stay in L2", k_panels=span,
    )  # fmt: skip


def span_of(tiles: int, panels: int, rows: int, batch: int, workers: int) -> tuple[int, int]:
    """(row tiles, panels) of a program of a matmul of `tiles` of `rows` rows and of `panels`, with
    which as many threads as `workers` end the soonest.

    Rows come from beyond L2 for the first panel of a program, which takes a tenth longer; weights
    for all of its rows, which few rows wait for (SWEPT_ROWS of matmul.py has the figures).
    """
    down = max(1, round(tiles * rows / DEEP_ROWS))
    down = min(range(down, down + 2), key=lambda d: ceildiv(tiles, d) * d)
    heights = dict.fromkeys(ceildiv(tiles, min(tiles, down * cut)) for cut in range(1, 5))
    widths = dict.fromkeys(ceildiv(panels, across) for across in range(1, panels + 1))
    found: list[tuple[float, int, tuple[int, int]]] = []
    for high in heights:
        for wide in widths:
            count = batch * ceildiv(tiles, high) * ceildiv(panels, wide)
            slower = (1 + 0.1 / wide) * (1 + 0.05 * (64 / (high * rows)) ** 2)
            found.append((ceildiv(count, workers) * high * wide * slower, count, (high, wide)))
    least = min(cost for cost, _, _ in found)
    good = [item for item in found if item[0] <= AS_GOOD * least]
    return max(good, key=lambda item: (item[1], -item[0]))[2]
