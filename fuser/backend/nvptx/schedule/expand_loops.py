"""Expand loops by their schedule: a prologue, a steady loop and an epilogue.

An op of a body may say of which iteration it is (`stage`), and where the steady loop has it
(`order`, `ops.Scheduled`). Indices and conditions that it is made of go with it.

Early ops (stage < 0): the prologue has those of the first iterations. Copies are issued where there
is such an iteration, into the stages of a ring. The barrier that is due after the wait
(block_barriers.py) serves both sides: everyone's copies have landed, and everyone is done with the
stage that is written next. Loads stay in registers; where there is no such iteration they read this
one's again, or nothing if they have a condition (`where`).

    %y = for 512, (0,), (%s)                      copy_async &x[0], @0
        {stages = 3} body (%k, %c) {              commit_copies
      copy_async &x[%k], @0                       copy_async &x[64], @0[8192]
          {stage = -2, order = 3}                 commit_copies
      commit_copies {stage = -2, order = 3}       %w.first = load &w[0]
      wait_copies                                 %y = for 512, (0, 0), (%s, %w.first)
      %w = load &w[%k] {stage = -1}                   body (%k, %stage, %c, %w) {
      %sum = mma ..., @0, %w, %c                    %w.next = load &w[%ahead]
      yield %following, %sum                        wait_copies {pending = 1}
    }                                               where %more {
                                                      copy_async &x[%later], @0[%other]
                                                    }
                                                    commit_copies
                                                    %sum = mma ..., @0[%at], %w, %c
                                                    yield %following, %next, %sum, %w.next
                                                  }

Late ops (stage 1) are a wait for matmuls and what is given back after it: of the iteration before,
where there was one. Matmuls add to sums where they are, so this iteration's run on. The epilogue
waits for the last ones, and gives their stage back where somebody waits for it: in another block,
or where the ring `goes_on`.

    %y = for 512, (0, 0, 0), (%c)                 %flying = for 512, (0, 0, 0), (%c)
        {stages = 4} body (%k, %stage, ...) {         body (%k, %stage, ...) {
      %a = wgmma ..., @0, %sum                      %a = wgmma ..., @0, %sum
      %b = wgmma_wait (%a) {stage = 1}              %b = wgmma_wait (%a) {pending = 1}
      %empty = address @2[%stage]                   %empty = address @2[%before]
      mbarrier_arrive %empty, %one {stage = 1}      mbarrier_arrive %empty, %later
      yield %following, %next, ..., %b              yield %following, %next, ..., %b
    }                                             }
                                                  %y = wgmma_wait (%flying)
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import step_of, take_two
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import at_stages, cloned
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.lowering.recorder import Recorder, Region, Scalars
from fuser.backend.nvptx.prefetch.code_motion import read_by

_COPIES = (ops.CopyAsync, ops.CopyOwn)
_ARRIVING = (Integer, ops.Address, ops.WarpSync, ops.MbarrierArrive)
_BEFORE, _AFTER = -1, -2
"""Places before the loop and after it."""


def expand_loops(program: Program) -> None:
    """Rewrite every loop that has ops of other iterations."""
    _block(program.body)


def _block(block: Block) -> None:
    for op in block.ops[:]:
        for inner in op.blocks():
            _block(inner)
        if isinstance(op, ops.For) and any(map(stage_of, op.body.ops)):
            places = _Expansion(op).run()
            at = block.ops.index(op) + 1
            at += arrivals(block.ops[at:])  # others may go on as soon as all is issued
            block.ops[at:at] = places[_AFTER]
            at = block.ops.index(op)
            block.ops[at:at] = places[_BEFORE]
            if op.unroll == 2:
                _take_two(block, op)


def stage_of(op: Op) -> int:
    """So many iterations after its own an op is done; less than 0: before it."""
    return op.stage if isinstance(op, ops.Scheduled) else 0


def arrivals(body: Sequence[Op]) -> int:
    """With how many ops arrivals, and what these are made of, a list of ops begins."""
    found = 0
    for number, op in enumerate(body, start=1):
        if not isinstance(op, _ARRIVING):
            break
        if isinstance(op, ops.MbarrierArrive):
            found = number
    return found


def _take_two(block: Block, loop: ops.For) -> None:
    """Make two iterations one, where nobody reads the scalars of the last one after the loop."""
    loop.overlap(unroll=1)
    at = block.ops.index(loop)
    scalars = {*loop.scalars, *loop.end.scalars}
    if not any(scalars & read_by(op) for op in block.ops[at + 1 :]):
        block.ops[at:at] = take_two(loop)


class _Expansion:
    """One loop. body: its ops as they were. early, late: those of other iterations; moved: and what
    they are made of. places: what comes before the op of a number in the steady loop. loaded: of
    the first iterations, and of a later one. ring: bytes of a stage of what is copied ahead."""

    def __init__(self, loop: ops.For) -> None:
        self.loop, self.body = loop, loop.body.ops[:]
        self.variable, self.first, self.step = loop.scalars[0], loop.firsts[0], step_of(loop)
        scheduled = [op for op in self.body if isinstance(op, ops.Scheduled)]
        self.early = [op for op in scheduled if op.stage < 0]
        self.late = [op for op in scheduled if op.stage > 0]
        self.makers = {item: op for op in self.body for item in (*op.results, *op.names)}
        self.moved: set[Op] = set()
        self.places = defaultdict[int, list[Op]](list)
        self.loaded = defaultdict[Op, list[Tile]](list)
        targets = [op.target for op in self.early if isinstance(op, ops.CopyAsync)]
        self.ring = {tile.slot: tile.bytes for tile in targets}
        self.stage = f"{self.variable}.stage" if self.ring else [*loop.scalars, ""][1]
        self.recorder = Recorder(loop.origin)
        self.e = Scalars(self.recorder, f"{self.variable}.")

    def run(self) -> dict[int, list[Op]]:
        """Change the loop, and give what belongs before it and after it."""
        loop = self.loop
        given = {*loop.scalars[1:], *loop.params}
        early = self.made_of(self.early)
        assert not any(given & read_by(op) for op in early), "an early op reads what is carried"
        self.count_waits()
        depths = sorted({-op.stage for op in self.early})
        for turn in range(max(depths, default=0)):
            for depth in depths:
                if (number := turn + depth - depths[-1]) >= 0:
                    self.issue(depth, number)
        for depth in depths:
            self.issue(depth)
        for op, (*inits, following) in self.loaded.items():
            tiles = [op.tile, *(_named(op.tile, f"in{n}") for n in range(1, len(inits)))]
            results = (_named(tile, "last") for tile in tiles)
            loop.carry(tiles, inits, (*tiles[1:], following), results)
        if self.ring:
            self.count_stages()
        if self.late:
            self.finish()
        loop.body.ops[:] = self.steady()
        if self.ring or self.late:
            loop.overlap(stages=1, goes_on=False)
        return self.places

    def steady(self) -> list[Op]:
        """What is left of the body, and what comes in between."""
        kept: set[Op] = set()
        read: set[object] = set()
        for op in reversed(self.body):
            made = (*op.results, *op.names)
            if not stage_of(op) and (op not in self.moved or read.intersection(made)):
                kept.add(op)
                read |= read_by(op)
        rest = ([op] if op in kept else [] for op in self.body)
        return [op for place, own in enumerate(rest) for op in (*self.places[place], *own)]

    def put(self, place: int) -> None:
        """Let what has been recorded since the last time come to a place."""
        self.places[place] += self.recorder.body.ops
        self.recorder.body.ops.clear()

    def made_of(self, wanted: Iterable[Op]) -> list[Op]:
        """Ops and what they are made of in an iteration, in order."""
        todo = [*wanted]
        found: set[Op] = {*todo}
        while todo:
            makers = {self.makers[item] for item in read_by(todo.pop()) if item in self.makers}
            todo += makers - found
            found |= makers
        self.moved |= found
        return [op for op in self.body if op in found]

    # early ops ------------------------------------------------------------------------------------

    def issue(self, depth: int, number: int | None = None) -> None:
        """What is so many iterations ahead: of iteration `number`, or else in the steady loop."""
        e, loop, steady = self.e, self.loop, number is None
        group = [op for op in self.early if op.stage == -depth]
        copies = [op for op in group if isinstance(op, _COPIES)]
        rest = [op for op in group if not isinstance(op, _COPIES)]
        loads = any(isinstance(op, ops.Load) for op in rest)
        here, ahead = (self.variable, depth) if number is None else (self.first, number)
        there = e.plus(here, ahead * self.step)
        stage = self.stage_at(depth) if steady and self.ring else ahead
        some: Operand = 1
        if isinstance(there, int) and isinstance(loop.stop, int):
            some = int(there < loop.stop)
        elif ahead or not loop.certain:
            some = e.compare("slt", there, loop.stop)
        inside = e.pick(some, there, here) if loads and ahead else there
        place = min((op.order for op in copies), default=0) if steady else _BEFORE
        self.put(min(place, 0) if loads else place)
        if copies and some != 0:
            self.copy(copies, there, stage, some, ".later" if steady else f".{number}")
            self.put(place)
        for at, op in self.again(rest, ".next" if steady else f".first{number}", inside, some):
            self.places[at if steady else _BEFORE].append(op)

    def copy(
        self, copies: Iterable[Op], variable: Operand, stage: Operand, some: Operand, suffix: str
    ) -> None:
        """Copies of an iteration into a stage, where there is such an iteration."""
        where = ops.Where(condition=some, body=Block())
        region = Region(self.recorder, where) if some != 1 else None
        for op in cloned(self.made_of(copies), suffix, {self.variable: variable}):
            if isinstance(op, ops.CopyAsync):
                target = op.target.at_stage(self.e.times(stage, op.target.bytes))
                op = dataclasses.replace(op, target=target)
            self.recorder.add(_own(op))
        if region is not None:
            region.following()

    def again(
        self, rest: Sequence[Op], suffix: str, variable: Operand, some: Operand
    ) -> Iterator[tuple[int, Op]]:
        """What else another iteration has early, and what that is made of, with their places."""
        made = self.made_of(rest)
        for op, other in zip(made, cloned(made, suffix, {self.variable: variable}), strict=True):
            if isinstance(other, ops.Load):
                if op in rest:
                    self.loaded[op].append(other.tile)
                if other.where is not None or not self.loop.certain:
                    other.guard(None if some == 1 else some)
            place = other.order if isinstance(other, ops.Scheduled) else 0
            yield place, _own(other)

    def count_waits(self) -> None:
        """Let the wait that follows a group of copies leave those in flight that come meanwhile."""
        for place, op in enumerate(self.body):
            if isinstance(op, ops.CommitCopies) and op.stage:
                waits = enumerate(self.body[place:], place)
                at, wait = next((n, o) for n, o in waits if isinstance(o, ops.WaitCopies))
                wait.leave(wait.pending - op.stage - (at < op.order))

    def stage_at(self, ahead: int) -> Operand:
        """The stage of the ring so many iterations ahead."""
        e, stage, stages = self.e, self.stage, self.loop.stages
        over = e.compare("uge", stage, stages - ahead)
        return e.pick(over, e.minus(stage, stages - ahead), e.plus(stage, ahead))

    def count_stages(self) -> None:
        """Let the loop carry the stage of its iteration, and its ops read there."""
        e, loop = self.e, self.loop
        current = {slot: e.times(self.stage, size) for slot, size in self.ring.items()}
        for op in self.body:
            at_stages(op, current)
        self.put(min(op.order for op in self.early if isinstance(op, _COPIES)))
        more = e.compute("add", self.stage, 1)
        wraps = e.compare("eq", more, loop.stages)
        loop.carry_scalar(self.stage, 0, e.pick(wraps, 0, more))
        self.put(len(self.body) - 1)

    # late ops -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for matmuls, and give their stage back, an iteration later; or after the loop."""
        loop, end = self.loop, self.loop.end
        wait, *arriving = self.late
        assert isinstance(wait, ops.WgmmaWait)
        wait.leave(wait.stage)
        wait.schedule()
        results = zip(loop.results, end.values, strict=True)
        flying = {tile: _named(tile, "flying") for tile, last in results if last in wait.results}
        loop.give(flying.get(tile, tile) for tile in loop.results)
        self.recorder.add(ops.WgmmaWait(values=tuple(flying.values()), results=tuple(flying)))
        given = [
            op for op in arriving if not isinstance(op, ops.MbarrierArrive) or op.block is not None
        ]
        after = [*end.scalars, ""][1] if loop.certain else self.stage
        self.arrive(arriving if loop.goes_on else given, after, loop.certain, ".last")
        self.put(_AFTER)
        self.arrive(arriving, self.stage, False, ".before")
        self.put(self.body.index(wait) + 1)

    def arrive(self, arriving: Sequence[Op], stage: Operand, certain: bool, suffix: str) -> None:
        """Give back the stage before another one, if an iteration has had it."""
        if not any(isinstance(op, ops.MbarrierArrive) for op in arriving):
            return
        e = self.e
        some = None if certain else e.compare("ne", self.variable, self.first)
        first = e.compare("eq", stage, 0)
        before = e.pick(first, self.loop.stages - 1, e.compute("sub", stage, 1))
        for op in cloned(self.made_of(arriving), suffix, {self.stage: before}):
            if isinstance(op, ops.MbarrierArrive) and some is not None:
                op = dataclasses.replace(op, condition=e.compute("and", op.condition, some, "i1"))
            self.recorder.add(_own(op))


def _own(op: Op) -> Op:
    """An op that is of its own iteration from now on."""
    if isinstance(op, ops.Scheduled):
        op.schedule()
    return op


def _named(tile: Tile, word: str) -> Tile:
    """A tile like another one, with a name of its own."""
    return dataclasses.replace(tile, name=f"{tile.name}.{word}")


__all__ = ["arrivals", "expand_loops"]
