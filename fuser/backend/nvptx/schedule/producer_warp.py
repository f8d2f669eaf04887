"""Warp roles on Hopper: one producer warp issues tensor-map copies, the other warps compute.

The producer runs the index arithmetic of the streams (schedule/producer_ring.py) alone and stays as
many iterations ahead as there are stages; consumers run the kernel as it stands
(schedule/consumer_warps.py).

Both parts are of one tile; a persistent block repeats them (tile_scheduler/tile_loop.py).
"""

from __future__ import annotations

from fuser.backend.nvptx.cluster.loop_bounds import bounds
from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.scalars import is_scalar_arithmetic
from fuser.backend.nvptx.memory.tensor_map import fetch
from fuser.backend.nvptx.memory.tma_boxes import Box
from fuser.backend.nvptx.schedule.producer_ring import (
    CarriedRings,
    Channel,
    Stream,
    advance,
    barrier_at,
    resident_barriers,
    wait_barrier,
)
from fuser.backend.nvptx.tile_scheduler.persistent import begin
from fuser.backend.nvptx.tile_scheduler.tile_loop import consume, each_tile
from fuser.tilegen import ops
from fuser.tilegen.ir import Block

REGISTERS = {8: (40, 232), 12: (32, 160)}
"""Registers a thread of (the producer, the consumers), by computing warps: together no more than a
multiprocessor has. Where a count is not listed, all warps share evenly."""
STREAM_K_REGISTERS = (48, 224)
"""The same of 8 warps where the producer reckons with parts of tiles
(tile_scheduler/stream_k.py)."""


def producer_warps(warps: int) -> int:
    """Warps beside the computing ones; registers move between whole groups of four."""
    return 4 if warps in REGISTERS else 1


def registers_of(low: Builder) -> tuple[int, int] | None:
    """Registers a thread of (the producer, the consumers); None where all warps share evenly."""
    warps = low.warps * low.producer.consumer_groups
    shared = low.scheduler.blocks_per_sm > 0 and warps == 8
    return STREAM_K_REGISTERS if shared else REGISTERS.get(warps)


def split_roles(low: Builder) -> None:
    """Emit the whole kernel: barriers, the producer warp, then the consumers."""
    e = low.scalars
    threads = 32 * low.warps * low.producer.consumer_groups
    begin(low)
    with low.where(e.compare("eq", e.tid, threads)):
        _make_barriers(low)
    low.multicast.meet()
    region = low.region(gpu.WarpRoles(
        threads=threads, warps=(low.threads - threads) // 32, registers=registers_of(low),
        producer=ir.Block(), consumer=ir.Block(),
    ))  # fmt: skip
    each_tile(low, 1, lambda: _produce(low))
    _await_last(low)
    region.following()
    each_tile(low, low.producer.consumer_groups, lambda: consume(low))
    low.cluster.finish()
    region.following()


def _make_barriers(low: Builder) -> None:
    """By one thread: the barriers of all streams."""

    def make(barrier: str, count: int) -> None:
        low.do(gpu.MbarrierInit(barrier=barrier, count=count))

    for stream in low.producer.streams.values():
        for channel in stream.channels:
            readers = channel.readers(low) * low.multicast.senders(channel)
            for stage in range(stream.stages if stream.leader is None else 0):
                full, empty = stream.full(low, channel, stage), stream.empty(low, channel, stage)
                make(full, 1)
                make(empty, readers)
            for name in filter(None, (*channel.maps, *channel.edges)):
                low.do(gpu.PrefetchMap(map=name))
    for channel in low.producer.resident.values():
        for barrier, count in zip(
            resident_barriers(low, channel), (1, low.warps // 4), strict=True
        ):
            make(barrier, count)
    if low.producer.order_barriers is not None:
        for group in range(low.producer.consumer_groups):
            make(barrier_at(low, low.producer.order_barriers, 8 * group), 1)
    low.do(gpu.MbarrierInitFence())


def _produce(low: Builder) -> None:
    """The producer's part: index arithmetic and the copies of every stream, in program order."""
    with low.env.apart(low.kernel.scalars):
        _produce_block(low, low.kernel.body)


def _produce_block(low: Builder, block: Block) -> None:
    for op in block.ops:
        if isinstance(op, ops.For) and op in low.producer.streams:
            _produce_stream(low, low.producer.streams[op])
        elif isinstance(op, ops.For) and op in low.producer.counters:
            _produce_loop(low, op)
        elif isinstance(op, ops.Load) and op in low.producer.resident:
            _send(low, low.producer.resident[op])
        elif is_scalar_arithmetic(op) and set(op.operands()) <= set(low.env):
            low.op(op)


def _produce_loop(low: Builder, loop: ops.For) -> None:
    """A loop around streams, with the integers that it carries and the rings of the streams."""
    e, carried, layout = low.scalars, low.producer.counters[loop], low.assignment.scalar_layout
    start, stop = bounds(low, loop)
    inits = tuple(low.tile(loop.inits[at], layout) for at in carried)
    params = tuple(low.like(init) for init in inits)
    variable = e.name_of()
    rings = CarriedRings(low, low.producer.streams.values(), loop)
    region = low.region(gpu.For(
        stop=stop, scalars=(variable, *rings.names), firsts=(start, *rings.firsts),
        params=params, inits=inits, body=ir.Block(), results=tuple(low.like(i) for i in inits),
    ))  # fmt: skip
    low.env[loop.body.params[0]] = variable
    low.env.update((loop.body.params[at + 1], phi) for at, phi in zip(carried, params, strict=True))
    _produce_block(low, loop.body)
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    ends = tuple(low.tile(last.args[at], layout) for at in carried)
    following = e.compute("add", variable, loop.step)
    low.do(gpu.Yield(scalars=(following, *rings.ends()), values=ends))
    region.following()
    rings.leave()


def _await_last(low: Builder) -> None:
    """Wait until the last stages that went to several blocks are empty in all of them."""
    e = low.scalars
    for stream in low.producer.streams.values():
        stage, phase = stream.ring
        for channel in low.multicast.sends(stream):
            for ahead in range(stream.stages):
                place = e.plus(stage, ahead)
                wraps = e.compare("uge", place, stream.stages)
                at = e.pick(wraps, e.minus(place, stream.stages), place)
                # a stage that was never filled counts as emptied in the phase before
                same = e.compute("xor", phase, 1)
                wait_barrier(low, stream.empty(low, channel, at), e.pick(wraps, phase, same))


def _send(low: Builder, channel: Channel) -> None:
    """The producer's part of a resident operand."""
    e = low.scalars
    full, empty = resident_barriers(low, channel)
    wait_barrier(low, empty, e.compute("xor", low.producer.resident_phase, 1))
    low.do(gpu.MbarrierExpect(barrier=full, bytes=channel.bytes))
    for source, tile, name in zip(channel.sources, channel.tiles, channel.maps, strict=True):
        fetch(low, source, tile, name, full)


def _produce_stream(low: Builder, stream: Stream) -> None:
    e, loop = low.scalars, stream.loop
    start, stop = bounds(low, loop)
    variable, stage, phase = e.name_of(), e.name_of(), e.name_of()
    region = low.region(gpu.For(
        stop=stop, scalars=(variable, stage, phase), firsts=(start, *stream.ring), params=(),
        inits=(), body=ir.Block(),
    ))  # fmt: skip
    low.env[loop.body.params[0]] = variable
    for op in loop.body.ops:
        if is_scalar_arithmetic(op) and set(op.operands()) <= set(low.env):
            low.op(op)
    free = e.compute("xor", phase, 1)
    for channel in stream.channels:
        wait_barrier(low, stream.empty(low, channel, stage), free)
        full = stream.full(low, channel, stage)
        is_edge = _is_edge_tile(low, channel)
        low.do(gpu.MbarrierExpect(barrier=full, bytes=_bytes_coming(low, channel, is_edge)))
        for load, source, tile, name, edge, there in zip(
            channel.loads, channel.sources, channel.tiles, channel.maps, channel.edges, is_edge,
            strict=True,
        ):  # fmt: skip
            place = tile.at_stage(e.times(stage, tile.bytes))
            multicast = low.multicast.slice_of(load, tile)
            fetch(low, source, place, name, full, multicast, edge, there)
    following = e.compute("add", variable, loop.step)
    low.do(gpu.Yield(scalars=(following, *advance(low, stream, stage, phase))))
    region.following()
    stream.turn((stage, phase))


def _is_edge_tile(low: Recording, channel: Channel) -> list[Operand]:
    """Of each load, whether its tile is the last, and has fewer rows than the others."""
    found: list[Operand] = []
    for source, tile in zip(channel.sources, channel.tiles, strict=True):
        if isinstance(source, Box) and source.edge:
            dim = source.dims[1]
            start = low.evaluate(dim.start)
            found.append(low.scalars.compare("sgt", start, dim.extent - tile.rows))
        else:
            found.append(0)
    return found


def _bytes_coming(low: Recording, channel: Channel, is_edge: list[Operand]) -> Operand:
    """The bytes that come in a stage."""
    e, coming = low.scalars, channel.arriving
    found: Operand = coming
    for source, tile, last in zip(channel.sources, channel.tiles, is_edge, strict=True):
        if isinstance(source, Box) and source.edge:
            missing = (tile.rows - source.edge) * tile.span * tile.blocks
            found = e.minus(found, e.pick(last, missing, 0))
    return found
