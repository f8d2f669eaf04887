"""What a schedule of a matmul or a convolution costs, in microseconds: the one measure by which
rules choose, tuning orders what it tries, and `fuser explain` compares."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.tilegen.rules.cpu import cost as cpu
from fuser.tilegen.rules.gpu import cost as gpu
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule


def cost(target: Target, problem: Problem, schedule: Schedule) -> float:
    """Microseconds of a problem of known sizes (`Problem.closed`), by the terms of gpu/cost.py or
    cpu/cost.py. Comparable among schedules of a problem, whose blocks are "m", "n" and "k"."""
    measure = gpu.cost if target.is_cuda else cpu.cost
    return measure(target, problem, schedule)
