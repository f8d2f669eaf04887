"""Ask for constants before the wait for the previous kernel: weights travel while it still runs.

Loads, and the indices they are made of, as far as registers go; copies of the first stages, which
join the group that is committed first; of a producer, the constant boxes of its first stages.

    await_previous (x, y)                       alloc @1
    alloc @0                                    copy_async &w[...], @1
    alloc @1                                    %b = load &bias[...] {constant = true}
    copy_async &x[...], @0                      keep %b
    copy_async &w[...], @1                      await_previous (x, y) {trigger = false}
    commit_copies                               alloc @0
    for 512 ...                                 copy_async &x[...], @0
    %b = load &bias[...] {constant = true}      commit_copies
                                                launch_dependents
                                                for 512 ...

    await_previous (x, y)                       warp_roles producer {
    warp_roles producer {                         await_previous () {trigger = false}
      for 512, (0, 0, 0) body (...) {             for 128, (0, 0, 0) body (...) {
        mbarrier_wait %empty, %free                 mbarrier_expect %full, 16384
        mbarrier_expect %full ...                   fetch %map0, @0[%at], %full, ...
        fetch %map0, @0[%at], %full, ...          }
        fetch %map1, @1[%at], %full, ...          launch_dependents
      }                                           for 512, (%k, %stage, %phase) body (...) {
    } consumer {                                    ...
      ...                                         }
    }                                           } consumer {
                                                  where %first {
                                                    for 128, (0, 0, 0) body (%k, %stage, %phase) {
                                                      fetch %map1, @1[%at], %full, (0, %k)
                                                    }
                                                  }
                                                  await_previous (x, y) {trigger = false}
                                                  ...
                                                }

A thread of the consumers, which have nothing to do yet, asks for the boxes: where the previous
kernel has ended already, because its programs left no room for these, the producer must not spend
its time on all constants before it asks for the first of the rest. Bytes may come before they are
announced: the phase ends with the producer's arrival. The next kernel, whose early constants are in
the way too, may start once this one has asked for its first data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import step_of
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import inside, replaced
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.prefetch.code_motion import makers_of, take, used, words_of

NEAR, FAR = 32, 16
"""Registers of a thread for what is loaded early: until the wait is over, and over a loop."""

_ISSUING = (ops.Alloc, ops.Barrier, ops.CopyAsync, ops.CommitCopies)
"""What may come between copies at the start of a kernel, whose shared memory nobody else had."""
_OF_PRODUCER = (ops.MbarrierWait, ops.MbarrierExpect)
_BODY = (Integer, ops.Address, ops.MbarrierWait, ops.MbarrierExpect, ops.Fetch, ops.Yield)


def request_constants(program: Program, most: int) -> Decision:
    """Move what depends on constants alone before the wait, and say what that was. most: bytes of
    copies that a block asks for; the first goes in any case."""
    body = program.body
    at = next((n for n, op in enumerate(body.ops) if isinstance(op, ops.AwaitPrevious)), None)
    if at is None:
        return _decided(False, "the kernel does not start under the previous one")
    boxes, why_not = 0, ""
    roles = next((op for op in body.ops[at:] if isinstance(op, ops.WarpRoles)), None)
    if roles is not None:
        ring = _first_ring(program, roles.producer, most)
        if isinstance(ring, str):
            why_not = ring
        else:
            boxes = len(ring.constant)
            wait = body.ops.pop(at)
            ring.split(roles.producer)
            body, asks = roles.consumer, ring.ask()
            at = len(asks)
            assert isinstance(wait, ops.AwaitPrevious)
            body.ops[:0] = [*asks, dataclasses.replace(wait, trigger=False)]
    loads, copies = _lift(body, at, most)
    if copies:
        _trigger_after_copies(body)
    found = {"loads": loads, "copies": copies, "boxes of the first stages": boxes}
    if any(found.values()):
        return _decided(True, ", ".join(f"{n} {name}" for name, n in found.items() if n))
    return _decided(False, why_not or "nothing at its start depends on constants alone")


def _decided(applied: bool, reason: str) -> Decision:
    return Decision("constants requested early", applied, reason)


# loads and copies ---------------------------------------------------------------------------------


def _lift(block: Block, at: int, most: int) -> tuple[int, int]:
    """Move loads and copies of constants before the op of a number, the wait; how many of each.
    most: bytes of copies."""
    before, wait, after = block.ops[:at], block.ops[at], block.ops[at + 1 :]
    makers = makers_of(after)
    moved: dict[Op, None] = {}
    loads: list[Tile] = []
    copies, taken, asked, starts, loops = 0, 0, 0, True, False
    for op in after:
        if isinstance(op, ops.Load) and op.constant and op.at.access.view.buffer.role == "constant":
            words = words_of(op.tile, op)
            if taken + words <= (FAR if loops else NEAR) and take(op, makers, moved):
                loads.append(op.tile)
                taken += words
        elif isinstance(op, ops.CopyAsync):
            if starts and op.at.access.view.buffer.role == "constant":
                asked += op.target.bytes
                if not copies or asked <= most:
                    copies += take(op, makers, moved)
        else:
            starts = starts and (isinstance(op, _ISSUING) or not _uses_shared_memory(op))
            loops = loops or isinstance(op, ops.For | ops.While)
    kept = [ops.Keep(x=tile) for tile in loads]
    block.ops[:] = [
        *before, *(op for op in after if op in moved), *kept, wait,
        *(op for op in after if op not in moved),
    ]  # fmt: skip
    return len(loads), copies


def _uses_shared_memory(op: Op) -> bool:
    """Whether an op, or one inside of it, has to do with shared memory."""
    return bool(op.blocks()) or isinstance(op, ops.WaitCopies) or any(op.slots())


def _trigger_after_copies(block: Block) -> None:
    """Let the next kernel start where this one has asked for its first data: at the first loop."""
    wait = next(op for op in block.ops if isinstance(op, ops.AwaitPrevious))
    after = block.ops.index(wait) + 1
    loop = next((n for n, op in enumerate(block.ops[after:], after) if op.blocks()), None)
    if loop is not None:
        block.ops.insert(loop, ops.LaunchDependents())
        block.ops[after - 1] = dataclasses.replace(wait, trigger=False)


# the producer -------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Ring:
    """The loop that a producer begins with. constant: its boxes of constants. end: where the first
    stages end, as the variable counts; integers: what that is made of."""

    loop: ops.For
    constant: list[ops.Fetch]
    end: Operand
    integers: list[Op]
    known: list[Op]
    """What the producer has computed before the loop."""

    def split(self, producer: Block) -> None:
        """The wait, what is not constant of the first stages, which are empty, and all others."""
        loop, others = self.loop, [
            op for op in self.loop.body.ops
            if op not in self.constant and not isinstance(op, ops.MbarrierWait)
        ]  # fmt: skip
        late = self._loop_over_first_stages(".late", others)
        rest = dataclasses.replace(loop, firsts=late.scalars)
        at = producer.ops.index(loop)
        producer.ops[at : at + 1] = [
            *self.integers, ops.AwaitPrevious(buffers=(), trigger=False), late,
            ops.LaunchDependents(), rest,
        ]  # fmt: skip

    def ask(self) -> list[Op]:
        """What a thread of the consumers does first."""
        kept = [op for op in self.loop.body.ops if not isinstance(op, _OF_PRODUCER)]
        kept = [op for op in kept if op in self.constant or not isinstance(op, ops.Fetch)]
        before = [*self.known, *self.integers]
        names = {name: f"{name}.early" for op in before for name in op.names}
        asks = self._loop_over_first_stages(".early", kept, names)
        asked = used([*(replaced(op, names) for op in before), asks])
        first = Integer(fn="eq", operands=("%tid", 0), names=("%first.early",))
        return [first, ops.Where(condition="%first.early", body=Block([], asked))]

    def _loop_over_first_stages(
        self, suffix: str, ops_: list[Op], names: Mapping[str, str] | None = None
    ) -> ops.For:
        """The loop over the first stages, with some of its ops and names of its own."""
        loop, kept, outer = self.loop, used(ops_), dict(names or {})
        inner = {name: name + suffix for op in kept for name in op.names}
        inner |= outer | {name: name + suffix for name in loop.scalars}
        body = Block([], [replaced(op, inner) for op in kept])
        return dataclasses.replace(
            loop, stop=inside(self.end, outer), firsts=inside(loop.firsts, outer),
            scalars=inside(loop.scalars, inner), body=body,
        )  # fmt: skip


def _first_ring(program: Program, producer: Block, most: int) -> _Ring | str:
    """The ring that a producer fills first; or why there is none to begin early."""
    loop = next((op for op in producer.ops if not isinstance(op, Integer)), None)
    known = producer.ops[: producer.ops.index(loop)] if loop is not None else []
    plain = isinstance(loop, ops.For) and all(isinstance(op, _BODY) for op in loop.body.ops)
    if not isinstance(loop, ops.For) or not plain or loop.certain:
        return "the producer does not begin with a loop of copies"
    fetches = [op for op in loop.body.ops if isinstance(op, ops.Fetch)]
    constant = [op for op in fetches if _role(program, op) == "constant"]
    if not constant:
        return "the producer fetches no constants"
    if len(constant) == len(fetches):
        return "the producer fetches constants only"
    stages = min(op.into.slot.bytes // op.into.bytes for op in fetches)
    stages = max(1, min(stages, most // sum(op.into.bytes for op in constant)))
    step = step_of(loop)
    if not step:
        return "the producer's loop does not count"
    first, stop = loop.firsts[0], loop.stop
    if isinstance(first, int) and isinstance(stop, int):
        return _Ring(loop, constant, min(stop, first + stages * step), [], known)
    ahead, fewer, end = (f"{loop.scalars[0]}.{word}" for word in ("ahead", "fewer", "end"))
    return _Ring(loop, constant, end, [
        Integer(fn="add", operands=(first, stages * step), names=(ahead,)),
        Integer(fn="slt", operands=(ahead, stop), names=(fewer,)),
        Integer(fn="select", operands=(fewer, ahead, stop), names=(end,)),
    ], known)  # fmt: skip


def _role(program: Program, op: ops.Fetch) -> str:
    return program.buffers[program.tensor_maps[int(op.map.removeprefix("%map"))].argument].role


__all__ = ["request_constants"]
