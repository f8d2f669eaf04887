"""Which iterations of a loop a block has: all of them, or a range where blocks share them."""

from __future__ import annotations

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.assignment import trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.graph.sizes import certain
from fuser.tilegen import ops


def needs_long(low: Builder, loop: ops.For) -> bool:
    """Whether the bounds of a caller's loop may need 64 bits."""
    return low.caller and not (low.ends_short(loop.start) and low.ends_short(loop.stop))


def has_iterations(low: Builder, loop: ops.For) -> bool:
    """Whether every block surely has an iteration of a loop."""
    if low.cluster.splits(loop):
        return trip_count(loop) >= low.cluster.blocks
    return certain(loop.stop.range[0] - loop.start.range[1] - 1)


def bounds(low: Builder, loop: ops.For) -> tuple[Operand, Operand]:
    """Start and stop of a loop in this block: those of its tile (tile_scheduler/tile_scheduler.py);
    of a cluster's blocks each has as many iterations, or one more."""
    e, cluster = low.scalars, low.cluster
    start, stop = low.scheduler.bounds(low.evaluate(loop.start), low.evaluate(loop.stop))
    if not cluster.splits(loop):
        return start, stop
    extent = e.minus(stop, start)
    iterations: Operand
    if isinstance(extent, int):
        iterations = max(0, -(-extent // loop.step))
    else:
        some = e.compute("smax", extent, 0)
        iterations = e.compute("udiv", e.plus(some, loop.step - 1), loop.step)
    before = e.times(e.rank, iterations)
    ends = [e.shift("lshr", e.plus(before, more), cluster.bits) for more in (0, iterations)]
    first, last = (e.plus(e.times(end, loop.step), start) for end in ends)
    return first, last
