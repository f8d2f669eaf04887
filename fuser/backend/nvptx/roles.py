"""Warp roles on Hopper: one producer warp issues tensor-map copies, the other warps compute.

The producer runs the index arithmetic of the streams (stream.py) alone and stays as many iterations
ahead as there are stages; consumers run the kernel as it stands (consumer.py).

Persistent kernels (see persistent.py) repeat both parts for several programs of the grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx import persistent
from fuser.backend.nvptx.scalars import is_scalar_arithmetic
from fuser.backend.nvptx.stream import Channel, Stream, advance, ends_of, wait_barrier
from fuser.backend.nvptx.tensor_map import fetch
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


REGISTERS = {8: (40, 232), 12: (32, 160)}
"""Registers a thread of (the producer, the consumers), by computing warps: together no more than a
multiprocessor has. Where a count is not listed, all warps share evenly."""
SHARING = (48, 224)
"""The same of 8 warps where the producer reckons with parts of tiles (shares.py)."""


def producer_warps(warps: int) -> int:
    """Warps beside the computing ones; registers move between whole groups of four."""
    return 4 if warps in REGISTERS else 1


def _set_registers(low: Lowering, role: int) -> None:
    warps = low.warps * low.teams
    if warps in REGISTERS:
        shared = low.shares is not None and warps == 8
        count = (SHARING if shared else REGISTERS[warps])[role]
        verb = ("dec", "inc")[role]
        low.emitter.do(f"call void @llvm.nvvm.setmaxnreg.{verb}.sync.aligned.u32(i32 {count})")


def _initialise(low: Lowering, pointer: str, count: int) -> None:
    """Make a barrier whose phases are complete after `count` arrivals."""
    low.emitter.do(
        f"call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) {pointer}, i32 {count})"
    )


def _expect(low: Lowering, full: str, bytes_: int) -> None:
    """Arrive on a full barrier, whose phase is complete when so many bytes have come as well."""
    low.emitter.value(
        "call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta("
        f"ptr addrspace(3) {full}, i32 {bytes_})"
    )


def split_roles(low: Lowering) -> None:
    """Emit the whole kernel: barriers, the producer warp, then the consumers."""
    e = low.emitter
    threads = 32 * low.warps * low.teams
    persists = persistent.begin(low)
    initialise = e.value(f"icmp eq i32 {e.tid}, {threads}")
    with e.where(initialise):
        for stream in low.streams.values():
            for channel in stream.channels:
                readers = channel.readers(low) * low.neighbours.senders(channel)
                for stage in range(stream.stages):
                    for pointer, count in (
                        (stream.full(low, channel, stage), 1),
                        (stream.empty(low, channel, stage), readers),
                    ):
                        _initialise(low, pointer, count)
                for name in channel.maps:
                    e.do(f"call void @llvm.nvvm.prefetch.tensormap.p0(ptr {name})")
        for channel in low.resident.values():
            for pointer, count in zip(ends_of(low, channel), (1, low.warps // 4), strict=True):
                _initialise(low, pointer, count)
        for team in range(low.teams if low.turns is not None else 0):
            assert low.turns is not None
            _initialise(low, low.shared.pointer(low.turns, 8 * team), 1)
        e.do("call void @llvm.nvvm.fence.mbarrier_init.release.cluster()")
    low.neighbours.meet()
    low.await_previous()
    producer, consumer, out = e.block("producer"), e.block("consumer"), e.block("exit")
    is_extra = e.value(f"icmp uge i32 {e.tid}, {threads}")
    e.branch(is_extra, producer, consumer)
    e.enter(producer)
    _set_registers(low, 0)
    issue = e.block("issue")
    # an election tells ptxas that one thread is left: addresses are in uniform registers, and a
    # copy is no loop over the values that threads may have
    chosen = e.value("call {i32, i1} @llvm.nvvm.elect.sync(i32 -1)")
    alone = e.value(f"extractvalue {{i32, i1}} {chosen}, 1")
    if low.threads > threads + 32:
        first = e.value(f"icmp ult i32 {e.tid}, {threads + 32}")
        alone = e.value(f"and i1 {alone}, {first}")
    e.branch(alone, issue, out)
    e.enter(issue)
    if persists:
        persistent.each_program(low, 1, _produce)
    else:
        _produce(low)
    _await_last(low)
    e.jump(out)
    e.enter(consumer)
    _set_registers(low, 1)
    low.shared.threads = 32 * low.warps
    if persists:
        persistent.each_program(low, low.teams, persistent.consume)
    else:
        for stream in low.streams.values():
            stream.ring = (0, 0)
        low.program()
    low.cluster.finish()
    e.jump(out)
    e.enter(out)


def _produce(low: Lowering) -> None:
    """The producer's part: index arithmetic and the copies of every stream, in program order."""
    saved, low.env = low.env, {}
    converted, low.converted = low.converted, {}
    for op in low.kernel.body.ops:
        if isinstance(op, ops.For) and op in low.streams:
            _produce_stream(low, low.streams[op])
        elif isinstance(op, ops.Load) and op in low.resident:
            _send(low, low.resident[op])
        elif is_scalar_arithmetic(op) and set(op.operands()) <= set(low.env):
            low.op(op)
    low.env, low.converted = saved, converted


def _await_last(low: Lowering) -> None:
    """Wait until the last stages that went to several blocks are empty in all of them."""
    e = low.emitter
    for stream in low.streams.values():
        stage, phase = stream.ring
        for channel in low.neighbours.sends(stream):
            for ahead in range(stream.stages):
                place = e.plus(stage, ahead)
                wraps = e.value(f"icmp uge i32 {place}, {stream.stages}")
                at = e.pick(wraps, e.minus(place, stream.stages), place)
                # a stage that was never filled counts as emptied in the phase before
                same = e.value(f"xor i32 {phase}, 1")
                wait_barrier(low, stream.empty(low, channel, at), str(e.pick(wraps, phase, same)))


def _send(low: Lowering, channel: Channel) -> None:
    """The producer's part of a resident operand."""
    e = low.emitter
    full, empty = ends_of(low, channel)
    wait_barrier(low, empty, e.value(f"xor i32 {low.visit}, 1"))
    _expect(low, full, channel.bytes)
    for source, tile, name in zip(channel.sources, channel.tiles, channel.maps, strict=True):
        fetch(low, source, tile, name, full)


def _produce_stream(low: Lowering, stream: Stream) -> None:
    e, loop = low.emitter, stream.loop
    start, stop = low.cluster.bounds(loop)
    before, head = e.at, e.block("fill")
    body, done = e.block("fill.body"), e.block("fill.end")
    e.jump(head)
    e.enter(head)
    mark = len(head.lines)
    variable, stage, phase = e.name_of(), e.name_of(), e.name_of()
    e.branch(e.value(f"icmp slt i32 {variable}, {stop}"), body, done)
    e.enter(body)
    low.env[loop.body.params[0]] = variable
    for op in loop.body.ops:
        if is_scalar_arithmetic(op) and set(op.operands()) <= set(low.env):
            low.op(op)
    free = e.value(f"xor i32 {phase}, 1")
    for channel in stream.channels:
        wait_barrier(low, stream.empty(low, channel, stage), free)
        full = stream.full(low, channel, stage)
        _expect(low, full, channel.arriving)
        for load, source, tile, name in zip(
            channel.loads, channel.sources, channel.tiles, channel.maps, strict=True
        ):
            place = tile.at_stage(e.times(stage, tile.bytes))
            fetch(low, source, place, name, full, low.neighbours.share(load, tile))
    following = e.value(f"add i32 {variable}, {loop.step}")
    lines = advance(low, stream, stage, phase, before.label)
    lines.append(
        f"{variable} = phi i32 [ {start}, %{before.label} ], [ {following}, %{e.at.label} ]"
    )
    e.do(f"br label %{head.label}, !llvm.loop !0")
    head.lines[mark:mark] = lines
    e.enter(done)
    stream.ring = (stage, phase)
