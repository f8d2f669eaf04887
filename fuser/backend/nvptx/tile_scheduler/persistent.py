"""Persistent kernels: a block for each multiprocessor, which runs programs of the grid in turn.

The producer goes on to the next program's copies while the computing warps are still at the end of
the one before, so neither the start of a block nor the first round trip to memory is waited for
again. With two ping-pong consumer groups each has a program of its own and they alternate: what
follows the matmuls of one (a bias, GELU, the stores) runs while the tensor cores work for the
other. They alternate at the ring: a wait tells neighbouring fills of a stage apart, but not more
distant ones, so a group begins when the other has met the last of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.ir.warp_transpose import BUFFER
from fuser.backend.nvptx.layouts.assignment import trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.scalars import is_scalar_arithmetic
from fuser.backend.nvptx.memory.operand_staging import shared_tile_for
from fuser.backend.nvptx.memory.tensor_map import add_map
from fuser.backend.nvptx.memory.tma_boxes import box_of
from fuser.backend.nvptx.schedule.producer_ring import (
    Channel,
    Ring,
    Stream,
    arrive_where,
    barrier_at,
    elected,
    wait_barrier,
)
from fuser.backend.nvptx.tile_scheduler import static_load_balance
from fuser.backend.nvptx.tile_scheduler.persistent_plan import decide, pipelines_attention, wanted
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import tile_loop
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops


def begin(low: Builder) -> bool:
    """Prepare a kernel that is to be persistent; whether it is."""
    decide(low)
    if not wanted(low, low.producer.streams):
        return False
    e, shared = low.scalars, low.shared
    programs = low.order.programs
    units = low.multicast.at_once()
    if low.stream_k is not None:
        low.stream_k.begin()
    else:
        # of open sizes there may be fewer: blocks beyond them find nothing to do
        low.order.persist(units if is_symbolic(programs) else min(units, programs))
        if low.producer.consumer_groups == 1:
            static_load_balance.assign_programs(low)
    if low.producer.consumer_groups > 1:
        low.producer.alternate(shared.allocate(8 * low.producer.consumer_groups, 16))
        number = e.head.compute("lshr", e.tid, (32 * low.warps).bit_length() - 1)
        shared.divide(low.producer.consumer_groups, e.head.lane(number, 0))
    shared.keep_warp_buffers(BUFFER * low.warps)
    if pipelines_attention(low, low.producer.streams):
        low.producer.resident.update(_resident_loads(low))
    return True


def _resident_loads(low: Builder) -> dict[ops.Load, Channel]:
    """Operands from before the loop that the producer can fetch."""
    found: dict[ops.Load, Channel] = {}
    for op in low.kernel.body.ops:
        if not isinstance(op, ops.Load) or op not in low.assignment.staged:
            continue
        box = box_of(op, low.assignment.accesses[op])
        makers = [low.assignment.makers[value] for value in op.operands()]
        if box is None or not all(map(is_scalar_arithmetic, makers)):
            continue
        tile = shared_tile_for(low, op)
        if tile.shape != op.shape:
            low.shared.cancel(tile.slot)
            continue
        channel = Channel([op], [box], [], [tile], [add_map(low, op, box, tile)])
        channel.use_barriers(low.shared.allocate(16, 16))
        found[op] = channel
    return found


def consume(low: Builder) -> None:
    """The computing warps' part of one program."""
    if low.producer.order_barriers is not None:
        own = barrier_at(low, low.producer.order_barriers, low.scalars.times(low.shared.group, 8))
        wait_barrier(low, own, low.producer.order_phase)
    low.env.clear()
    low.program()


def without_roles(low: Builder) -> None:
    """Emit a kernel whose blocks do work units (tile_scheduler/stream_k.py), where all warps copy
    and compute."""
    stream_k = low.stream_k
    assert stream_k is not None
    stream_k.begin()

    def work_unit() -> None:
        low.env.clear()
        low.program()

    stream_k.each_work_unit(1, work_unit)


def arrive_order_barrier(low: Builder, stream: Stream) -> None:
    """After the last loop of a program: the ring is the other consumer group's."""
    if low.producer.order_barriers is None or stream is not [*low.producer.streams.values()][-1]:
        return
    e = low.scalars
    other = e.compute("xor", low.shared.group, 1)
    arrive_where(low, barrier_at(low, low.producer.order_barriers, e.times(other, 8)), elected(low))


def each_program(low: Builder, consumer_groups: int, emit: Callable[[], None]) -> None:
    """Emit a loop over the block's programs: all of them, or those of one of several warp
    groups."""
    if low.stream_k is not None:
        low.stream_k.each_work_unit(consumer_groups, emit)
        return
    e, blocks = low.scalars, low.order.starts
    first: Operand = e.head.register(f"{low.order.unit}.x")
    streams = list(low.producer.streams.values())
    starts: list[Ring] = [(0, 0) for _ in streams]
    if consumer_groups > 1:
        group = low.shared.group
        first = e.plus(first, e.times(group, blocks))
        starts = [_ring_after(low, stream, (0, 0), group) for stream in streams]
    program = ""

    def is_valid(number: str) -> str:
        nonlocal program
        program = static_load_balance.program_at(low, number)
        return e.compare("ult", program, e.size(low.order.programs))

    def run_program(number: str) -> tuple[Operand, list[Ring]]:
        low.order.choose(e, program)
        emit()
        ends = [_ring_after(low, stream, stream.ring, consumer_groups - 1) for stream in streams]
        return e.compute("add", number, blocks * consumer_groups), ends

    tile_loop(low, consumer_groups, first, starts, is_valid, run_program)


def _ring_after(low: Recording, stream: Stream, ring: Ring, programs: Operand) -> Ring:
    """(stage, phase) after this many programs of other warp groups: none or one."""
    if programs == 0:
        return ring
    e = low.scalars
    rounds, rest = divmod(trip_count(stream.loop), stream.stages)
    more, odd = rest, rounds % 2
    stage, phase = ring
    if isinstance(programs, str):
        chosen = e.compare("ne", programs, 0)
        return e.pick(chosen, more, 0), e.pick(chosen, odd, 0)
    moved = e.plus(stage, more)
    wraps = e.compare("uge", moved, stream.stages)
    stage = e.pick(wraps, e.minus(moved, stream.stages), moved)
    flip = e.pick(wraps, 1 - odd, odd)
    return stage, e.compute("xor", phase, flip)
