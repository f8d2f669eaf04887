"""Warp roles on Hopper: one producer warp issues tensor-map copies, the other warps compute.

A loop whose staged loads are all boxes becomes a stream: `stages` buffers, and for every channel
(the loads that one dot waits for) a pair of barriers a stage, "full" and "empty". The producer runs
the loop's index arithmetic alone and stays as many trips ahead as there are stages; consumers run
the kernel as it stands, waiting on "full" before a dot and arriving on "empty" after it. Where a
loop does nothing but accumulate one dot, the wait for trip i happens during trip i + 1.

Persistent kernels (see persistent.py) repeat both parts for several programs of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fuser.backend.nvptx import persistent
from fuser.backend.nvptx.assign import accumulates, is_tile, lone_dot, shared_values
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.persistent import BUFFER
from fuser.backend.nvptx.shared import Slot
from fuser.backend.nvptx.stage import SharedTile, shared_tile_for, tile_bytes
from fuser.backend.nvptx.tensor_map import Box, add_map, box_of, fetch
from fuser.backend.nvptx.values import Tile
from fuser.tilegen import ops
from fuser.tilegen.ir import Op, Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


@dataclass(eq=False)
class Channel:
    """Loads that are waited for together. barriers: `stages` full ones, then as many empty. Without
    dots, a load that goes on to registers. held: its stage is not given back at the read."""

    loads: list[ops.Load]
    boxes: list[Box]
    dots: list[ops.Dot]
    tiles: list[SharedTile] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    barriers: Slot | None = None
    waited: bool = False
    held: bool = False
    done: int = 0

    @property
    def bytes(self) -> int:
        return sum(tile.bytes for tile in self.tiles)

    def readers(self, low: Lowering) -> int:
        """How many arrivals empty a stage: of warp groups that multiply, or of warps that read."""
        return low.warps // 4 if self.dots else low.warps


@dataclass(eq=False)
class Stream:
    """A loop fed by the producer. stage, phase: names of the current consumer trip's.

    quiet: the body touches no shared memory but the stages. group: where it only accumulates
    several dots, all of them; they are issued as one. flying: their results of this trip. fresh:
    dots that ignore their sums in the first trip. split: its dot of float32 operands (wide.py).
    ring: (stage, phase) where the loop begins, and after it where it ended.
    """

    loop: ops.For
    channels: list[Channel]
    deferred: ops.Dot | None
    split: ops.Dot | None = None
    group: list[ops.Dot] = field(default_factory=list)
    flying: dict[ops.Dot, Tile] = field(default_factory=dict)
    fresh: set[ops.Dot] = field(default_factory=set)
    quiet: bool = False
    stages: int = 0
    stage: str = ""
    phase: str = ""
    first: Operand = 0
    variable: Operand = 0
    ring: tuple[Operand, Operand] = (0, 0)

    def full(self, low: Lowering, channel: Channel, stage: Operand) -> str:
        assert channel.barriers is not None
        return low.shared.pointer(channel.barriers, low.emitter.times(stage, 8))

    def empty(self, low: Lowering, channel: Channel, stage: Operand) -> str:
        assert channel.barriers is not None
        offset = low.emitter.plus(low.emitter.times(stage, 8), 8 * self.stages)
        return low.shared.pointer(channel.barriers, offset)


DEFAULT = True
"""Whether kernels are split into roles where they can be; `schedule.extra["roles"]` overrides."""


# planning -----------------------------------------------------------------------------------------


def plan_streams(low: Lowering, stages: int) -> dict[ops.For, Stream]:
    """The streams of a kernel; empty where it cannot be split into roles."""
    plan, kernel = low.assignment, low.kernel
    if not kernel.schedule.extra.get("roles", DEFAULT):
        return {}
    if low.target.arch != "sm_90a" or stages < 2 or low.warps % 4:
        return {}
    known: set[Value] = set()
    streams: dict[ops.For, Stream] = {}
    seen = 0
    for op in kernel.body.ops:
        if isinstance(op, ops.ProgramId) or _is_scalar(op, known):
            known.add(op.result)
        if isinstance(op, ops.For):
            inside = _staged(low, op)
            seen += len(inside)
            if not inside:
                continue
            stream = _plan_stream(low, op, inside, known)
            if stream is None:
                return {}
            streams[op] = stream
        elif op in plan.staged:
            seen += 1
    if seen != len(plan.staged) or not streams:
        return {}
    low.teams = persistent.teams_of(low, streams)
    if not _allocate(low, streams, stages):
        low.teams = 1
        return {}
    return streams


def _is_scalar(op: Op, known: set[Value]) -> bool:
    """Whether an op is index arithmetic on known scalars."""
    scalar = isinstance(op, ops.IndexTile) and not is_tile(op.result)
    return scalar and set(op.operands()) <= known


def _staged(low: Lowering, loop: ops.For) -> list[ops.Load]:
    return [op for op in loop.body.ops if isinstance(op, ops.Load) and op in low.assignment.staged]


def _plan_stream(
    low: Lowering, loop: ops.For, loads: list[ops.Load], known: set[Value]
) -> Stream | None:
    plan = low.assignment
    if not set(loop.operands()) - set(loop.inits) <= known:
        return None
    if loop.start.is_constant and loop.stop.is_constant:
        if loop.stop.constant - loop.start.constant <= loop.step:
            return None
    inner = known | {loop.body.params[0]}
    for op in loop.body.ops:
        if _is_scalar(op, inner):
            inner.add(op.result)
    channels: list[Channel] = []
    for load in loads:
        dots = _dots_of(low, load)
        wide = any(plan.dots[dot].kind == "wide" for dot in dots)
        box = box_of(load, plan.accesses[load], 4 if wide else 2)
        if box is None or not set(load.operands()) <= inner:
            return None
        kinds = {plan.dots[dot].kind for dot in dots}
        if not kinds <= {"wgmma", "wide"} or any(dot not in loop.body.ops for dot in dots):
            return None
        if not dots and len(channels) and any(not c.dots for c in channels):
            return None  # more than one tile beside the operands takes too much room
        match = next((c for c in channels if set(c.dots) & set(dots)), None)
        if match is None:
            channels.append(Channel([load], [box], dots))
        else:
            match.loads.append(load)
            match.boxes.append(box)
            match.dots += [dot for dot in dots if dot not in match.dots]
    lone = lone_dot(loop, plan)
    wide = lone is not None and plan.dots[lone].kind == "wide"
    if wide and not persistent.trips_of(loop):
        return None
    stream = Stream(loop, channels, None if wide else lone, split=lone if wide else None)
    stream.quiet = not wide and _is_quiet(low, loop)
    every = [op for op in loop.body.ops if isinstance(op, ops.Dot)]
    if stream.quiet and len(every) > 1 and all(accumulates(dot, loop, plan) for dot in every):
        if all(plan.dots[dot].kind == "wgmma" for dot in every):
            stream.group = every
    return stream


def _is_quiet(low: Lowering, loop: ops.For) -> bool:
    """Whether a body only multiplies what the producer brings or what is there before the loop."""
    local = {value for op in loop.body.ops for value in op.results} | set(loop.body.params)
    brought: set[Value] = set()
    for op in loop.body.ops:
        match op:
            case ops.Load() if op in low.assignment.staged:
                brought.add(op.result)
            case ops.Permute() if op.x in brought:
                brought.add(op.result)
            case ops.Dot():
                if not {op.a, op.b} & local <= brought:
                    return False
            case ops.IndexTile() | ops.Full() | ops.Yield():
                pass
            case _:
                return False
    return True


def _dots_of(low: Lowering, load: ops.Load) -> list[ops.Dot]:
    found: list[ops.Dot] = []
    for value in shared_values(load, low.assignment):
        for use in low.assignment.uses.get(value, ()):
            if isinstance(use, ops.Dot) and use not in found:
                found.append(use)
    return found


def _allocate(low: Lowering, streams: dict[ops.For, Stream], stages: int) -> bool:
    """Buffers and barriers of every stream. They live from the start: the producer runs ahead of
    whatever else uses shared memory."""
    resident = sum(
        tile_bytes((op.shape[0], op.shape[1]), low.assignment.accesses[op].axis, op.view.dtype)
        for op in low.kernel.body.ops
        if isinstance(op, ops.Load) and op in low.assignment.staged
    )
    for stream in streams.values():
        for channel in stream.channels:
            channel.tiles = [shared_tile_for(low, load) for load in channel.loads]
            for load, tile in zip(channel.loads, channel.tiles, strict=True):
                if tile.shape != load.shape:
                    return _take_back(low, streams)
    each = sum(c.bytes for s in streams.values() for c in s.channels)
    room = low.target.shared_bytes - resident - 1024 * len(low.shared.slots) - 2048
    if persistent.wanted(low, streams):
        # nothing may take the place of the stages: the producer is at the next program already
        room -= low.warps * low.teams * BUFFER
    stages = min(max(stages, _depth(low, each, streams)), room // each)
    if stages < 2:
        return _take_back(low, streams)
    for stream in streams.values():
        stream.stages = stages
        for channel in stream.channels:
            for tile in channel.tiles:
                tile.slot.bytes = tile.bytes * stages
            channel.barriers = low.shared.allocate(16 * stages, 16)
            channel.maps = [
                add_map(low, load, box, tile)
                for load, box, tile in zip(channel.loads, channel.boxes, channel.tiles, strict=True)
            ]
    return True


def _depth(low: Lowering, each: int, streams: dict[ops.For, Stream]) -> int:
    """Stages that keep enough bytes on their way where a multiprocessor runs one small block: a
    round trip to L2 takes near a microsecond, in which it could receive some 64 KiB."""
    programs = low.cluster.blocks
    for extent in low.kernel.grid:
        programs *= extent
    alone = programs <= low.target.units and low.stages == low.kernel.schedule.stages
    if persistent.wanted(low, streams) and low.stages == low.kernel.schedule.stages:
        return 8
    return min(16, (96 << 10) // each) if alone else 0


def _take_back(low: Lowering, streams: dict[ops.For, Stream]) -> bool:
    for stream in streams.values():
        for channel in stream.channels:
            for tile in channel.tiles:
                low.shared.cancel(tile.slot)
    return False


REGISTERS = {8: (40, 232), 12: (32, 160)}
"""Registers a thread of (the producer, the consumers), by computing warps: together no more than a
multiprocessor has. Where a count is not listed, all warps share evenly."""


def producer_warps(warps: int) -> int:
    """Warps beside the computing ones; registers move between whole groups of four."""
    return 4 if warps in REGISTERS else 1


def _set_registers(low: Lowering, role: int) -> None:
    warps = low.warps * low.teams
    if warps in REGISTERS:
        count, verb = REGISTERS[warps][role], ("dec", "inc")[role]
        low.emitter.do(f"call void @llvm.nvvm.setmaxnreg.{verb}.sync.aligned.u32(i32 {count})")


# code ---------------------------------------------------------------------------------------------


def split_roles(low: Lowering) -> None:
    """Emit the whole kernel: barriers, the producer warp, then the consumers."""
    e = low.emitter
    threads = 32 * low.warps * low.teams
    persists = persistent.begin(low)
    initialise = e.value(f"icmp eq i32 {e.tid}, {threads}")
    with e.where(initialise):
        for stream in low.streams.values():
            for channel in stream.channels:
                for stage in range(stream.stages):
                    for pointer, count in (
                        (stream.full(low, channel, stage), 1),
                        (stream.empty(low, channel, stage), channel.readers(low)),
                    ):
                        e.do(
                            "call void @llvm.nvvm.mbarrier.init.shared("
                            f"ptr addrspace(3) {pointer}, i32 {count})"
                        )
                for name in channel.maps:
                    e.do(f"call void @llvm.nvvm.prefetch.tensormap.p0(ptr {name})")
        for channel in low.resident.values():
            for pointer, count in zip(ends_of(low, channel), (1, low.warps // 4), strict=True):
                e.do(
                    "call void @llvm.nvvm.mbarrier.init.shared("
                    f"ptr addrspace(3) {pointer}, i32 {count})"
                )
        for team in range(low.teams if low.turns is not None else 0):
            assert low.turns is not None
            turn = low.shared.pointer(low.turns, 8 * team)
            e.do(f"call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) {turn}, i32 1)")
        e.do("call void @llvm.nvvm.fence.mbarrier_init.release.cluster()")
    e.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
    low.await_previous()
    producer, consumer, out = e.block("producer"), e.block("consumer"), e.block("exit")
    is_extra = e.value(f"icmp uge i32 {e.tid}, {threads}")
    e.branch(is_extra, producer, consumer)
    e.enter(producer)
    _set_registers(low, 0)
    elected = e.value(f"icmp eq i32 {e.tid}, {threads}")
    issue = e.block("issue")
    e.branch(elected, issue, out)
    e.enter(issue)
    if persists:
        persistent.each_program(low, 1, _produce)
    else:
        _produce(low)
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
    for op in low.kernel.body.ops:
        if isinstance(op, ops.For) and op in low.streams:
            _produce_stream(low, low.streams[op])
        elif isinstance(op, ops.Load) and op in low.resident:
            _send(low, low.resident[op])
        elif isinstance(op, ops.ProgramId):
            low.op(op)
        elif isinstance(op, ops.IndexTile) and set(op.operands()) <= set(low.env):
            if not is_tile(op.result):
                low.op(op)
    low.env = saved


def ends_of(low: Lowering, channel: Channel) -> tuple[str, str]:
    """The full and the empty barrier of what a persistent kernel brings once a program."""
    assert channel.barriers is not None
    return low.shared.pointer(channel.barriers), low.shared.pointer(channel.barriers, 8)


def _send(low: Lowering, channel: Channel) -> None:
    """The producer's part of a resident operand."""
    e = low.emitter
    full, empty = ends_of(low, channel)
    wait_barrier(low, empty, e.value(f"xor i32 {low.visit}, 1"))
    e.value(
        "call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta("
        f"ptr addrspace(3) {full}, i32 {channel.bytes})"
    )
    for box, tile, name in zip(channel.boxes, channel.tiles, channel.maps, strict=True):
        fetch(low, box, tile, name, full)


def receive(low: Lowering, channel: Channel) -> SharedTile:
    """A resident operand, when it has come."""
    wait_barrier(low, ends_of(low, channel)[0], low.visit)
    return channel.tiles[0]


def give_back(low: Lowering) -> None:
    """Behind the last product with resident operands: the next program's may come."""
    for channel in low.resident.values():
        arrive_where(low, ends_of(low, channel)[1], elected(low))


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
        if isinstance(op, ops.IndexTile) and not is_tile(op.result):
            if set(op.operands()) <= set(low.env):
                low.op(op)
    free = e.value(f"xor i32 {phase}, 1")
    for channel in stream.channels:
        wait_barrier(low, stream.empty(low, channel, stage), free)
        full = stream.full(low, channel, stage)
        e.value(
            "call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta("
            f"ptr addrspace(3) {full}, i32 {channel.bytes})"
        )
        for box, tile, name in zip(channel.boxes, channel.tiles, channel.maps, strict=True):
            fetch(low, box, tile.at_stage(e.times(stage, tile.bytes)), name, full)
    following = e.value(f"add i32 {variable}, {loop.step}")
    lines = advance(low, stream, stage, phase, before.label)
    lines.append(
        f"{variable} = phi i32 [ {start}, %{before.label} ], [ {following}, %{e.at.label} ]"
    )
    e.do(f"br label %{head.label}, !llvm.loop !0")
    head.lines[mark:mark] = lines
    e.enter(done)
    stream.ring = (stage, phase)


def advance(low: Lowering, stream: Stream, stage: str, phase: str, before: str) -> list[str]:
    """The next stage and phase; the phi lines of both."""
    e = low.emitter
    more = e.value(f"add i32 {stage}, 1")
    wraps = e.value(f"icmp eq i32 {more}, {stream.stages}")
    after = e.value(f"select i1 {wraps}, i32 0, i32 {more}")
    turned = e.value(f"xor i32 {phase}, 1")
    flipped = e.value(f"select i1 {wraps}, i32 {turned}, i32 {phase}")
    latch = e.at.label
    first, parity = stream.ring
    stream.ring = (after, flipped)
    return [
        f"{stage} = phi i32 [ {first}, %{before} ], [ {after}, %{latch} ]",
        f"{phase} = phi i32 [ {parity}, %{before} ], [ {flipped}, %{latch} ]",
    ]


def wait_barrier(low: Lowering, pointer: str, parity: str) -> None:
    """Spin until a barrier's phase of the given parity is complete."""
    e = low.emitter
    again, done = e.block("wait"), e.block("waited")
    e.jump(again)
    e.enter(again)
    ready = e.value(
        "call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta("
        f"ptr addrspace(3) {pointer}, i32 {parity})"
    )
    e.branch(ready, done, again)
    e.enter(done)


# consumers ----------------------------------------------------------------------------------------


def start_sums(low: Lowering, stream: Stream, inits: list[Tile]) -> None:
    """Let dots that accumulate from zero ignore their sums in the first trip instead: nothing has
    to be cleared. inits: of the loop's carried values."""
    loop = stream.loop
    if not persistent.trips(stream) or low.cluster.splits(loop):
        return  # there may be no first trip
    for dot in stream.group or ([stream.deferred] if stream.deferred else []):
        place = loop.body.params.index(dot.acc) - 1
        if is_zero(low, loop.inits[place]):
            stream.fresh.add(dot)
            inits[place] = replace(inits[place], regs=["poison"] * len(inits[place].regs))


def is_zero(low: Lowering, value: Value) -> bool:
    """Whether a value is a constant zero."""
    entry = low.env.get(value)
    return isinstance(entry, ops.Full) and entry.value == 0


def keeps_sums(low: Lowering, op: ops.Dot) -> str:
    """A condition that holds where a dot in a stream adds to the sums of earlier trips."""
    for stream in low.streams.values():
        if op in stream.fresh:
            return low.emitter.value(f"icmp ne i32 {stream.variable}, {stream.first}")
    return "true"


def begin_trip(low: Lowering, stream: Stream) -> None:
    """Bind the loads of a trip to the current stage."""
    for channel in stream.channels:
        channel.waited, channel.done = False, 0
        for load, tile in zip(channel.loads, channel.tiles, strict=True):
            low.env[load.result] = tile.at_stage(low.emitter.times(stream.stage, tile.bytes))
            low.piped.add(load)


def before_dot(low: Lowering, op: ops.Dot) -> None:
    """Wait for the operands that the producer brings (all that one group of dots needs)."""
    group = group_of(low, op) or [op]
    for stream, channel in dict.fromkeys(pair for dot in group for pair in _channels(low, dot)):
        if not channel.waited:
            wait_barrier(low, stream.full(low, channel, stream.stage), stream.phase)
            channel.waited = True


def after_dot(low: Lowering, op: ops.Dot) -> None:
    """Release what the dot has read, once it is complete (or the trip before it, if deferred)."""
    e = low.emitter
    group = group_of(low, op)
    for stream, channel in dict.fromkeys(
        pair for dot in group or [op] for pair in _channels(low, dot)
    ):
        channel.done += 1
        if not group and channel.done < len(channel.dots):
            continue
        if stream.deferred is op or group:
            later = e.value(f"icmp ne i32 {stream.variable}, {stream.first}")
            chosen = e.value(f"and i1 {elected(low)}, {later}")
            back = e.value(f"icmp eq i32 {stream.stage}, 0")
            previous = e.value(f"sub i32 {stream.stage}, 1")
            stage: str = e.value(f"select i1 {back}, i32 {stream.stages - 1}, i32 {previous}")
        else:
            chosen, stage = elected(low), stream.stage
        arrive_where(low, stream.empty(low, channel, stage), chosen)


def before_read(low: Lowering, value: Value) -> tuple[Stream, Channel] | None:
    """Wait for what the producer brings for registers; where it comes from, if it does."""
    for stream in low.streams.values():
        for channel in stream.channels:
            if any(load.result is value for load in channel.loads):
                if not channel.waited:
                    wait_barrier(low, stream.full(low, channel, stream.stage), stream.phase)
                    channel.waited = True
                return stream, channel
    return None


def after_read(low: Lowering, stream: Stream, channel: Channel) -> None:
    """Release what every lane of the warp has read; later, where the loop does that itself."""
    if channel.held:
        return
    e = low.emitter
    e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
    lane = e.hoisted(f"and i32 {e.tid}, 31")
    first = e.hoisted(f"icmp eq i32 {lane}, 0")
    arrive_where(low, stream.empty(low, channel, stream.stage), first)


def end_stream(low: Lowering, stream: Stream) -> None:
    """Behind a quiet loop of a persistent kernel, all products complete: release the stage of the
    last trip, which no later trip did."""
    e = low.emitter
    if stream.deferred or stream.group:
        after = stream.ring[0]
        back = e.value(f"icmp eq i32 {after}, 0")
        stage = e.pick(back, stream.stages - 1, e.minus(after, 1))
        for channel in stream.channels:
            arrive_where(low, stream.empty(low, channel, stage), elected(low))
    low.shared.state = (False, False)


def arrive_where(low: Lowering, pointer: str, condition: str) -> None:
    """Arrive on a barrier where the condition holds, without a branch."""
    low.emitter.do(
        'call void asm sideeffect "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];", '
        f'"r,b,~{{memory}}"(ptr addrspace(3) {pointer}, i1 {condition})'
    )


def elected(low: Lowering) -> str:
    """One thread of each warp group."""
    part = low.emitter.hoisted(f"and i32 {low.emitter.tid}, 127")
    return low.emitter.hoisted(f"icmp eq i32 {part}, 0")


def _channels(low: Lowering, op: ops.Dot) -> list[tuple[Stream, Channel]]:
    return [
        (stream, channel)
        for stream in low.streams.values()
        for channel in stream.channels
        if op in channel.dots
    ]


def group_of(low: Lowering, op: ops.Dot) -> list[ops.Dot]:
    """The dots that are issued together with this one; empty where it is alone."""
    return next((s.group for s in low.streams.values() if op in s.group), [])


def is_deferred(low: Lowering, op: ops.Dot) -> bool:
    """Whether the dot's result may stay in flight until the next trip."""
    return op in low.deferred or any(s.deferred is op for s in low.streams.values())
