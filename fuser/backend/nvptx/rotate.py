"""Loops with a chain of two dots, as in attention, rotated so that no unit waits for another.

    S = q K[i]; P = f(S, carried); acc = g(acc, carried) + P V[i]          as written

    S = q K[0]; P, acc = f, g                                              before the loop
    for i = 1, ...:
        issue S = q K[i]; issue acc += P V[i - 1]                          both in flight
        what f needs beside S and a few registers hold
        wait for S; give K back; P = f(S, carried)                         while acc is computed
        wait for acc; give V back; acc = g(acc)
    acc += P V[last]                                                       after it

Between issue and wait the code is straight (predicated arrivals, no branches), P is rounded to 16
bits only after the wait because the flying matmul reads the old one's registers, and what the
first dot and the code before it need is evaluated before anything is in flight; otherwise ptxas
serialises the matmuls (C75xx).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuser.backend.function import Block
from fuser.backend.nvptx import consumer
from fuser.backend.nvptx.chain import Chain, plain_loads
from fuser.backend.nvptx.dot import operand
from fuser.backend.nvptx.edges import Edges
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.stream import Channel, Stream, release, wait_barrier
from fuser.backend.nvptx.wgmma import commit, fence, issue, pack_fragments, wait
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def _always(condition: ops.Map) -> ops.Full:
    """The constant that a condition is."""
    full = ops.Full(value=True, shape=condition.result.shape, dtype=condition.result.dtype)
    full.results = condition.results
    return full


def _reduced(op: ops.Reduce, x: Value) -> ops.Reduce:
    """The same reduction of another value."""
    other = ops.Reduce(fn=op.fn, x=x, axis=op.axis)
    other.results = op.results
    return other


# code ---------------------------------------------------------------------------------------------


@dataclass
class _State:
    """What one iteration hands to the next: carried tiles by position (the sum: what the second dot
    adds to) and the words of the probabilities."""

    tiles: list[Tile]
    words: Tile


class Rotated:
    """Emits one rotated loop."""

    def __init__(self, low: Lowering, stream: Stream, chain: Chain) -> None:
        self.low, self.stream, self.chain = low, stream, chain
        self.loop, self.e = stream.loop, low.emitter
        self._certain: set[Op] = set()
        self.edges = Edges(low, chain, self.loop)
        self._hand_over: list[Operand] = []
        # a way through shared memory would wait for the data before anything is issued
        low.direct.update(plain_loads(low, chain.head + chain.beneath))
        self.turns = (
            low.warps == 8
            and len(low.streams) == 1
            and bool(low.kernel.schedule.extra.get("turns", TURNS))
        )

    def emit(self, start: Operand, stop: Operand, inits: list[Tile]) -> list[Tile]:
        """The whole loop; the results."""
        e, low = self.e, self.low
        alone = bool(
            low.resident
        )  # nothing that the warp groups share but what the producer brings
        if not alone:
            low.shared.barrier()
        slots = len(low.shared.slots)
        before = e.at
        enter, tail, done = e.block("first"), e.block("tail"), e.block("loop.end")
        certain = isinstance(start, int) and isinstance(stop, int)
        ring = self.stream.ring
        if self.turns:
            self._first_turn()
            before = e.at
        if certain:
            e.jump(enter)
        else:
            e.branch(e.value(f"icmp slt i32 {start}, {stop}"), enter, done)
        e.enter(enter)
        state = self._trip(start, inits)
        limit, before_limit = self.edges.limit(-1)
        first, from_first = self.edges.limit(1)
        self._hand_over = [e.plus(start, self.loop.step), *self._following(*ring), *ring]
        least = stop if limit is None else self._smin(limit, stop)
        if first is not None:
            # no later than the limit: where every iteration needs a mask, the last loop runs them
            # all
            after = e.block("loop.unmasked")
            state = self._trips(state, self._smin(first, least), after, before_limit)
            e.enter(after)
        if limit is not None or first is not None:
            after = e.block("loop.masked")
            state = self._trips(state, least, after, before_limit + from_first)
            e.enter(after)
        state = self._trips(state, stop, tail, from_first if self.edges.ordered() else [])
        phis, words = state.tiles, state.words
        old, older = (str(item) for item in self._hand_over[3:])
        end = self._hand_over[1:3]
        e.enter(tail)
        if certain:
            consumer.give_back(low)
        finals = list(phis)
        finals[self.chain.position] = self._last(phis[self.chain.position], words, (old, older))
        leave = e.at
        e.jump(done)
        e.enter(done)
        low.shared.forget()
        if alone and slots == len(low.shared.slots):
            low.shared.state = (False, False)
        if certain:
            self.stream.ring = (end[0], end[1])
            return finals
        if low.order.persistent:
            following, parity = (
                e.value(f"phi i32 [ {x}, %{before.label} ], [ {y}, %{leave.label} ]")
                for x, y in zip(ring, end, strict=True)
            )
            self.stream.ring = (following, parity)
        joined = [
            Tile(a.dtype, a.shape, a.layout, [
                e.value(f"phi {a.type} [ {x}, %{before.label} ], [ {y}, %{leave.label} ]")
                for x, y in zip(a.regs, b.regs, strict=True)
            ])
            for a, b in zip(inits, finals, strict=True)
        ]  # fmt: skip
        consumer.give_back(low)
        return joined

    def _trips(
        self, state: _State, stop: Operand, after: Block, certainties: list[ops.Map]
    ) -> _State:
        """Iterations up to `stop`, and a jump to `after`; the state there. certainties: conditions
        that hold for every element of these iterations."""
        e = self.e
        head, body = e.block("loop"), e.block("body")
        latch = e.at
        e.jump(head)
        e.enter(head)
        mark = len(head.lines)
        variable, stage, phase, old, older = names = [e.name_of() for _ in range(5)]
        phis = [
            Tile(t.dtype, t.shape, t.layout, [e.name_of() for _ in t.regs]) for t in state.tiles
        ]
        w = state.words
        words = Tile(w.dtype, w.shape, w.layout, [e.name_of() for _ in w.regs])
        e.branch(e.value(f"icmp slt i32 {variable}, {stop}"), body, after)
        e.enter(body)
        self.stream.stage, self.stream.phase = stage, phase
        for condition in certainties:
            self.low.env[condition.result] = _always(condition)
        self._certain = set(certainties)
        end = self._trip(variable, phis, words, (old, older))
        self._certain = set()
        following = e.value(f"add i32 {variable}, {self.loop.step}")
        ends = [following, *self._following(stage, phase), stage, phase]
        entries = [("i32", *item) for item in zip(names, self._hand_over, ends, strict=True)]
        for phi, a, b in zip(phis, state.tiles, end.tiles, strict=True):
            entries += [(phi.type, *regs) for regs in zip(phi.regs, a.regs, b.regs, strict=True)]
        kept = zip(words.regs, state.words.regs, end.words.regs, strict=True)
        entries += [(words.type, *regs) for regs in kept]
        head.lines[mark:mark] = [
            f"{name} = phi {type} [ {a}, %{latch.label} ], [ {b}, %{e.at.label} ]"
            for type, name, a, b in entries
        ]
        e.do(f"br label %{head.label}, !llvm.loop !0")
        self._hand_over = list(names)
        return _State(phis, words)

    def _following(self, stage: Operand, phase: Operand) -> tuple[Operand, Operand]:
        """The next stage of the ring, and its phase."""
        if isinstance(stage, int) and isinstance(phase, int):
            wraps = stage + 1 == self.stream.stages
            return (0, 1 - phase) if wraps else (stage + 1, phase)
        e = self.e
        more = e.value(f"add i32 {stage}, 1")
        wrap = e.value(f"icmp eq i32 {more}, {self.stream.stages}")
        turned = e.value(f"xor i32 {phase}, 1")
        return (
            e.value(f"select i1 {wrap}, i32 0, i32 {more}"),
            e.value(f"select i1 {wrap}, i32 {turned}, i32 {phase}"),
        )

    def _smin(self, a: Operand, b: Operand) -> Operand:
        return self.e.value(f"call i32 @llvm.smin.i32(i32 {a}, i32 {b})")

    def _trip(
        self,
        variable: Operand,
        carried: list[Tile],
        words: Tile | None = None,
        previous: tuple[str, str] | None = None,
    ) -> _State:
        """One iteration; without words the first, which has no matmul to add."""
        low, chain, stream = self.low, self.chain, self.stream
        outside, operands = dict(low.converted), dict(low.operands)
        if words is None:
            stream.stage, stream.phase = (str(item) for item in stream.ring)
        low.env[self.loop.body.params[0]] = variable
        for position, param in enumerate(self.loop.body.params[1:]):
            if position != chain.position:
                low.env[param] = carried[position]
        for channel in chain.keys + chain.beside:
            self._bind(channel, stream.stage)
        for op in chain.head:
            if op is not chain.first and op not in self._certain:
                low.op(op)
        plan = low.assignment.dots[chain.first]
        left, right = operand(low, chain.first, "a"), operand(low, chain.first, "b")
        assert isinstance(right, SharedTile)
        scores = low.tile(chain.first.acc, plan.accumulator)
        for channel in chain.keys + chain.beside:
            wait_barrier(low, stream.full(low, channel, stream.stage), stream.phase)
            channel.waited = channel.held = True
        added: Tile | None = None
        if words is not None and previous is not None:
            value = self._values(previous)
            if self.turns:
                self._wait_turn()
            fence(low)
            flying = issue(low, chain.first, plan, left, right, scores)
            commit(low)
            added = self._issue_second(carried[chain.position], words, value)
            commit(low)
            if self.turns:
                self._pass_turn()
            self._beneath()
            (flying,) = wait(low, [flying], 1)
        else:
            fence(low)
            flying = issue(low, chain.first, plan, left, right, scores)
            commit(low)
            self._beneath()
            (flying,) = wait(low, [flying], 0)
        self._release(chain.keys, stream.stage)
        low.set(chain.first.result, flying)
        for op in chain.middle:
            if isinstance(op, ops.Reduce) and op in chain.exact and not self._is_certain(op.x):
                low.op(_reduced(op, chain.exact[op]))
            elif op not in self._certain:
                low.op(op)
        for channel in chain.beside:  # now, so that reads may stand beside their uses
            channel.held = False
            consumer.after_read(low, stream, channel)
        total = carried[chain.position]
        if added is not None and previous is not None:
            total, low.env[chain.cast.x] = wait(low, [added, low.tile(chain.cast.x)], 0)
            for key in [key for key in low.converted if key[0] is chain.cast.x]:
                del low.converted[key]
            self._release(chain.others, previous[0])
        low.op(chain.cast)
        source = operand(low, chain.second, "a")
        assert isinstance(source, Tile)
        fresh = pack_fragments(low, source)
        low.env[self.loop.body.params[1 + chain.position]] = total
        self._scale(total)
        last = self.loop.body.ops[-1]
        assert isinstance(last, ops.Yield)
        tiles = []
        for position, (value_, tile) in enumerate(zip(last.args, carried, strict=True)):
            wanted = chain.second.acc if position == chain.position else value_
            tiles.append(low.tile(wanted, tile.layout))
        low.converted, low.operands = outside, operands
        return _State(tiles, fresh)

    def _scale(self, total: Tile) -> None:
        """What the carried sum becomes before the next matmul is added; where its factor seldom is
        another number than 1, only where some lane of the warp has such a factor."""
        low, chain, e = self.low, self.chain, self.e
        factor = chain.steady
        if factor is None:
            for op in chain.scale:
                low.op(op)
            return
        flags = [
            e.value(f"fcmp une float {reg}, 1.0")
            for reg in dict.fromkeys(low.tile(factor, total.layout).regs)
        ]
        changed = functools.reduce(lambda a, b: e.value(f"or i1 {a}, {b}"), flags)
        some = e.value(f"call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 {changed})")
        then, done = e.block("scale"), e.block("scaled")
        before = e.at
        e.branch(some, then, done)
        e.enter(then)
        for op in chain.scale:
            low.op(op)
        scaled = low.tile(chain.second.acc, total.layout)
        leave = e.at
        e.jump(done)
        e.enter(done)
        low.env[chain.second.acc] = Tile(total.dtype, total.shape, total.layout, [
            e.value(f"phi {total.type} [ {a}, %{before.label} ], [ {b}, %{leave.label} ]")
            for a, b in zip(total.regs, scaled.regs, strict=True)
        ])  # fmt: skip

    def _is_certain(self, select: Value) -> bool:
        """Whether the condition of a select holds for every element of this iteration."""
        makers = self.low.assignment.makers
        maker = makers.get(select)
        pending = [maker.args[0]] if isinstance(maker, ops.Map) else []
        seen = set(pending)
        while pending:
            condition = makers.get(pending.pop())
            if isinstance(condition, ops.Map) and condition.fn == "logical_and":
                pending += [value for value in dict.fromkeys(condition.args) if value not in seen]
                seen.update(condition.args)
            elif condition not in self._certain:
                return False
        return True

    def _beneath(self) -> None:
        """What can be done while the first matmul is computed."""
        for op in self.chain.beneath:
            self.low.op(op)

    def _last(self, total: Tile, words: Tile, previous: tuple[str, str]) -> Tile:
        value = self._values(previous)
        fence(self.low)
        flying = self._issue_second(total, words, value)
        commit(self.low)
        (total,) = wait(self.low, [flying], 0)
        self._release(self.chain.others, previous[0])
        return total

    def _values(self, previous: tuple[str, str]) -> SharedTile:
        """Wait for the second dot's right operand of the iteration before."""
        low, stream = self.low, self.stream
        for channel in self.chain.others:
            self._bind(channel, previous[0])
            wait_barrier(low, stream.full(low, channel, previous[0]), previous[1])
        for op in self.chain.values:
            low.op(op)
        found = operand(low, self.chain.second, "b")
        assert isinstance(found, SharedTile)
        return found

    def _issue_second(self, total: Tile, words: Tile, value: SharedTile) -> Tile:
        second = self.chain.second
        self.low.env[second.acc] = total
        return issue(self.low, second, self.low.assignment.dots[second], words, value, total)

    def _bind(self, channel: Channel, stage: str) -> None:
        low = self.low
        for load, tile in zip(channel.loads, channel.tiles, strict=True):
            low.env[load.result] = tile.at_stage(low.emitter.times(stage, tile.bytes))
            low.piped.add(load)

    def _release(self, channels: list[Channel], stage: str) -> None:
        for channel in channels:
            release(self.low, self.stream, channel, stage)

    # ping-pong: one warp group issues its matmuls while the other computes ----------------------

    def _bar(self, verb: str, ahead: int) -> None:
        e = self.e
        group = e.hoisted(f"lshr i32 {e.tid}, 7")
        number = e.hoisted(f"{'sub i32 3,' if ahead else 'add i32 2,'} {group}")
        e.do(f"call void @llvm.nvvm.barrier.cta.{verb}.aligned.count(i32 {number}, i32 256)")

    def _first_turn(self) -> None:
        e = self.e
        first: Operand = e.hoisted(f"icmp ult i32 {e.tid}, 128")
        if self.low.order.persistent:  # later programs begin with the turn that the one before left
            fresh = e.value(f"icmp ult i32 {self.low.number}, {self.low.order.launch[0]}")
            first = e.value(f"and i1 {first}, {fresh}")
        with e.where(first):
            e.do("call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 2, i32 256)")

    def _wait_turn(self) -> None:
        self._bar("sync", 0)

    def _pass_turn(self) -> None:
        self._bar("arrive", 1)


TURNS = True
"""Whether two consumer warp groups ping-pong at the tensor cores; `extra["turns"]` overrides."""
