"""Copy the operands of a loop ahead of their use: a ring of stages instead of one.

A loop that says so (`stages`, `ahead`) begins with the copies of its iteration. They are issued
`ahead` iterations earlier, the first ones before the loop, each iteration's as a group of its
own. The one barrier that is due after the wait (block_barriers.py) serves both sides: everyone's
copies have landed, and everyone is done with the stage that is written next. Where fewer than
`stages` - 1 are ahead, matmuls may still read the stage of the iteration before (wgmma_waits.py).

                                                copy_async &x[0], @0
                                                commit_copies
                                                copy_async &x[64], @0[8192]
                                                commit_copies
    for 512, (0,)                               for 512, (0, 0)
        {stages = 3, ahead = 2} body (%k) {         body (%k, %stage) {
      copy_async &x[%k], @0                       wait_copies {pending = 1}
      commit_copies                               where %more {  # %later < 512
      wait_copies                                   copy_async &x[%later], @0[%other]
      %sum = mma ..., @0, ...                     }
      yield %following                            commit_copies
    }                                             %sum = mma ..., @0[%at], ...
                                                  yield %following, %next
                                                }
"""

from __future__ import annotations

import dataclasses

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import step_of
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import at_stages, cloned
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.recorder import Recorder, Region, Scalars


def pipeline_loops(program: Program) -> None:
    """Rewrite every loop that says how far its copies go ahead."""
    _block(program.body)


def _block(block: Block) -> None:
    made: list[Op] = []
    for op in block.ops:
        for inner in op.blocks():
            _block(inner)
        if isinstance(op, ops.For) and op.ahead:
            made += _Pipeline(op).rewrite()
        made.append(op)
    block.ops[:] = made


class _Pipeline:
    """One loop. copies: of an iteration, with what they are made of. tiles: that they fill. rest:
    what follows them."""

    def __init__(self, loop: ops.For) -> None:
        self.loop = loop
        body = loop.body.ops
        at = next(n for n, op in enumerate(body) if isinstance(op, ops.CommitCopies))
        self.copies, self.rest = body[:at], body[at + 2 :]  # a wait is between
        self.tiles = [op.target for op in self.copies if isinstance(op, ops.CopyAsync)]
        self.recorder = Recorder(loop.origin)
        self.e = Scalars(self.recorder, f"{loop.scalars[0]}.")

    def rewrite(self) -> list[Op]:
        """Change the loop, and give what precedes it."""
        loop, e, add = self.loop, self.e, self.recorder.add
        variable, first = loop.scalars[0], loop.firsts[0]
        stage, step = f"{variable}.stage", step_of(loop)
        assert step
        for number in range(loop.ahead):
            self.fill(e.plus(first, number * step), number, f".{number}")
        before, body = self.recorder.body, loop.body
        end = self.rest.pop()
        assert isinstance(end, ops.Yield)
        self.recorder.turn_to(body)
        body.ops.clear()
        add(ops.WaitCopies(pending=loop.ahead - 1))
        later = e.plus(variable, loop.ahead * step)
        # the stage that is `ahead` iterations on, round the ring
        over = e.compare("uge", stage, loop.stages - loop.ahead)
        other = e.pick(over, e.minus(stage, loop.stages - loop.ahead), e.plus(stage, loop.ahead))
        self.fill(later, other, ".later")
        current = {tile.slot: e.times(stage, tile.bytes) for tile in self.tiles}
        body.ops.extend(at_stages(op, current) for op in self.rest)
        more = e.compute("add", stage, 1)
        wraps = e.compare("eq", more, loop.stages)
        following = e.pick(wraps, 0, more)
        add(end)
        loop.carry_scalar(stage, 0, following)
        loop.run_ahead(in_flight=loop.in_flight, goes_on=loop.goes_on)
        return before.ops

    def fill(self, variable: Operand, stage: Operand, suffix: str) -> None:
        """Copy what an iteration loads into a stage, if there is such an iteration, as a group."""
        stop = self.loop.stop
        if isinstance(variable, int) and isinstance(stop, int):
            if variable < stop:
                self.copy(variable, stage, suffix)
        else:
            condition = self.e.compare("slt", variable, stop)
            region = Region(self.recorder, ops.Where(condition=condition, body=Block()))
            self.copy(variable, stage, suffix)
            region.following()
        self.recorder.add(ops.CommitCopies())

    def copy(self, variable: Operand, stage: Operand, suffix: str) -> None:
        for op in cloned(self.copies, suffix, {self.loop.scalars[0]: variable}):
            if isinstance(op, ops.CopyAsync):
                target = op.target.at_stage(self.e.times(stage, op.target.bytes))
                op = dataclasses.replace(op, target=target)
            self.recorder.add(op)
