"""Schedules that may be faster than the one of the rules, for tuning (pipeline/tuning.py): a few of
a kernel, the likeliest first.

Matmuls are ranked by the cost by which the rules choose (rules/cost.py), so that what is tried are
the schedules between which the rules had to choose. Of other kernels it is the neighbours: one
block size, the warps or the stages twice or half what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen import ops
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules.cost import cost
from fuser.tilegen.rules.cpu.k_blocks import deep_schedule
from fuser.tilegen.rules.cpu.matmul import candidates as cpu_candidates
from fuser.tilegen.rules.gpu.matmul import candidates as gpu_candidates
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

MAX_CANDIDATES = 8
"""Candidates of a kernel beside the schedule of the rules."""
MOVABLE = ("rows", "columns", "m", "n")
"""Blocks that may have any size: others must hold a whole row, or follow the layout of weights."""
MAX_OF_A_TILE = 2
"""Candidates of a tile of a matmul."""
MIN_TILE_ROWS = 16
"""Of a tile that tensor cores multiply."""


def candidates(
    program: TileProgram, target: Target, problem: Problem | None = None, most: int = MAX_CANDIDATES
) -> list[Schedule]:
    """At most `most` schedules for a program, without its own, the likeliest first. They may not
    fit the region or the target: emission and compilation say so."""
    return [schedule for schedule, _ in ranked(program, target, problem, most)[1:]]


def ranked(
    program: TileProgram, target: Target, problem: Problem | None = None, most: int = MAX_CANDIDATES
) -> list[tuple[Schedule, float | None]]:
    """The schedule of a program, then its `candidates`, each with its cost in microseconds
    (rules/cost.py); None where kernels of the kind have none."""
    own = program.kernel.schedule
    known = problem is not None and not (target.is_cuda and problem.bits > 32)
    found = _of_problem(target, problem, own, most) if problem is not None and known else []
    chained = program.region.kind == "attention"
    dots = any(isinstance(op, ops.Dot) for op in program.kernel.walk())
    found += _neighbours(own, target, chained=chained, dots=dots)
    table = {_key(schedule): schedule for schedule in reversed(found)}
    table.pop(_key(own), None)
    chosen = [own, *[*reversed(table.values())][:most]]
    return [
        (schedule, cost(target, problem, schedule) if problem is not None and known else None)
        for schedule in chosen
    ]


def _of_problem(target: Target, problem: Problem, own: Schedule, most: int) -> list[Schedule]:
    """The legal schedules of least cost, most of what is tried: among them the best of each way of
    sharing the work, and of each tile at most two."""
    if target.is_cuda:
        options = list(gpu_candidates(target, problem))
    else:
        options = cpu_candidates(target, problem)
        if own.k_panels is not None:
            options = [deep_schedule(target, problem, option) for option in options]
    options = [option for option in options if _key(option) != _key(own)]
    options.sort(key=lambda option: cost(target, problem, option))
    ways = {_way(option): option for option in reversed(options)}
    tiles: Counter[tuple[int, int]] = Counter()
    rest = []
    for option in options:
        tile = option.block("m"), option.block("n")
        tiles[tile] += 1
        if tiles[tile] <= MAX_OF_A_TILE and ways[_way(option)] is not option:
            rest.append(option)
    found = [*ways.values(), *rest][: most * 3 // 4]
    found.sort(key=lambda option: cost(target, problem, option))
    return [replace(option, reason="tuned") for option in found]


def _way(schedule: Schedule) -> tuple[object, ...]:
    """How blocks share the work."""
    s = schedule
    return s.persistent, s.consumer_groups, s.stream_k > 0, s.cluster > 1, s.neighbours, s.tf32x3


def _key(schedule: Schedule) -> tuple[object, ...]:
    return (schedule.blocks, repr(replace(schedule, reason="")))


def _neighbours(own: Schedule, target: Target, *, chained: bool, dots: bool) -> Iterator[Schedule]:
    """One thing of a schedule twice, or half, what it is."""
    plain = replace(own, reason="tuned")
    for name, size in own.blocks:
        if name not in MOVABLE:
            continue
        least = MIN_TILE_ROWS if dots and target.is_cuda else 1
        for other in (size * 2, size // 2 if size % 2 == 0 else 0):
            if other < least:
                continue
            blocks = tuple((n, other if n == name else s) for n, s in own.blocks)
            warps = own.warps
            if target.is_cuda and chained and name == "m":  # a warp has 16 rows of scores
                warps = max(1, own.warps * other // size)
            yield replace(plain, blocks=blocks, warps=warps, neighbours=(1, 1))
    if target.is_cuda:
        if not chained:
            for warps in (own.warps * 2, own.warps // 2):
                if 1 <= warps <= 16 and own.consumer_groups == 1:
                    yield replace(plain, warps=warps)
        for stages in (own.stages + 1, own.stages - 1):
            if own.stages > 1 and stages >= 1:
                yield replace(plain, stages=stages)
    elif own.group:
        for group in (0, own.group * 2, own.group // 2):
            yield replace(plain, group=group)
