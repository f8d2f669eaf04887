"""Loops with a chain of two dots, as in attention, pipelined so that no unit waits for another.

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

from dataclasses import dataclass
from typing import Literal

from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, SharedTile, Tile
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.dot import operand
from fuser.backend.nvptx.schedule import consumer_warps
from fuser.backend.nvptx.schedule.dot_chain import DotChain, plain_loads
from fuser.backend.nvptx.schedule.mask_peeling import MaskPeeling
from fuser.backend.nvptx.schedule.producer_ring import (
    Channel,
    Ring,
    Stream,
    advance,
    wait_barrier,
)
from fuser.backend.nvptx.schedule.wgmma import issue, pack_fragments, wait
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value


def _always(condition: ops.Map) -> ops.Full:
    """The constant that a condition is."""
    made = condition.result
    return ops.Full(value=True, shape=made.shape, dtype=made.dtype, results=condition.results)


def _reduced(op: ops.Reduce, x: Value) -> ops.Reduce:
    """The same reduction of another value."""
    return ops.Reduce(fn=op.fn, x=x, axis=op.axis, results=op.results)


# code ---------------------------------------------------------------------------------------------


@dataclass
class _State:
    """What one iteration hands to the next: carried tiles by position (the sum: what the second dot
    adds to) and the words of the probabilities."""

    tiles: list[Tile]
    words: Tile


class AttentionPipeline:
    """Emits one loop of attention, software-pipelined."""

    def __init__(self, low: Builder, stream: Stream, chain: DotChain) -> None:
        self.low, self.stream, self.chain = low, stream, chain
        self.loop, self.e = stream.loop, low.scalars
        self._certain: set[Op] = set()
        self.masks = MaskPeeling(low, chain, self.loop)
        self._carried: list[Operand] = []
        # a way through shared memory would wait for the data before anything is issued
        low.copies.direct.update(plain_loads(low.assignment, chain.head + chain.beneath))
        asked = low.kernel.schedule.ping_pong
        one_ring = len({other.leader or other for other in low.producer.streams.values()}) == 1
        self.ping_pong = (
            low.warps == 8 and one_ring and self.loop in low.kernel.body.ops
            and (PING_PONG if asked is None else asked)
        )  # fmt: skip

    def emit(self, start: Operand, stop: Operand, inits: list[Tile]) -> list[Tile]:
        """The whole loop; the results."""
        e, low = self.e, self.low
        certain = isinstance(start, int) and isinstance(stop, int)
        ring = self.stream.ring
        if self.ping_pong and not low.producer.ping_pong:
            self._start_ping_pong()
        if certain:
            finals, end = self._pipelined(start, stop, inits)
            self.stream.turn(end)
            return finals
        some = e.compare("slt", start, stop)
        names = (e.name_of(), e.name_of()) if self.stream.goes_on else ()
        skipped = gpu.Yield(scalars=ring if names else (), values=tuple(inits))
        results = tuple(low.like(tile) for tile in inits)
        region = low.region(gpu.If(
            condition=some, then=ir.Block(), other=ir.Block(ops=[skipped]), names=names,
            results=results,
        ))  # fmt: skip
        finals, end = self._pipelined(start, stop, inits)
        low.do(gpu.Yield(scalars=end if names else (), values=tuple(finals)))
        region.following()
        if names:
            self.stream.turn(names)
        consumer_warps.give_back(low)
        return list(results)

    def _pipelined(
        self, start: Operand, stop: Operand, inits: list[Tile]
    ) -> tuple[list[Tile], Ring]:
        """The first iteration, the loops of those that follow, and the last matmul; the results,
        and where the ring then is."""
        e, low = self.e, self.low
        ring = self.stream.ring
        state = self._iteration(start, inits)
        limit, before_limit = self.masks.limit(-1)
        first, from_first = self.masks.limit(1)
        self._carried = [
            e.plus(start, self.loop.step),
            *advance(self.low, self.stream, *ring),
            *ring,
        ]
        least = stop if limit is None else self._smin(limit, stop)
        if first is not None:
            # no later than the limit: where every iteration needs a mask, the last loop runs them
            # all
            state = self._iterations(state, self._smin(first, least), before_limit)
        if limit is not None or first is not None:
            state = self._iterations(state, least, before_limit + from_first)
        state = self._iterations(state, stop, from_first if self.masks.ordered() else [])
        old, older = self._carried[3:]
        end = (self._carried[1], self._carried[2])
        if isinstance(start, int) and isinstance(stop, int):
            consumer_warps.give_back(low)
        finals = list(state.tiles)
        position = self.chain.position
        finals[position] = self._last(finals[position], state.words, (old, older))
        return finals, end

    def _iterations(self, state: _State, stop: Operand, certainties: list[ops.Map]) -> _State:
        """Iterations up to `stop`; the state after them. certainties: conditions that hold for
        every element of these iterations."""
        e, low = self.e, self.low
        variable, stage, phase, old, older = names = tuple(e.name_of() for _ in range(5))
        inits = (*state.tiles, state.words)
        phis = tuple(low.like(tile) for tile in inits)
        loop = gpu.For(
            stop=stop, scalars=names, firsts=tuple(self._carried), params=phis, inits=inits,
            body=ir.Block(), results=tuple(low.like(tile) for tile in inits),
        )  # fmt: skip
        region = low.region(loop)
        self.stream.enter(stage, phase)
        for condition in certainties:
            low.env[condition.result] = _always(condition)
        self._certain = set(certainties)
        end = self._iteration(variable, list(phis[:-1]), phis[-1], (old, older))
        self._certain = set()
        following = e.compute("add", variable, self.loop.step)
        low.do(gpu.Yield(
            scalars=(following, *advance(self.low, self.stream, stage, phase), stage, phase),
            values=(*end.tiles, end.words),
        ))  # fmt: skip
        region.following()
        self._carried = list(names)
        return _State(list(loop.results[:-1]), loop.results[-1])

    def _smin(self, a: Operand, b: Operand) -> Operand:
        return self.e.compute("smin", a, b)

    def _iteration(
        self,
        variable: Operand,
        carried: list[Tile],
        words: Tile | None = None,
        previous: Ring | None = None,
    ) -> _State:
        """One iteration; without words the first, which has no matmul to add."""
        low, chain, stream = self.low, self.chain, self.stream
        if words is None:
            stream.enter(*stream.ring)
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
            channel.begin(waited=True, release_later=True)
        added: Tile | None = None
        if words is not None and previous is not None:
            value = self._values(previous)
            if self.ping_pong:
                self._wait_ping_pong()
            flying = issue(low, chain.first, plan, left, right, scores)
            added = self._issue_second(carried[chain.position], words, value)
            if self.ping_pong:
                self._pass_ping_pong()
            self._beneath()
            (flying,) = wait(low, [flying], 1)
        else:
            flying = issue(low, chain.first, plan, left, right, scores)
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
            channel.release_now()
            consumer_warps.after_read(low, stream, channel)
        total = carried[chain.position]
        if added is not None and previous is not None:
            total, low.env[chain.cast.x] = wait(low, [added, low.tile(chain.cast.x)], 0)
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
        return _State(tiles, fresh)

    def _scale(self, total: Tile) -> None:
        """What the carried sum becomes before the next matmul is added; where its factor seldom is
        another number than 1, only where some lane of the warp has such a factor."""
        low, chain = self.low, self.chain
        factor = chain.steady
        if factor is None:
            for op in chain.scale:
                low.op(op)
            return
        some = low.scalar_of(gpu.AnyOther(x=low.tile(factor, total.layout), value=1.0))
        made = low.like(total)
        region = low.region(gpu.If(
            condition=some, then=ir.Block(), other=ir.Block(ops=[gpu.Yield(values=(total,))]),
            results=(made,),
        ))  # fmt: skip
        for op in chain.scale:
            low.op(op)
        low.do(gpu.Yield(values=(low.tile(chain.second.acc, total.layout),)))
        region.following()
        low.env[chain.second.acc] = made

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

    def _last(self, total: Tile, words: Tile, previous: Ring) -> Tile:
        value = self._values(previous)
        flying = self._issue_second(total, words, value)
        (total,) = wait(self.low, [flying], 0)
        self._release(self.chain.others, previous[0])
        return total

    def _values(self, previous: Ring) -> SharedTile:
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

    def _bind(self, channel: Channel, stage: Operand) -> None:
        low = self.low
        for load, tile in zip(channel.loads, channel.tiles, strict=True):
            low.env[load.result] = tile.at_stage(low.scalars.times(stage, tile.bytes))
            low.copies.piped.add(load)

    def _release(self, channels: list[Channel], stage: Operand) -> None:
        for channel in channels:
            consumer_warps.release(self.low, self.stream, channel, stage)

    # ping-pong: one warp group issues its matmuls while the other computes ----------------------

    def _named_barrier(self, kind: Literal["sync", "arrive"], ahead: int) -> None:
        e = self.e
        group = e.head.compute("lshr", e.tid, 7)
        number = e.head.compute("sub", 3, group) if ahead else e.head.compute("add", 2, group)
        self.low.do(gpu.NamedBarrier(kind=kind, number=number, threads=256))

    def _start_ping_pong(self) -> None:
        """Let the first warp group begin, in the first of the loops; those after it go on."""
        e = self.e
        self.low.producer.begin_ping_pong()
        first: Operand = e.head.compare("ult", e.tid, 128)
        if self.low.scheduler.blocks:  # later programs go on from the phase that is left
            fresh = e.compare("ult", self.low.producer.program_number, self.low.scheduler.blocks)
            first = e.compute("and", first, fresh, "i1")
        with self.low.where(first):
            self.low.do(gpu.NamedBarrier(kind="arrive", number=2, threads=256))

    def _wait_ping_pong(self) -> None:
        self._named_barrier("sync", 0)

    def _pass_ping_pong(self) -> None:
        self._named_barrier("arrive", 1)


PING_PONG = True
"""Whether two consumer warp groups ping-pong at the tensor cores; `schedule.ping_pong`
overrides."""
