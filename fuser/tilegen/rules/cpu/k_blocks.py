"""Where a CPU matmul takes k in blocks (emit/deep.py), and what a program of it spans."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.rules.common import ceildiv
from fuser.tilegen.rules.cpu.cost import cost
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

DEEP_ROWS = 128
"""Rows of a program that takes k in blocks, at most."""
DEEPEST = 1024
SHALLOWEST = 256
"""Steps of such a block of k at most and at least: partial sums are added once a block."""
AS_GOOD = 1.01
"""Of two spans whose costs differ by less, the one of more programs: it suits more threads, too."""


def deep_schedule(target: Target, problem: Problem, plain: Schedule) -> Schedule:
    """A CPU matmul of weights whose rows do not stay in L2 beside two panels: k in blocks, with
    (row tiles, panels) of a program as `k_panels`. `plain` where k cannot be cut.

    The blocks of k decide the bits of the result, so they do not depend on the threads.
    """
    p = problem
    if is_symbolic(p.m, p.n, p.k, p.batch):
        return plain
    rows, columns = plain.block("m"), plain.block("n")
    most = target.l2_bytes * 3 // 10 // (min(p.m, DEEP_ROWS) * p.bits // 8)  # beside two panels
    if p.k <= most:
        return plain
    fewest = ceildiv(p.k, min(DEEPEST, most)) if most else p.k
    parts = next((c for c in range(fewest, p.k // SHALLOWEST + 1) if p.k % c == 0), 1)
    if parts < 2:
        return plain
    deep = replace(
        plain, blocks=(("m", rows), ("n", columns), ("k", p.k // parts)), group=0,
        reason="blocks of k, whose rows stay in L2",
    )  # fmt: skip
    return replace(deep, k_panels=span_of(target, p, deep))


def span_of(target: Target, problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """(row tiles, panels) of a program, with which as many threads as there are end the soonest;
    of those about as good the one of the most programs.

    Rows come from beyond L2 for the first panel of a program; weights for all of its rows, which
    few rows wait for (SWEPT_ROWS of matmul.py has the figures).
    """
    rows = schedule.block("m")
    tiles, panels = ceildiv(problem.m, rows), ceildiv(problem.n, schedule.block("n"))
    down = max(1, round(tiles * rows / DEEP_ROWS))
    down = min(range(down, down + 2), key=lambda d: ceildiv(tiles, d) * d)
    heights = dict.fromkeys(ceildiv(tiles, min(tiles, down * cut)) for cut in range(1, 5))
    widths = dict.fromkeys(ceildiv(panels, across) for across in range(1, panels + 1))
    found = {
        (high, wide): cost(target, problem, replace(schedule, k_panels=(high, wide)))
        for high in heights for wide in widths
    }  # fmt: skip
    least = min(found.values())
    good = [span for span in found if found[span] <= AS_GOOD * least]

    def programs(span: tuple[int, int]) -> int:
        return problem.batch * ceildiv(tiles, span[0]) * ceildiv(panels, span[1])

    return max(good, key=lambda span: (programs(span), -found[span]))
