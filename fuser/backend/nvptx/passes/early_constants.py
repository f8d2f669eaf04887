"""Ask for constants before the wait for the kernel in front: weights travel while it still runs.

Loads, and the indices they are made of, as far as registers go; copies of the first stages, which
join the group that is committed first; of a producer, the constant boxes of its first ring.

    await_previous (x, y)                       alloc @1
    alloc @0                                    copy_async &w[...], @1
    alloc @1                                    %b = load &bias[...] {constant = true}
    copy_async &x[...], @0                      keep %b
    copy_async &w[...], @1                      await_previous (x, y)
    commit_copies                               alloc @0
    %b = load &bias[...] {constant = true}      copy_async &x[...], @0
                                                commit_copies

    await_previous (x, y)                       warp_roles producer {
    warp_roles producer {                         for 128, (0, 0, 0) body (%k, %stage, %phase) {
      for 512, (0, 0, 0) body (...) {               mbarrier_wait %empty, %free
        mbarrier_wait %empty, %free                 mbarrier_expect %full {bytes = 16384}
        mbarrier_expect %full ...                   fetch %map1, @1[%at], %full, (0, %k)
        fetch %map0, @0[%at], %full, ...          }
        fetch %map1, @1[%at], %full, ...          await_previous ()
      }                                           for 128, (0, 0, 0) body (...) {
    } consumer {                                    fetch %map0, @0[%at], %full, (%k, 0)
      ...                                         }
    }                                             for 512, (%k, %stage, %phase) body (...) {
                                                    ...
                                                  }
                                                } consumer {
                                                  await_previous (x, y)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from fuser.backend.nvptx.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import NAME, uses
from fuser.backend.nvptx.ir.values import Operand, SharedTile, Slot, Tile

NEAR, FAR = 32, 16
"""Registers of a thread for what is loaded early: until the wait is over, and over a loop."""

_PURE = (
    Integer, ops.Address, ops.Full, ops.IndexTile, ops.Splat, ops.Map, ops.Relabel, ops.ReadTable,
)  # fmt: skip
_ISSUING = (ops.Alloc, ops.Barrier, ops.CopyAsync, ops.CommitCopies)
"""What may come between copies at the start of a kernel, whose shared memory nobody else had."""
_BODY = (Integer, ops.Address, ops.MbarrierWait, ops.MbarrierExpect, ops.Fetch, ops.Yield)


def request_constants(program: Program) -> Decision:
    """Move what depends on constants alone before the wait, and say what that was."""
    body = program.body
    at = next((n for n, op in enumerate(body.ops) if isinstance(op, ops.AwaitPrevious)), None)
    if at is None:
        return _decided(False, "the kernel does not start under the one in front")
    boxes, why_not = 0, ""
    roles = next((op for op in body.ops[at:] if isinstance(op, ops.WarpRoles)), None)
    if roles is not None:
        ring = _first_ring(program, roles.producer)
        if isinstance(ring, str):
            why_not = ring
        else:
            boxes = len(ring.constant)
            wait = body.ops.pop(at)
            ring.split(roles.producer)
            body, at = roles.consumer, 0
            body.ops.insert(0, wait)
    loads, copies = _lift(body, at)
    found = {"loads": loads, "copies": copies, "boxes of every stage": boxes}
    if any(found.values()):
        return _decided(True, ", ".join(f"{n} {name}" for name, n in found.items() if n))
    return _decided(False, why_not or "nothing at its start depends on constants alone")


def _decided(applied: bool, reason: str) -> Decision:
    return Decision("constants requested early", applied, reason)


# loads and copies ---------------------------------------------------------------------------------


def _lift(block: Block, at: int) -> tuple[int, int]:
    """Move loads and copies of constants before the op of a number, the wait; how many of each."""
    before, wait, behind = block.ops[:at], block.ops[at], block.ops[at + 1 :]
    makers: dict[object, Op] = {
        item: op for op in behind for item in (*op.results, *op.names, *_allocated(op))
    }
    moved: dict[Op, None] = {}
    loads: list[Tile] = []
    copies, taken, starts, loops = 0, 0, True, False
    for op in behind:
        if isinstance(op, ops.Load) and op.constant and op.at.access.view.buffer.role == "constant":
            words = -(-len(op.tile.layout.regs) * op.tile.dtype.bytes // 4)
            if taken + words <= (FAR if loops else NEAR) and _take(op, makers, moved):
                loads.append(op.tile)
                taken += words
        elif isinstance(op, ops.CopyAsync):
            if starts and op.at.access.view.buffer.role == "constant":
                copies += _take(op, makers, moved)
        else:
            starts = starts and (isinstance(op, _ISSUING) or not _shares(op))
            loops = loops or isinstance(op, ops.For | ops.While)
    kept = [ops.Keep(x=tile) for tile in loads]
    block.ops[:] = [
        *before, *(op for op in behind if op in moved), *kept, wait,
        *(op for op in behind if op not in moved),
    ]  # fmt: skip
    return len(loads), copies


def _allocated(op: Op) -> tuple[Slot, ...]:
    return (op.slot,) if isinstance(op, ops.Alloc) else ()


def _shares(op: Op) -> bool:
    """Whether an op, or one inside of it, has to do with shared memory."""
    return bool(op.blocks()) or isinstance(op, ops.WaitCopies) or any(op.slots())


def _take(op: Op, makers: dict[object, Op], moved: dict[Op, None]) -> bool:
    """Move an op with all that it is made of, if that depends on nothing behind the wait."""
    found: dict[Op, None] = {op: None}
    todo = [op]
    while todo:
        for item in uses(todo.pop()):
            maker = makers.get(item)
            if maker is None or maker in moved or maker in found:
                continue
            if not isinstance(maker, (*_PURE, ops.Alloc)):
                return False
            found[maker] = None
            todo.append(maker)
    moved.update(found)
    return True


# the producer -------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Ring:
    """The loop that a producer begins with. constant: its boxes of constants. end: where the first
    stages end, as the variable counts; integers: what that is made of."""

    loop: ops.For
    constant: list[ops.Fetch]
    end: Operand
    integers: list[Op]

    def split(self, producer: Block) -> None:
        """The constants of the first stages, the wait, what else these bring, all other stages."""
        loop = self.loop
        early, late = self._part(".early", self._is_early), self._part(".late", self._is_late)
        at = producer.ops.index(loop)
        rest = dataclasses.replace(loop, firsts=late.scalars)
        producer.ops[at : at + 1] = [
            *self.integers, early, ops.AwaitPrevious(buffers=()), late, rest,
        ]  # fmt: skip

    def _is_early(self, op: Op) -> bool:
        return not isinstance(op, ops.Fetch) or op in self.constant

    def _is_late(self, op: Op) -> bool:
        if isinstance(op, ops.Fetch):
            return op not in self.constant
        return not isinstance(op, ops.MbarrierWait | ops.MbarrierExpect)

    def _part(self, suffix: str, wanted: Callable[[Op], bool]) -> ops.For:
        """The loop over the first stages, with some of its ops and names of its own."""
        loop = self.loop
        kept = _used([op for op in loop.body.ops if wanted(op)])
        names = {name: name + suffix for op in kept for name in op.names}
        names |= {name: name + suffix for name in loop.scalars}
        body = Block([], [_renamed(op, names) for op in kept])
        scalars = tuple(names[name] for name in loop.scalars)
        return dataclasses.replace(loop, stop=self.end, scalars=scalars, body=body)


def _first_ring(program: Program, producer: Block) -> _Ring | str:
    """The ring that a producer fills first; or why there is none to begin early."""
    loop = next((op for op in producer.ops if not isinstance(op, Integer)), None)
    plain = isinstance(loop, ops.For) and all(isinstance(op, _BODY) for op in loop.body.ops)
    if not isinstance(loop, ops.For) or not plain or loop.certain:
        return "the producer does not begin with a loop of copies"
    fetches = [op for op in loop.body.ops if isinstance(op, ops.Fetch)]
    constant = [op for op in fetches if _role(program, op) == "constant"]
    if not constant:
        return "what the producer brings are no constants"
    if len(constant) == len(fetches):
        return "the producer brings constants only"
    stages = min(op.into.slot.bytes // op.into.bytes for op in fetches)
    step = _step(loop)
    if not step:
        return "the producer's loop does not count"
    first, stop = loop.firsts[0], loop.stop
    if isinstance(first, int) and isinstance(stop, int):
        return _Ring(loop, constant, min(stop, first + stages * step), [])
    ahead, fewer, end = (f"{loop.scalars[0]}.{word}" for word in ("ahead", "fewer", "end"))
    return _Ring(loop, constant, end, [
        Integer(text=f"add i32 {first}, {stages * step}", names=(ahead,)),
        Integer(text=f"icmp slt i32 {ahead}, {stop}", names=(fewer,)),
        Integer(text=f"select i1 {fewer}, i32 {ahead}, i32 {stop}", names=(end,)),
    ])  # fmt: skip


def _role(program: Program, op: ops.Fetch) -> str:
    return program.buffers[program.tensor_maps[int(op.map.removeprefix("%map"))].argument].role


def _step(loop: ops.For) -> int:
    """By how much the variable grows; 0 where that is not known."""
    end = loop.body.ops[-1]
    assert isinstance(end, ops.Yield)
    for op in loop.body.ops:
        if isinstance(op, Integer) and op.names[0] == end.scalars[0]:
            found = re.fullmatch(rf"add i32 {re.escape(loop.scalars[0])}, (\d+)", op.text)
            return int(found[1]) if found else 0
    return 0


def _used(body: list[Op]) -> list[Op]:
    """Without the integers that nothing reads any more."""
    read: set[object] = set()
    kept: list[Op] = []
    for op in reversed(body):
        if not isinstance(op, Integer | ops.Address) or read.intersection(op.names):
            kept.append(op)
            read.update(uses(op))
    return kept[::-1]


def _renamed(op: Op, names: dict[str, str]) -> Op:
    """The same op with other names of scalars."""
    fields = {
        field.name: _inside(getattr(op, field.name), names)
        for field in dataclasses.fields(op)
        if field.name != "origin"
    }
    return dataclasses.replace(op, **fields)


def _inside(content: Any, names: dict[str, str]) -> Any:
    match content:
        case str():
            return NAME.sub(lambda found: names.get(found[0], found[0]), content)
        case tuple():
            return tuple(_inside(item, names) for item in content)
        case SharedTile():
            return content.at_stage(_inside(content.stage, names))
    return content


__all__ = ["request_constants"]
