"""Which iterations of a loop a block has: all of them, or a range where blocks share them."""

from __future__ import annotations

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.assignment import trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.graph.sizes import certain
from fuser.tilegen import ops


def has_iterations(low: Builder, loop: ops.For) -> bool:
    """Whether every block surely has an iteration of a loop."""
    if low.stream_k is not None:
        return True
    if low.cluster.splits(loop):
        return trip_count(loop) >= low.cluster.blocks
    return certain(loop.stop.range[0] - loop.start.range[1] - 1)


def bounds(low: Builder, loop: ops.For) -> tuple[Operand, Operand]:
    """Start and stop of a loop in this block: of as many iterations in each, or one more; or of the
    work unit that a block has of it (tile_scheduler/stream_k.py)."""
    e, cluster = low.scalars, low.cluster
    start, stop = low.evaluate(loop.start), low.evaluate(loop.stop)
    if low.stream_k is not None:
        return low.stream_k.bounds(start)
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
