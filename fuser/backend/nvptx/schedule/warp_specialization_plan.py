"""Which loops of a kernel a producer warp can feed, and what room their stages get.

All staged loads of a kernel must be boxes or windows whose coordinates the producer can compute:
index arithmetic on scalars alone. Otherwise the kernel is not split into roles, and copies with
cp.async.
"""

from __future__ import annotations

from dataclasses import replace

from fuser.backend.nvptx.cluster.loop_bounds import needs_long
from fuser.backend.nvptx.ir.values import tile_bytes
from fuser.backend.nvptx.ir.warp_transpose import BUFFER
from fuser.backend.nvptx.layouts.assignment import (
    Assignment,
    accumulates,
    lone_dot,
    shared_values,
    trip_count,
)
from fuser.backend.nvptx.layouts.dot_plan import runs_on
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.scalars import is_scalar_arithmetic
from fuser.backend.nvptx.memory.operand_staging import shared_tile_for
from fuser.backend.nvptx.memory.tensor_map import add_map, are_summed, edge_rows, filled_rows
from fuser.backend.nvptx.memory.tma_boxes import Box, source_of
from fuser.backend.nvptx.schedule.producer_ring import Channel, Stream
from fuser.backend.nvptx.schedule.producer_warp import producer_warps
from fuser.backend.nvptx.tile_scheduler.persistent_plan import decide, plan_scheduler
from fuser.graph.sizes import size_hint
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Op
from fuser.tilegen.value import Value

MAX_WARPS = 32
"""Of a block."""
DEFAULT = True
"""Whether kernels are split into roles where they can be; `schedule.warp_specialized` overrides."""


MECHANISM = "warp specialisation"


def plan_streams(low: Builder, stages: int) -> dict[ops.For, Stream]:
    """The streams of a kernel; empty where it cannot be split into roles."""
    found = _planned(low, stages)
    if isinstance(found, str):
        low.decisions.refuse(MECHANISM, found)
        return {}
    count = max(stream.stages for stream in found.values())
    low.decisions.apply(MECHANISM, f"a producer warp fetches {count} stages ahead by TMA")
    decide(low)
    return found


def _planned(low: Builder, stages: int) -> dict[ops.For, Stream] | str:
    """The streams, or why there are none."""
    plan, kernel = low.assignment, low.kernel
    if not plan.staged:
        return "no load goes straight to shared memory"
    asked = kernel.schedule.warp_specialized
    if not (DEFAULT if asked is None else asked):
        return "the schedule says so"
    if not (low.target.wgmma or low.target.tcgen05):
        return f"{low.target.arch} has no wgmma whose operands TMA could fetch"
    if stages < 2:
        return f"a ring of {stages} stages lets nothing run ahead"
    if low.warps % 4:
        return f"{low.warps} warps are no whole groups of four"
    if low.warps + producer_warps(low.warps) > MAX_WARPS:
        return f"{low.warps} warps leave no room for a producer"
    branches = ops.If | ops.While
    if low.caller and (low.hazards.talks or any(isinstance(op, branches) for op in kernel.walk())):
        return "a caller's kernel that branches, or waits for other programs"
    if low.caller and low.hazards.observed:
        return "a caller's kernel that loads what it stores"
    streams: dict[ops.For, Stream] = {}
    why = _find_streams(low, kernel.body, set(kernel.scalars), streams)
    if why:
        return why
    first = [op for op in kernel.body.ops if isinstance(op, ops.Load) and op in plan.staged]
    if len(first) + sum(len(_staged(low.assignment, loop)) for loop in streams) != len(plan.staged):
        return "it loads operands outside of the loops that multiply them"
    if not streams:
        return "it loads operands outside of its loops"
    low.producer.feed(streams)
    plan_scheduler(low)
    if not _allocate(low, streams, stages):
        low.producer.feed({})
        return "two stages do not fit shared memory, or tiles are not whole"
    return streams


def _find_streams(
    low: Builder, block: Block, known: set[Value], streams: dict[ops.For, Stream]
) -> str:
    """Find the streams of a block and of the loops in it; why there can be none, or "". known:
    scalars that the producer can compute."""
    for op in block.ops:
        if _is_scalar(op, known):
            known.add(op.result)
        elif isinstance(op, ops.For):
            inside = _staged(low.assignment, op)
            feeds = any(load in low.assignment.staged for load in op.body.walk())
            if feeds and needs_long(low, op):
                return "the range of its loop may need 64 bits"
            if inside:
                stream = _plan_stream(low, op, inside, known)
                if isinstance(stream, str):
                    return stream
                streams[op] = stream
            elif feeds:
                if not set(op.operands()) - set(op.inits) <= known:
                    return "the range of a loop around it depends on data"
                carried = counters_of(op, known)
                low.producer.counters[op] = carried
                inner = {*known, op.body.params[0], *(op.body.params[at + 1] for at in carried)}
                why = _find_streams(low, op.body, inner, streams)
                if why:
                    return why
    return ""


def counters_of(loop: ops.For, known: set[Value]) -> tuple[int, ...]:
    """Which carried values of a loop are integers that a producer can compute, by their number."""
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    found = {
        at for at, init in enumerate(loop.inits)
        if init in known and not init.shape and not init.dtype.is_float
    }  # fmt: skip
    while True:
        inner = {*known, loop.body.params[0], *(loop.body.params[at + 1] for at in found)}
        for op in loop.body.ops:
            if _is_scalar(op, inner):
                inner.add(op.result)
        kept = {at for at in found if last.args[at] in inner}
        if kept == found:
            return tuple(sorted(kept))
        found = kept


def _is_scalar(op: Op, known: set[Value]) -> bool:
    """Whether an op is arithmetic on known scalars."""
    return is_scalar_arithmetic(op) and set(op.operands()) <= known


def _staged(assignment: Assignment, loop: ops.For) -> list[ops.Load]:
    return [op for op in loop.body.ops if isinstance(op, ops.Load) and op in assignment.staged]


def _plan_stream(
    low: Recording, loop: ops.For, loads: list[ops.Load], known: set[Value]
) -> Stream | str:
    """The stream of a loop, or why there is none."""
    plan = low.assignment
    if not set(loop.operands()) - set(loop.inits) <= known:
        return "the range of its loop depends on data"
    if 0 < trip_count(loop) <= 1:
        return "its loop has one iteration"
    inner = known | {loop.body.params[0]}
    for op in loop.body.ops:
        if _is_scalar(op, inner):
            inner.add(op.result)
    channels: list[Channel] = []
    for load in loads:
        dots = _dots_of(low.assignment, load)
        tf32x3 = any(plan.dots[dot].kind == "wide" for dot in dots)
        size = 4 if tf32x3 else dots[0].a.dtype.bytes if dots else 2
        windows = low.kernel.schedule.im2col
        source = source_of(load, plan.accesses[load], windows, size)
        if source is None:
            return f"what it loads of {load.view.buffer.name} is no box of a tensor map"
        if not set(load.operands()) <= inner:
            return f"where it loads of {load.view.buffer.name} depends on data"
        kinds = {plan.dots[dot].kind for dot in dots}
        if not kinds <= {"wgmma", "wide"} or any(dot not in loop.body.ops for dot in dots):
            return f"what is loaded of {load.view.buffer.name} is not multiplied by wgmma"
        if not dots and len(load.shape) == 2 and any(c.is_tile for c in channels):
            return "more than one tile beside the operands takes too much room"
        match = next((c for c in channels if set(c.dots) & set(dots)), None)
        if match is None:
            channels.append(Channel([load], [source], dots))
        else:
            match.loads.append(load)
            match.sources.append(source)
            match.dots.extend(dot for dot in dots if dot not in match.dots)
    channels = [
        replace(c, read=bool(c.dots) and any(_is_read(low.assignment, load) for load in c.loads))
        for c in channels
    ]
    lone = lone_dot(loop, plan)
    tf32x3 = lone is not None and plan.dots[lone].kind == "wide"
    if tf32x3 and not (trip_count(loop) and loop in low.kernel.body.ops):
        return "float32 operands are split over a known number of iterations"
    later = lone if lone is not None and runs_on(lone, plan.dots[lone]) else None
    quiet = not tf32x3 and _is_quiet(low, loop)
    every = [op for op in loop.body.ops if isinstance(op, ops.Dot)]
    group: list[ops.Dot] = []
    if quiet and len(every) > 1 and all(accumulates(dot, loop, plan) for dot in every):
        alike = len({dot.acc.dtype for dot in every}) == 1
        if alike and all(runs_on(dot, plan.dots[dot]) for dot in every):
            group = every
    return Stream(loop, channels, later, lone if tf32x3 else None, group, quiet=quiet)


def _is_quiet(low: Recording, loop: ops.For) -> bool:
    """Whether a body only multiplies what the producer fetches or what is there before the loop."""
    local = {value for op in loop.body.ops for value in op.results} | set(loop.body.params)
    fetched: set[Value] = set()
    for op in loop.body.ops:
        match op:
            case ops.Load() if op in low.assignment.staged:
                fetched.add(op.result)
            case ops.Permute() if op.x in fetched:
                fetched.add(op.result)
            case ops.Dot():
                if not {op.a, op.b} & local <= fetched:
                    return False
            case ops.Cast() | ops.Map() if _stays(low, op, fetched):
                pass
            case ops.IndexTile() | ops.Full() | ops.Yield():
                pass
            case _:
                return False
    return True


def _stays(low: Recording, op: ops.Cast | ops.Map, fetched: set[Value]) -> bool:
    """Whether an op works on what threads have, or read of what is fetched, as it lies there."""
    plan = low.assignment
    tiles = [v for v in op.operands() if v.shape and v not in fetched and v not in plan.flexible]
    return all(low.layout(value) == low.layout(op.result) for value in tiles)


def _is_read(assignment: Assignment, load: ops.Load) -> bool:
    """Whether threads read a staged load."""
    return any(isinstance(use, ops.Cast) for use in assignment.uses.get(load.result, ()))


def _dots_of(assignment: Assignment, load: ops.Load) -> list[ops.Dot]:
    found: list[ops.Dot] = []
    for value in shared_values(load, assignment):
        for use in assignment.uses.get(value, ()):
            if isinstance(use, ops.Dot) and use not in found:
                found.append(use)
    return found


def _allocate(low: Builder, streams: dict[ops.For, Stream], stages: int) -> bool:
    """Buffers and barriers of every stream. They live from the start: the producer runs ahead of
    whatever else uses shared memory."""
    resident = sum(
        tile_bytes(op.shape, low.assignment.accesses[op].axis, op.view.dtype)
        for op in low.kernel.body.ops
        if isinstance(op, ops.Load) and op in low.assignment.staged
    )
    for stream in streams.values():
        for channel in stream.channels:
            channel.tiles.extend(shared_tile_for(low, load) for load in channel.loads)
            for load, tile in zip(channel.loads, channel.tiles, strict=True):
                if tile.shape != load.shape:
                    return _take_back(low, streams)
    if not low.scheduler.blocks and low.multicast.blocks == 1:
        _share_rings(low, streams)
    leaders = [stream for stream in streams.values() if stream.leader is None]
    each = sum(c.bytes for s in leaders for c in s.channels)
    room = low.target.shared_bytes // max(1, low.scheduler.blocks_per_sm)
    room -= resident + 1024 * len(low.shared.slots) + 2048
    if low.scheduler.blocks or low.producer.counters:
        # nothing may take the place of the stages: the producer is at the next program already
        room -= low.warps * low.producer.consumer_groups * BUFFER
    stages = min(max(stages, _depth(low, each)), room // each)
    if stages < 2:
        return _take_back(low, streams)
    low.multicast.plan(streams.values())
    for stream in streams.values():
        goes_on = low.scheduler.blocks > 0 or stream.loop not in low.kernel.body.ops
        stream.have_stages(stages, goes_on)
        # a caller may store rows beyond the bounds of what they are made of
        if not low.caller and _rows_stay_apart(low, stream):
            _fetch_less(low, stream)
        for at, channel in enumerate(stream.channels):
            if stream.leader is not None:
                barriers = stream.leader.channels[at].barriers
                assert barriers is not None
            else:
                for tile in channel.tiles:
                    tile.slot.resize(tile.bytes * stages)
                barriers = low.shared.allocate(16 * stages, 16)
            channel.use_barriers(barriers)
            fetched = list(zip(channel.loads, channel.sources, channel.tiles, strict=True))
            channel.maps.extend(add_map(low, load, source, tile) for load, source, tile in fetched)
            channel.edges.extend(
                add_map(low, load, source, tile, edge=True)
                if isinstance(source, Box) and source.edge else ""
                for load, source, tile in fetched
            )  # fmt: skip
    return True


def _share_rings(low: Recording, streams: dict[ops.For, Stream]) -> None:
    """Let a loop go on with the buffers and barriers of an earlier one of the same form."""
    leaders: list[Stream] = []
    for stream in streams.values():
        alike = (other for other in leaders if other.forms == stream.forms and not other.split)
        leader = next(alike, None)
        if leader is None or stream.split:
            leaders.append(stream)
            continue
        for channel in stream.channels:
            for tile in channel.tiles:
                low.shared.cancel(tile.slot)
        stream.follow(leader)


def _rows_stay_apart(low: Recording, stream: Stream) -> bool:
    """Whether a row of an operand counts in no other row or column of what a kernel stores."""
    mixing = ops.Reduce | ops.Scan | ops.AtomicAdd
    return stream.quiet and not any(isinstance(op, mixing) for op in low.kernel.walk())


def _fetch_less(low: Builder, stream: Stream) -> None:
    """Leave rows out that operands do not have."""
    for channel in stream.channels:
        for at, (load, tile) in enumerate(zip(channel.loads, channel.tiles, strict=True)):
            source = channel.sources[at]
            if not channel.dots or not isinstance(source, Box) or tile.flat:
                continue
            if low.multicast.slice_of(load, tile) or are_summed(
                low.assignment, load, 1 - tile.inner
            ):
                continue
            rows = filled_rows(source, tile)
            if rows < tile.rows:
                channel.sources[at] = replace(source, rows=rows)
            else:
                channel.sources[at] = replace(source, edge=edge_rows(source, tile))


def _depth(low: Builder, each: int) -> int:
    """Stages that keep enough bytes on their way where a multiprocessor runs one small block: a
    round trip to L2 takes near a microsecond, in which it could receive some 64 KiB."""
    programs = low.cluster.blocks
    for extent in low.kernel.grid:
        programs *= size_hint(extent)
    alone = programs <= low.target.units and low.attempt.stages == low.kernel.schedule.stages
    if low.scheduler.blocks and low.attempt.stages == low.kernel.schedule.stages:
        return 8
    return min(16, (96 << 10) // each) if alone else 0


def _take_back(low: Recording, streams: dict[ops.For, Stream]) -> bool:
    for stream in streams.values():
        for channel in stream.channels:
            for tile in channel.tiles:
                low.shared.cancel(tile.slot)
    return False
