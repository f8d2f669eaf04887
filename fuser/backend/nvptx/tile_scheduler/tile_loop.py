"""The loop of a block over its tiles, of any scheduler, and the turns of ping-pong consumer groups.

The producer goes on to the next tile's copies while the computing warps are still at the end of
the one before, so neither the start of a block nor the first round trip to memory is waited for
again. Two ping-pong consumer groups have every other tile of the block each and alternate: what
follows the matmuls of one (a bias, GELU, the stores) runs while the tensor cores work for the
other. They alternate at the ring: a wait tells neighbouring fills of a stage apart, but not more
distant ones, so a group begins when the other has met the last of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.schedule.producer_ring import (
    CarriedRings,
    Stream,
    arrive_where,
    barrier_at,
    elected,
    ring_after,
    wait_barrier,
)


def each_tile(low: Builder, consumer_groups: int, emit: Callable[[], None]) -> None:
    """Record what a block does of its tiles, or each of two consumer groups of every other one.
    emit: records a tile."""
    e, scheduler, producer, group = low.scalars, low.scheduler, low.producer, low.shared.group
    streams = list(low.producer.streams.values())
    for stream in streams:
        stream.turn((0, 0))
    if not scheduler.blocks:
        emit()
        return
    first = scheduler.first()
    if consumer_groups > 1:
        for stream in streams:
            stage, phase = ring_after(low, stream, scheduler.iterations(stream.loop, first))
            second = e.compare("ne", group, 0)
            stream.turn((e.pick(second, stage, 0), e.pick(second, phase, 0)))
        first = scheduler.next(first, group)
    rings = CarriedRings(low, streams)
    number, phases = e.name_of(), dict[str, Operand]()
    order_phase = resident_phase = ""
    if producer.resident:
        resident_phase = e.name_of()
        phases[resident_phase] = 0
    if consumer_groups > 1:
        # a fresh barrier counts as complete for parity 1: warp group 0 begins at once
        order_phase = e.name_of()
        phases[order_phase] = e.compute("sub", 1, group)
    producer.begin_program(number, order_phase, resident_phase)
    names = (number, *phases, *rings.names)
    region = low.region(gpu.While(
        scalars=names, types=("i32",) * len(names), params=(), inits=(),
        firsts=(first, *phases.values(), *rings.firsts), head=ir.Block(), body=ir.Block(),
    ))  # fmt: skip
    low.do(gpu.Condition(value=scheduler.is_tile(number)))
    region.following()
    with scheduler.tile(number):
        emit()
    following = scheduler.next(number)
    if consumer_groups > 1:
        for stream in streams:
            stream.turn(ring_after(low, stream, scheduler.iterations(stream.loop, following)))
        following = scheduler.next(following)
    flipped = [e.compute("xor", phase, 1) for phase in phases]
    low.do(gpu.Yield(scalars=(following, *flipped, *rings.ends())))
    region.following()
    rings.leave()


def consume(low: Builder) -> None:
    """The computing warps' part of one tile."""
    if low.producer.order_barriers is not None:
        own = barrier_at(low, low.producer.order_barriers, low.scalars.times(low.shared.group, 8))
        wait_barrier(low, own, low.producer.order_phase)
    low.env.restart(low.kernel.scalars)
    low.program()


def arrive_order_barrier(low: Builder, stream: Stream) -> None:
    """After the last loop of a tile: the ring is the other consumer group's."""
    if low.producer.order_barriers is None or stream is not [*low.producer.streams.values()][-1]:
        return
    e = low.scalars
    other = e.compute("xor", low.shared.group, 1)
    arrive_where(low, barrier_at(low, low.producer.order_barriers, e.times(other, 8)), elected(low))
