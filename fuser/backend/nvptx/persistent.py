"""Persistent kernels: a block for each multiprocessor, which runs programs of the grid in turn.

The producer goes on to the next program's copies while the computing warps are still at the end of
the one before, so neither the start of a block nor the first round trip to memory is waited for
again. With two ping-pong warp groups each has a program of its own and they alternate: what follows
the matmuls of one (a bias, GELU, the stores) runs while the tensor cores work for the other. They
alternate at the ring: a wait tells neighbouring fills of a stage apart, but not more distant ones,
so a group begins when the other has met the last of its own.

It fits kernels whose loops do nothing but accumulate what the producer brings, over a number of
iterations that is known, so that both sides can tell where in the ring a program begins; and
rotated loops (rotate.py) of one warp group, where both sides count; there, programs of different
lengths are shared out beforehand (balance.py). What these multiply that does not change with the
loop, the queries of attention, is brought by the producer too, as soon as the last iteration of the
program before has multiplied its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuser.backend.nvptx import balance
from fuser.backend.nvptx.assignment import trips_of
from fuser.backend.nvptx.boxes import box_of
from fuser.backend.nvptx.builder import Builder
from fuser.backend.nvptx.ir.strips import BUFFER
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.scalars import is_scalar_arithmetic
from fuser.backend.nvptx.stage import shared_tile_for
from fuser.backend.nvptx.stream import (
    Channel,
    Ring,
    Stream,
    arrive_where,
    barrier_at,
    elected,
    wait_barrier,
)
from fuser.backend.nvptx.tensor_map import add_map
from fuser.backend.nvptx.turns import each_turn
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen import ops


def wanted(low: Builder, streams: Mapping[ops.For, Stream]) -> bool:
    """Whether a kernel of these streams is to be persistent."""
    if low.shares is not None and streams:
        return True
    if not low.kernel.schedule.persistent or not streams:
        return False
    programs = size_hint(low.order.programs)
    if programs <= low.neighbours.at_once() or low.cluster.blocks > 1:
        return False
    return rotates(low, streams) or all(
        stream.quiet and trips(stream) for stream in streams.values()
    )


def _decide(low: Builder) -> None:
    """Note why the blocks of a kernel with streams are persistent, or ping-pong, or not."""
    decisions, programs = low.decisions, size_hint(low.order.programs)
    most, asked = low.neighbours.at_once(), int(low.kernel.schedule.extra.get("teams", 1))
    if wanted(low, low.streams):
        decisions.apply("persistent blocks", f"{programs} programs on {most} blocks")
    elif not low.kernel.schedule.persistent:
        decisions.refuse("persistent blocks", "the schedule does not ask for them")
    elif programs <= most:
        decisions.refuse("persistent blocks", f"{programs} programs all run at once")
    elif low.cluster.blocks > 1:
        decisions.refuse("persistent blocks", "a cluster shares each program")
    else:
        decisions.refuse("persistent blocks", "its loops do more than add up, or for unknown times")
    if low.feeding.teams > 1:
        decisions.apply("ping-pong", f"{low.feeding.teams} warp groups have a program each")
    elif asked > 1:
        why = "blocks are not persistent" if not wanted(low, low.streams) else "of groups of four"
        decisions.refuse("ping-pong", why if low.warps == 4 else f"{low.warps} warps, not four")


def rotates(low: Builder, streams: Mapping[ops.For, Stream]) -> bool:
    """Whether the only stream is of a rotated loop."""
    from fuser.backend.nvptx.chain import find_chain

    return len(streams) == 1 and all(find_chain(low, stream) for stream in streams.values())


def teams_of(low: Builder, streams: Mapping[ops.For, Stream]) -> int:
    """Ping-pong warp groups in a block; 1: none."""
    teams = int(low.kernel.schedule.extra.get("teams", 1))
    return teams if teams > 1 and wanted(low, streams) and low.warps == 4 else 1


def trips(stream: Stream) -> int:
    """Iterations of a stream's loop; 0 where they are not known."""
    return trips_of(stream.loop)


def begin(low: Builder) -> bool:
    """Prepare a kernel that is to be persistent; whether it is."""
    _decide(low)
    if not wanted(low, low.streams):
        return False
    e, shared = low.scalars, low.shared
    programs = low.order.programs
    units = low.neighbours.at_once()
    if low.shares is not None:
        low.shares.begin()
    else:
        # of open sizes there may be fewer: blocks beyond them find nothing to do
        low.order.persist(units if is_symbolic(programs) else min(units, programs))
        if low.feeding.teams == 1:
            balance.share_out(low)
    if low.feeding.teams > 1:
        low.feeding.turns = shared.allocate(8 * low.feeding.teams, 16)
        number = e.hoisted(f"lshr i32 {e.tid}, {(32 * low.warps).bit_length() - 1}")
        shared.team = e.hoisted(
            f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {number}, i32 0, i32 31)"
        )
        shared.teams = low.feeding.teams
    low.warp_buffers = shared.allocate(BUFFER * low.warps, 128)
    if rotates(low, low.streams):
        low.feeding.resident = _residents(low)
    return True


def _residents(low: Builder) -> dict[ops.Load, Channel]:
    """Operands from before the loop that the producer can bring."""
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
        channel.barriers = low.shared.allocate(16, 16)
        found[op] = channel
    return found


def consume(low: Builder) -> None:
    """The computing warps' part of one program."""
    low.shared.state = (False, False)
    if low.feeding.turns is not None:
        own = barrier_at(low, low.feeding.turns, low.scalars.times(low.shared.team, 8))
        wait_barrier(low, own, low.feeding.turn)
    low.env, low.converted, low.operands = {}, {}, {}
    low.program()
    if any(low.shared.state):
        low.shared.barrier()


def without_roles(low: Builder) -> None:
    """Emit a kernel whose blocks do their shares (shares.py), where all warps copy and compute."""
    shares = low.shares
    assert shares is not None
    shares.begin()

    def stretch() -> None:
        low.shared.state = (False, False)
        low.env, low.converted, low.operands = {}, {}, {}
        low.program()

    shares.each_stretch(1, stretch, last=low.shared.barrier)


def pass_turn(low: Builder, stream: Stream) -> None:
    """Behind the last loop of a program: the ring is the other warp group's."""
    if low.feeding.turns is None or stream is not [*low.streams.values()][-1]:
        return
    e = low.scalars
    other = e.value(f"xor i32 {low.shared.team}, 1")
    arrive_where(low, barrier_at(low, low.feeding.turns, e.times(other, 8)), elected(low))


def each_program(low: Builder, teams: int, emit: Callable[[], None]) -> None:
    """Emit a loop over the block's programs: all of them, or those of one of several warp
    groups."""
    if low.shares is not None:
        low.shares.each_stretch(teams, emit)
        return
    e, blocks = low.scalars, low.order.starts
    first = e.hoisted(f"call i32 @llvm.nvvm.read.ptx.sreg.{low.order.unit}.x()")
    streams = list(low.streams.values())
    starts: list[Ring] = [(0, 0) for _ in streams]
    if teams > 1:
        team = low.shared.team
        first = str(e.plus(first, e.times(team, blocks)))
        starts = [_beyond(low, stream, (0, 0), team) for stream in streams]
    program = ""

    def admit(number: str) -> str:
        nonlocal program
        program = balance.listed(low, number)
        return e.value(f"icmp ult i32 {program}, {e.size(low.order.programs)}")

    def turn(number: str) -> tuple[Operand, list[Ring]]:
        low.order.choose(e, program)
        emit()
        ends = [_beyond(low, stream, stream.ring, teams - 1) for stream in streams]
        return e.value(f"add i32 {number}, {blocks * teams}"), ends

    each_turn(low, teams, first, starts, admit, turn)


def _beyond(low: Builder, stream: Stream, ring: Ring, programs: Operand) -> Ring:
    """(stage, phase) after this many programs of other warp groups: none or one."""
    if programs == 0:
        return ring
    e = low.scalars
    turns, rest = divmod(trips(stream), stream.stages)
    more, odd = rest, turns % 2
    stage, phase = ring
    if isinstance(programs, str):
        chosen = e.value(f"icmp ne i32 {programs}, 0")
        return e.pick(chosen, more, 0), e.pick(chosen, odd, 0)
    moved = e.plus(stage, more)
    wraps = e.value(f"icmp uge i32 {moved}, {stream.stages}")
    stage = e.pick(wraps, e.minus(moved, stream.stages), moved)
    flip = e.pick(wraps, 1 - odd, odd)
    return stage, e.value(f"xor i32 {phase}, {flip}")
