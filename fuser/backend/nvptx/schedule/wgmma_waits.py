"""Leave the matmuls of an iteration in flight until those of the next one are issued.

A loop says so (`in_flight`) whose matmuls only add to sums that it carries. The wait in it is for
the iteration before, whose stage is given back then; after the loop, the last ones are waited for,
and the last stage is given back where a producer goes on to another program, or is in another
block. Operands that threads write are overwritten after a wait for what reads them, and after a
barrier, which is due then (block_barriers.py).

    %y = for 512, (0, 0, 0), (%c)               %flying = for 512, (0, 0, 0), (%c)
        {stages = 4, in_flight = 1}
        body (%k, %stage, %phase, %sum) {           body (%k, %stage, %phase, %sum) {
                                                  wgmma_wait
      write_tile @1, %w                           write_tile @1, %w
      mbarrier_wait %full, %phase                 mbarrier_wait %full, %phase
      %a = wgmma ..., @0, @1, %sum                %a = wgmma ..., @0, @1, %sum
      %b = wgmma_wait (%a)                        %b = wgmma_wait (%a) {pending = 1}
      %empty = address @2[%stage]                 %empty = address @2[%before]
      mbarrier_arrive %empty, %first              mbarrier_arrive %empty, %later
      yield %following, %next, ..., %b            yield %following, %next, ..., %b
    }                                           }
                                                %y = wgmma_wait (%flying)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import cloned, replaced
from fuser.backend.nvptx.ir.values import SharedTile, Slot, Tile
from fuser.backend.nvptx.lowering.recorder import Recorder, Scalars

_ARRIVING = (Integer, ops.Address, ops.WarpSync, ops.MbarrierArrive)
_MAKING = (Integer, ops.Full, ops.FillEdge)
"""What an operand that threads write is made of at last."""


def leave_in_flight(program: Program) -> None:
    """Rewrite every loop that says that its matmuls may run on."""
    _block(program.body)


def _block(block: Block) -> None:
    for op in block.ops[:]:
        for inner in op.blocks():
            _block(inner)
        if isinstance(op, ops.For) and op.in_flight:
            following = _Loop(op).rewrite()
            at = block.ops.index(op) + 1
            at += _arrivals(block.ops[at:])  # others may go on as soon as all is issued
            block.ops[at:at] = following


def _arrivals(body: Sequence[Op]) -> int:
    """With how many ops arrivals, and what these are made of, a list of ops begins."""
    found = 0
    for number, op in enumerate(body, start=1):
        if not isinstance(op, _ARRIVING):
            break
        if isinstance(op, ops.MbarrierArrive):
            found = number
    return found


class _Loop:
    """One loop. wait: in it; arrivals: after that, by which each channel of a stage is given
    back."""

    def __init__(self, loop: ops.For) -> None:
        self.loop, self.body = loop, loop.body.ops
        self.wait = next(op for op in self.body if isinstance(op, ops.WgmmaWait))
        self.arrivals: list[list[Op]] = [[]]
        at = self.body.index(self.wait) + 1
        for op in self.body[at : at + _arrivals(self.body[at:])]:
            self.arrivals[-1].append(op)
            if isinstance(op, ops.MbarrierArrive):
                self.arrivals.append([])
        self.arrivals.pop()

    def rewrite(self) -> list[Op]:
        """Change the loop, and give what belongs after it."""
        loop = self.loop
        following = [self.wait_after(), *self.give_last()]
        self.give_before()
        at = self.body.index(self.wait)
        self.body[at] = dataclasses.replace(self.wait, pending=loop.in_flight)
        self.keep_operands()
        self.keep_slots(following)
        loop.run_ahead()
        return following

    def wait_after(self) -> Op:
        """The wait for the matmuls of the last iteration."""
        loop, ends = self.loop, self.loop.end.values
        flying: dict[Tile, Tile] = {
            result: dataclasses.replace(result, name=f"{result.name}.flying")
            for result, end in zip(loop.results, ends, strict=True)
            if end in self.wait.results
        }
        loop.give(flying.get(result, result) for result in loop.results)
        return ops.WgmmaWait(
            values=tuple(flying.values()), results=tuple(flying), origin=loop.origin
        )

    def give_before(self) -> None:
        """Give back the stage of the iteration before, where there was one."""
        if not self.arrivals:
            return
        variable, stage, *_ = self.loop.scalars
        recorder, e = self.integers("before")
        later = e.compare("ne", variable, self.loop.firsts[0])
        first = e.compare("eq", stage, 0)
        before = e.pick(first, self.loop.stages - 1, e.compute("sub", stage, 1))
        for arrival in self.arrivals:
            for op in arrival:
                other = replaced(op, {stage: before})
                if isinstance(other, ops.MbarrierArrive):
                    condition = e.compute("and", other.condition, later, "i1")
                    other = dataclasses.replace(other, condition=condition)
                recorder.add(other)
        at = self.body.index(self.wait) + 1
        self.body[at : at + sum(map(len, self.arrivals))] = recorder.body.ops

    def give_last(self) -> list[Op]:
        """Give back the stage of the last iteration, where somebody waits for it."""
        given = [
            op
            for arrival in self.arrivals
            for op in arrival
            if self.loop.goes_on or _goes_far(arrival[-1])
        ]
        if not given:
            return []
        loop = self.loop
        recorder, e = self.integers("last")
        after = loop.end.scalars[1] if loop.certain else loop.scalars[1]
        first = e.compare("eq", after, 0)
        last = e.pick(first, loop.stages - 1, e.minus(after, 1))
        arrivals = cloned(given, ".last", {loop.scalars[1]: last})
        if not loop.certain:
            some = e.compare("ne", loop.scalars[0], loop.firsts[0])
            arrivals = [
                dataclasses.replace(op, condition=e.compute("and", op.condition, some, "i1"))
                if isinstance(op, ops.MbarrierArrive) else op
                for op in arrivals
            ]  # fmt: skip
        return [*recorder.body.ops, *arrivals]

    def integers(self, word: str) -> tuple[Recorder, Scalars]:
        """What makes integers, by names with a word."""
        recorder = Recorder(self.loop.origin)
        return recorder, Scalars(recorder, f"{self.loop.scalars[0]}.{word}")

    def keep_operands(self) -> None:
        """Wait before threads overwrite what the matmuls in flight read."""
        at = next((n for n, op in enumerate(self.body) if self.overwrites(op)), None)
        if at is None:
            return
        while isinstance(self.body[at - 1], _MAKING):
            at -= 1
        self.body.insert(at, ops.WgmmaWait(origin=self.loop.origin))

    def keep_slots(self, following: list[Op]) -> None:
        """Nothing else may lie where the matmuls in flight read."""
        for op in self.body[:]:
            if isinstance(op, ops.Free) and op.slot in self.read:
                self.body.remove(op)
                following.append(op)

    def overwrites(self, op: Op) -> bool:
        return isinstance(op, ops.WriteTile) and op.target.slot in self.read

    @property
    def read(self) -> set[Slot]:
        """What the matmuls read."""
        tiles = (tile for op in self.body if isinstance(op, ops.Wgmma) for tile in (op.a, op.b))
        return {tile.slot for tile in tiles if isinstance(tile, SharedTile)}


def _goes_far(op: Op) -> bool:
    """Whether an arrival is in other blocks too."""
    return isinstance(op, ops.MbarrierArrive) and op.block is not None
