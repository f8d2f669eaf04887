"""Which kernels share the tiles that whole waves leave over (tile_scheduler/stream_k.py), and how
these are cut."""

from __future__ import annotations

from fuser.backend.nvptx.layouts.assignment import accumulates, trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.schedule.dot_chain import find_dot_chain
from fuser.backend.nvptx.schedule.producer_warp import REGISTERS
from fuser.backend.nvptx.tile_scheduler.stream_k import StreamK
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.stream_k import cut_tiles

MAX_STEPS = 1 << 30
"""Iterations of all programs that are counted in 32 bits."""


def plan_stream_k(low: Builder) -> StreamK | None:
    """The work units of a kernel's blocks, where its schedule asks for them (`stream_k` blocks of a
    multiprocessor); None where its only loop does not just add up, or no tile would be cut."""
    if not low.kernel.schedule.stream_k:
        return None
    found = _planned(low)
    if isinstance(found, str):
        low.decisions.refuse("stream-k", found)
        return None
    low.decisions.apply("stream-k", f"tiles left over are cut among {found.blocks} blocks")
    return found


def _planned(low: Builder) -> StreamK | str:
    """The work units, or why there are none."""
    blocks_per_sm = _blocks_per_sm(low)
    programs = low.order.programs
    if low.cluster.blocks > 1:
        return "a cluster shares each program"
    if is_symbolic(programs):
        return "the number of programs is open"
    loop = _only_matmuls(low)
    iterations = trip_count(loop) if loop is not None else 0
    if loop is None or iterations < 2:
        return "it is no single loop of two or more iterations that adds up matmuls from zero"
    before = low.kernel.body.ops[: low.kernel.body.ops.index(loop)]
    if any(isinstance(op, ops.Store | ops.AtomicAdd) for op in before):
        return "it stores before its loop"
    if any(plan.kind == "wide" for plan in low.assignment.dots.values()):
        return "float32 operands are split"
    for stream in low.producer.streams.values():
        if not stream.quiet or stream.split or find_dot_chain(low, stream):
            return "its loop does more than multiply what is fetched"
    blocks = max(1, low.multicast.at_once() * blocks_per_sm)
    cut = cut_tiles(programs % blocks, iterations, blocks)
    if cut is None:
        return f"{programs} programs on {blocks} blocks leave nothing worth a cut"
    if (programs + 2 * blocks) * iterations >= MAX_STEPS:
        return "its iterations are not counted in 32 bits"
    return StreamK(low, loop, programs, blocks, cut, blocks_per_sm)


def _blocks_per_sm(low: Builder) -> int:
    """Blocks of a multiprocessor. Warps that hand registers to each other
    (schedule/producer_warp.py) reckon with all of them: two such blocks would wait for registers
    for ever."""
    schedule = low.kernel.schedule
    warps = low.warps * schedule.consumer_groups
    return min(
        schedule.stream_k, 1 if low.producer.streams and warps in REGISTERS else schedule.stream_k
    )


def _only_matmuls(low: Recording) -> ops.For | None:
    """The only loop of a kernel, where it does nothing but add up matmuls from zero."""
    plan = low.assignment
    loops = [op for op in low.kernel.walk() if isinstance(op, ops.For)]
    if len(loops) != 1 or loops[0] not in low.kernel.body.ops:
        return None
    loop = loops[0]
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    for init, end in zip(loop.inits, last.args, strict=True):
        dot, zero = plan.makers.get(end), plan.makers.get(init)
        if not isinstance(dot, ops.Dot) or not accumulates(dot, loop, plan):
            return None
        if not isinstance(zero, ops.Full) or zero.value != 0 or end.dtype.bits != 32:
            return None
    return loop
