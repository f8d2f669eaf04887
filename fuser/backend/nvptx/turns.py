"""The loop of a persistent block over what it does, one program or part of one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fuser.backend.nvptx.emitter import Operand

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

Ring = tuple[Operand, Operand]


def each_turn(
    low: Lowering,
    teams: int,
    first: Operand,
    starts: list[Ring],
    admit: Callable[[str], str],
    emit: Callable[[str], tuple[Operand, list[Ring]]],
) -> None:
    """Emit the loop. first: the number it begins at; starts: (stage, phase) of every stream's ring
    there. admit: emits the condition under which a number is done. emit: emits what is done, and
    gives the number that follows and the rings then, for one of two warp groups behind the other's
    program.
    """
    e = low.emitter
    streams = list(low.streams.values())
    # a fresh barrier counts as complete for parity 1: warp group 0 begins at once
    turn = e.value(f"sub i32 1, {low.shared.team}") if teams > 1 else ""
    before, head = e.at, e.block("turn")
    body, done = e.block("turn.body"), e.block("turn.end")
    e.jump(head)
    e.enter(head)
    mark = len(head.lines)
    number = e.name_of()
    rings = [(e.name_of(), e.name_of()) for _ in streams]
    for stream, ring in zip(streams, rings, strict=True):
        stream.ring = ring
    low.turn, low.visit, low.number = e.name_of(), e.name_of(), number
    e.branch(admit(number), body, done)
    e.enter(body)
    following, ends = emit(number)
    carried: list[tuple[str, Operand, Operand]] = [(number, first, following)]
    if low.resident:
        carried.append((low.visit, 0, e.value(f"xor i32 {low.visit}, 1")))
    if teams > 1:
        carried.append((low.turn, turn, e.value(f"xor i32 {low.turn}, 1")))
    for ring, start, end in zip(rings, starts, ends, strict=True):
        carried += zip(ring, start, end, strict=True)
    latch = e.at.label
    head.lines[mark:mark] = [
        f"{name} = phi i32 [ {start}, %{before.label} ], [ {end}, %{latch} ]"
        for name, start, end in carried
    ]
    e.do(f"br label %{head.label}, !llvm.loop !0")
    e.enter(done)
    for stream, ring in zip(streams, rings, strict=True):
        stream.ring = ring
