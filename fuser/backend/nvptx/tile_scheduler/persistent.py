"""Persistent kernels: a block for each multiprocessor, which runs programs of the grid in turn.

The producer goes on to the next program's copies while the computing warps are still at the end of
the one before, so neither the start of a block nor the first round trip to memory is waited for
again. With two ping-pong warp groups each has a program of its own and they alternate: what follows
the matmuls of one (a bias, GELU, the stores) runs while the tensor cores work for the other. They
alternate at the ring: a wait tells neighbouring fills of a stage apart, but not more distant ones,
so a group begins when the other has met the last of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.ir.warp_transpose import BUFFER
from fuser.backend.nvptx.layouts.assignment import trips_of
from fuser.backend.nvptx.lowering.builder import Builder
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
from fuser.backend.nvptx.tile_scheduler.persistent_plan import decide, rotates, wanted
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import each_turn
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops


def begin(low: Builder) -> bool:
    """Prepare a kernel that is to be persistent; whether it is."""
    decide(low)
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
            static_load_balance.share_out(low)
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
    if low.feeding.turns is not None:
        own = barrier_at(low, low.feeding.turns, low.scalars.times(low.shared.team, 8))
        wait_barrier(low, own, low.feeding.turn)
    low.env, low.converted, low.operands = {}, {}, {}
    low.program()


def without_roles(low: Builder) -> None:
    """Emit a kernel whose blocks do their shares (tile_scheduler/stream_k.py), where all warps copy
    and compute."""
    shares = low.shares
    assert shares is not None
    shares.begin()

    def stretch() -> None:
        low.env, low.converted, low.operands = {}, {}, {}
        low.program()

    shares.each_stretch(1, stretch)


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
        program = static_load_balance.listed(low, number)
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
    turns, rest = divmod(trips_of(stream.loop), stream.stages)
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
