"""The computing warps of a kernel with roles: waits before a read, arrivals after it.

A dot, or a load that goes on to registers, waits on "full" and arrives on "empty".
"""

from __future__ import annotations

from fuser.backend.nvptx.cluster.loop_bounds import has_iterations
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, SharedTile, Tile
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.schedule.producer_ring import (
    Channel,
    Stream,
    arrive_where,
    elected,
    resident_barriers,
    wait_barrier,
)
from fuser.tilegen import ops
from fuser.tilegen.value import Value


def receive(low: Builder, channel: Channel) -> SharedTile:
    """A resident operand, when it has come."""
    wait_barrier(low, resident_barriers(low, channel)[0], low.producer.resident_phase)
    return channel.tiles[0]


def give_back(low: Builder) -> None:
    """After the last matmul with resident operands: the next program's may come."""
    for channel in low.producer.resident.values():
        arrive_where(low, resident_barriers(low, channel)[1], elected(low))


def start_sums(low: Builder, stream: Stream, inits: list[Tile]) -> None:
    """Let dots that accumulate from zero ignore their sums in the first iteration instead: nothing
    has to be cleared. inits: of the loop's carried values."""
    loop = stream.loop
    if not has_iterations(low, loop) or low.cluster.splits(loop):
        return  # there may be no first iteration
    for dot in stream.group or ([stream.deferred] if stream.deferred else []):
        place = loop.body.params.index(dot.acc) - 1
        if is_zero(low, loop.inits[place]):
            stream.fresh.add(dot)
            inits[place] = low.add(gpu.Undefined(results=(low.like(inits[place]),)))


def is_zero(low: Recording, value: Value) -> bool:
    """Whether a value is a constant zero."""
    entry = low.env.get(value)
    return isinstance(entry, ops.Full) and entry.value == 0


def keeps_sums(low: Builder, op: ops.Dot) -> Operand:
    """A condition that holds where a dot in a stream adds to the sums of earlier iterations."""
    for stream in low.producer.streams.values():
        if op in stream.fresh:
            return low.scalars.compare("ne", stream.variable, stream.first)
    return 1


def release(low: Builder, stream: Stream, channel: Channel, stage: Operand) -> None:
    """A warp group, or a warp where threads read, is done with a stage."""
    if channel.read:
        low.do(gpu.WarpSync())
    low.multicast.release(channel, stream.empty(low, channel, stage), channel.threads)


def begin_iteration(low: Builder, stream: Stream) -> None:
    """Bind the loads of an iteration to the current stage."""
    for channel in stream.channels:
        channel.begin()
        for load, tile in zip(channel.loads, channel.tiles, strict=True):
            low.env[load.result] = tile.at_stage(low.scalars.times(stream.stage, tile.bytes))
            low.copies.piped.add(load)


def before_dot(low: Builder, op: ops.Dot) -> None:
    """Wait for the operands that the producer fetches (all that one group of dots needs)."""
    group = group_of(low, op) or [op]
    for stream, channel in dict.fromkeys(pair for dot in group for pair in _channels(low, dot)):
        stream.await_stage(low, channel)


def after_dot(low: Builder, op: ops.Dot) -> None:
    """Release what the dot, or all of its group, has read."""
    group = group_of(low, op)
    for stream, channel in dict.fromkeys(
        pair for dot in group or [op] for pair in _channels(low, dot)
    ):
        channel.use()
        if group or stream.deferred is op or channel.done == channel.uses:
            release(low, stream, channel, stream.stage)


def before_read(low: Builder, value: Value) -> tuple[Stream, Channel] | None:
    """Wait for what the producer fetches for registers; where it comes from, if it does."""
    for stream in low.producer.streams.values():
        for channel in stream.channels:
            if any(load.result is value for load in channel.loads):
                stream.await_stage(low, channel)
                return stream, channel
    return None


def after_read(low: Builder, stream: Stream, channel: Channel) -> None:
    """Release what every lane of the warp has read; later, where the loop does that itself."""
    if channel.release_later or any(
        dot is stream.deferred or dot in stream.group for dot in channel.dots
    ):
        return
    channel.use()
    assert channel.done <= channel.uses, "a stage is read after it was given back"
    if channel.done == channel.uses:
        if not channel.read:
            low.do(gpu.WarpSync())
        release(low, stream, channel, stream.stage)


def _channels(low: Builder, op: ops.Dot) -> list[tuple[Stream, Channel]]:
    return [
        (stream, channel)
        for stream in low.producer.streams.values()
        for channel in stream.channels
        if op in channel.dots
    ]


def group_of(low: Builder, op: ops.Dot) -> list[ops.Dot]:
    """The dots that are issued together with this one; empty where it is alone."""
    return next((s.group for s in low.producer.streams.values() if op in s.group), [])
