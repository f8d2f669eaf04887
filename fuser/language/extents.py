"""The extents of blocks that a launch leaves out, where the grid follows them: chosen by cost.

    BLOCK: fl.constexpr = fl.block(default=64)      kernel[lambda meta: (cdiv(n, meta["BLOCK"]),)]

Powers of 2 around the default are traced, not compiled, and their work is counted
(fuser/tilegen/work.py): bytes and operations against the target's rates, a price for each program,
and for tiles that fit no registers. The parameter that wins most by it is doubled, or halved, while
that wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fuser.base.target import Target
from fuser.errors import FuserError
from fuser.graph.sizes import Sizes, size_hint
from fuser.language.arguments import classify
from fuser.language.compile import Options, finish, trace
from fuser.language.functions import Function
from fuser.pipeline.devices import choose_target
from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel
from fuser.tilegen.work import count

FULL = 4
"""Programs for each unit of the target: a launch of fewer is too small to choose by."""
SHORT = 2e-5
"""Seconds: so is one that takes less."""
GAIN = 0.95
"""Another extent must take at most this share of the time."""
MOST = 1 << 14
"""Elements of a block on one axis."""
CACHED = {"cpu": 4.0, "cuda": 3.0}
"""Bandwidth of the caches that programs share, by that of memory."""
PROGRAM = {"cpu": 2e-7, "cuda": 8e-7}
"""Seconds of a unit that starting and ending a program takes."""
SCALAR_RATE = 0.25
"""Of the peak, without matrix units."""
TOGETHER = 8
"""Programs that a multiprocessor has at a time, which hide each other's starts."""
ELEMENTS = 64
"""Of a tile a thread of a GPU, from which registers spill."""
TILE_SHARE = 4
"""A tile on a CPU takes at most this part of the cache that is a core's own."""
EDGE = 24.0
"""Rows, or columns, of a product's block that fetching its operands is worth."""
SPILLED = 3.0
VECTOR = 16
"""Bytes that a thread should have of an access; with fewer in flight, memory waits."""


def choose_extents(
    function: Function,
    bound: dict[str, Any],
    left: Iterable[str],
    grid_of: Callable[[dict[str, Any]], tuple[int, ...]],
    options: Options,
    plain: frozenset[str],
) -> dict[str, int] | None:
    """Extents for the parameters of a launch that it left out. None where it is too small to tell.

    bound: all arguments, with defaults. grid_of: the grid of arguments. Only what the grid follows
    is chosen: then a program's share of the work is the block, whatever its extent.
    """
    grid = grid_of(bound)
    found = classify(bound, function.constexprs, plain, function.annotated)
    target = choose_target("cuda" if found.device[0] == "cuda" else "cpu")
    if math.prod(grid) < FULL * target.units:
        return None
    extents = {name: bound[name] for name in left}

    def seconds(trial: dict[str, int]) -> float:
        arguments = {**bound, **trial}
        return _seconds(function, arguments, grid_of(arguments), options, plain, target)

    best = seconds(extents)
    if best < SHORT:
        return None
    free = [n for n in left if grid_of({**bound, n: 2 * bound[n]}) != grid]
    for factor in (2.0, 0.5):
        while True:
            trials = [{**extents, name: int(extents[name] * factor)} for name in free]
            trials = [t for t in trials if all(1 <= t[n] <= MOST for n in free) and t != extents]
            costs = [seconds(trial) for trial in trials]
            if not costs or min(costs) > GAIN * best:
                break
            best = min(costs)
            extents = trials[costs.index(best)]
    return extents


def _seconds(
    function: Function, bound: dict[str, Any], grid: tuple[int, ...], options: Options,
    plain: frozenset[str], target: Target,
) -> float:  # fmt: skip
    """About how long a launch takes; for ever, where it does not compile."""
    found = classify(bound, function.constexprs, plain, function.annotated)
    try:
        with Sizes({}) as sizes:
            program = trace(function, found.classes, found.leaves, grid, options.on(target), sizes)
            finish(program, sizes, target if target.is_cuda else None)
            return estimate(program.kernel, math.prod(grid), target)
    except FuserError:
        return math.inf


def estimate(kernel: Kernel, programs: int, target: Target) -> float:
    """Seconds that a kernel takes, from its Tile IR; the Sizes of its trace are active."""
    work = count(kernel, size_hint)
    values = [value for op in kernel.walk() for value in op.results if value.shape]
    largest = max((math.prod(value.shape) for value in values), default=1)
    width = max((value.dtype.bytes for value in values), default=4)
    memory = max(
        work.moved / target.bandwidth, work.accessed / (CACHED[target.name] * target.bandwidth)
    )
    starts = programs * PROGRAM[target.name] / target.units
    if target.is_cuda:
        share = largest / (32 * kernel.schedule.warps)
        memory *= max(1.0, (VECTOR / (share * width)) ** 0.5)
        spilled, starts = share > ELEMENTS, starts / TOGETHER
    else:
        spilled = largest * width > target.l2_bytes // TILE_SHARE
    rate = target.flops_f32 * SCALAR_RATE
    dots = [op.acc.shape for op in kernel.walk() if isinstance(op, ops.Dot)]
    if dots:
        rate = target.flops_f16 * min(1 / (1 + EDGE / m + EDGE / n) for m, n in dots)
    busy = max(memory, work.flops / rate) * (SPILLED if spilled else 1.0)
    waves = -(-programs // target.units) * target.units / programs
    return busy * waves + starts
