"""Let the threads of a block wait for each other where one may meet what another has not done yet
(membar analysis): nothing else decides about it.

Pending are the reads and writes of slots and of global memory since the last barrier. A barrier is
due before what meets one of them: a read of what was written, or a write of what was read or
written, in the same slot or in another one at the same place. What is under way counts from the
wait on that completes it. Pending from before, and from the iteration before, are both taken to be
at the head of a loop; two stages of a ring are told apart within an iteration (stage_offsets.py).
No barrier is due where a thread, or a warp, meets its own elements only (memory_order.py).

    alloc @0                                    alloc @0
    write_parts @0, (%x,)                       write_parts @0, (%x,)
    %a, %b = read_parts @0                      barrier
    free @0                                     %a, %b = read_parts @0
    alloc @1                                    free @0
    write_parts @1, (%y,)                       alloc @1
    %c, %d = read_parts @1                      barrier
                                                write_parts @1, (%y,)
                                                barrier
                                                %c, %d = read_parts @1

Integers before an op, and the fence of a matmul, stay with it. Where not all threads come, in
a `where` or a branch that a warp takes for itself, the barrier is before that; it is before
of a loop where that saves one in each iteration. Recorded barriers stay and count: those of
mechanisms whose other steps rest on them, as when one thread makes the barriers of stages
(cluster/multicast.py), or gives a stage back for all (schedule/tf32x3.py). What barriers with
phases, named barriers and those of a cluster order is theirs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.effects import Effect, effects
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.memory.memory_order import Access, MemoryOrder
from fuser.backend.nvptx.memory.stage_offsets import StageOffsets
from fuser.errors import LoweringError

Item = Effect | Access
_BELONGING = (Integer, ops.WgmmaFence)
"""What stays with the op after it."""


def insert_barriers(program: Program) -> None:
    """Insert the barriers of a program whose slots have their places."""
    _Barriers(program).run()


@dataclass
class _Pending:
    """done: what other threads may not have done yet, though this one has. copies, matmuls: that
    are under way. told: of `done`, what this block told its cluster. acquired: this thread has seen
    what another program published, and others may not have."""

    done: set[Item] = field(default_factory=set)
    copies: set[Effect] = field(default_factory=set)
    matmuls: set[Effect] = field(default_factory=set)
    told: set[Item] = field(default_factory=set)
    acquired: bool = False

    def copy(self) -> _Pending:
        return _Pending(
            set(self.done), set(self.copies), set(self.matmuls), set(self.told), self.acquired
        )

    def clear(self) -> None:
        """All have met."""
        self.done, self.told, self.acquired = set(), set(), False

    def add(self, other: _Pending) -> None:
        """What may be pending on either of two ways."""
        self.told &= other.told
        self.done |= other.done
        self.copies |= other.copies
        self.matmuls |= other.matmuls
        self.acquired |= other.acquired

    def key(self) -> Hashable:
        """Equal for equal ones."""
        every = (frozenset(x) for x in (self.done, self.copies, self.matmuls, self.told))
        return *every, self.acquired

    def holds(self, other: _Pending) -> bool:
        parts = ("done", "copies", "matmuls")
        return all(getattr(other, part) <= getattr(self, part) for part in parts) and (
            self.told <= other.told and self.acquired >= other.acquired
        )


class _Barriers:
    """threads, group: of the barriers that are due. inserting: whether they are inserted, or only
    what is then pending is asked for. divided: in ops that not all threads do. count: barriers that
    were due. heads: what was found of loops."""

    def __init__(self, program: Program) -> None:
        self.program = program
        every = list(program.body.walk())
        self.memory = MemoryOrder(program, every)
        self.stages = StageOffsets(program)
        self.effects: dict[Op, tuple[Effect, ...]] = {}
        self.accesses: dict[Op, Access] = {}
        self.votes: set[str] = set()
        for op in every:
            if isinstance(op, ops.AnyOther):
                self.votes.add(op.names[0])
            if found := effects(op):
                self.effects[op] = found
            if (access := self.memory.access(op)) is not None:
                self.accesses[op] = access
        self.threads = 0
        self.group: Operand = 0
        self.inserting = True
        self.divided = False
        self.count = 0
        self.heads: dict[Hashable, tuple[_Pending, int]] = {}

    def run(self) -> None:
        if self.effects or self.accesses:
            self.block(self.program.body, _Pending())

    def block(self, block: Block, pending: _Pending) -> _Pending:
        """Walk the ops of a block in order; what is pending after them."""
        made: list[Op] = []
        for op in block.ops:
            if self.is_due(op, pending):
                if self.divided:
                    raise LoweringError(
                        f"a barrier is due before {op.opcode}, where not all threads come"
                    )
                at = len(made)
                while at and isinstance(made[at - 1], _BELONGING):
                    at -= 1
                barrier = ops.Barrier(threads=self.threads, team=self.group, origin=op.origin)
                made.insert(at, barrier)
                pending.clear()
                self.count += 1
            pending = self.after(op, pending)
            made.append(op)
        if self.inserting and len(made) > len(block.ops):
            block.ops[:] = made
        return pending

    # what is due --------------------------------------------------------------------------------

    def is_due(self, op: Op, pending: _Pending) -> bool:
        """Whether a barrier is due before an op."""
        if self.is_divided(op):
            every = (inner for block in op.blocks() for inner in block.walk())
            return any(self.is_due(inner, pending) for inner in every)
        if isinstance(op, ops.For | ops.While):
            return self.is_due_before(op, pending)
        found = self.effects.get(op)
        if found and any(self.meet(before, item) for item in found for before in pending.done):
            return True
        access = self.accesses.get(op)
        if access is None:
            return False
        if pending.acquired:
            return True
        others = [before for before in pending.done if isinstance(before, Access)]
        if isinstance(op, ops.Atomic) and op.ordered and others:
            return True  # it publishes what the block has done
        return any(self.memory.meet(before, access) for before in others)

    def is_due_before(self, op: ops.For | ops.While, pending: _Pending) -> bool:
        """Whether a barrier before a loop saves one in each of its iterations."""
        if self.divided or not (pending.done or pending.acquired):
            return False
        inside = self.head(op, pending)[1]
        if not inside:
            return False
        met = pending.copy()
        met.clear()
        return self.head(op, met)[1] < inside

    def is_divided(self, op: Op) -> bool:
        """Whether not all threads do what is inside of an op."""
        return isinstance(op, ops.Where) or (isinstance(op, ops.If) and op.condition in self.votes)

    def meet(self, before: Item, item: Effect) -> bool:
        """Whether threads may meet in two effects of which one has to come first."""
        if isinstance(before, Access) or not (before.writes or item.writes):
            return False
        a, b = before.slot, item.slot
        if a is not b:
            return a.offset < b.offset + b.size and b.offset < a.offset + a.size
        if before.own and item.own:
            return False
        if before.stage is None or item.stage is None:
            return True
        return not self.stages.apart(before.stage, item.stage, max(before.bytes, item.bytes))

    # what is pending ----------------------------------------------------------------------------

    def after(self, op: Op, pending: _Pending) -> _Pending:
        """What is pending after an op."""
        match op:
            case ops.For() | ops.While():
                return self.loop(op, pending)
            case ops.If() | ops.Where():
                return self.branch(op, pending)
            case ops.WarpRoles():
                return self.roles(op, pending)
            case ops.Barrier():
                pending.clear()
            case ops.ClusterArrive() if not op.relaxed:
                pending.told = set(pending.done)
            case ops.ClusterWait():
                pending.done -= pending.told
                pending.told = set()
            case ops.WaitCopies():
                pending.done |= pending.copies
                pending.copies = pending.copies if op.pending else set()
            case ops.WgmmaWait():
                pending.done |= pending.matmuls
                pending.matmuls = pending.matmuls if op.pending else set()
            case _:
                self.note(op, pending)
        return pending

    def note(self, op: Op, pending: _Pending) -> None:
        items: list[Item] = []
        for item in self.effects.get(op, ()):
            if item.late:
                (pending.copies if item.writes else pending.matmuls).add(item)
            else:
                items.append(item)
        access = self.accesses.get(op)
        if access is not None:
            items.append(access)
            pending.acquired |= isinstance(op, ops.Atomic) and bool(op.results)
        pending.done.update(items)
        pending.told.difference_update(items)

    def branch(self, op: ops.If | ops.Where, pending: _Pending) -> _Pending:
        """Either of two blocks, or one or none."""
        outside, self.divided = self.divided, self.divided or self.is_divided(op)
        ends = [self.block(block, pending.copy()) for block in op.blocks()]
        if isinstance(op, ops.Where):
            ends.append(pending)
        self.divided = outside
        for other in ends[1:]:
            ends[0].add(other)
        return ends[0]

    def roles(self, op: ops.WarpRoles, pending: _Pending) -> _Pending:
        """The consumers meet without the producer, those of a consumer group without the others."""
        self.threads, self.group = 32 * self.program.warps, self.program.group
        pending = self.block(op.consumer, pending)
        self.threads, self.group = 0, 0
        return pending

    def loop(self, op: ops.For | ops.While, pending: _Pending) -> _Pending:
        """All iterations: what is pending at the head is what the last one may leave."""
        left, end = self.iteration(op, self.head(op, pending)[0])
        if isinstance(op, ops.For):
            left = self.aged(end, op)
            if not op.certain:
                left.add(pending)
        left.done = {
            self.memory.left(item, op) if isinstance(item, Access) else item for item in left.done
        }
        return left

    def head(self, op: ops.For | ops.While, pending: _Pending) -> tuple[_Pending, int]:
        """(what may be pending at the head of a loop, barriers that are due in an iteration). Loops
        in loops ask often for the same, before anything is inserted there."""
        key = op, pending.key(), self.divided
        if key not in self.heads:
            self.heads[key] = self.settled(op, pending)
        head, count = self.heads[key]
        return head.copy(), count

    def settled(self, op: ops.For | ops.While, pending: _Pending) -> tuple[_Pending, int]:
        """What `head` gives, by iterations until nothing is added."""
        head = pending.copy()
        outside, self.inserting, before = self.inserting, False, self.count
        while True:
            self.count = 0
            end = self.aged(self.iteration(op, head.copy())[1], op)
            if head.holds(end):
                break
            head.add(end)
        found, self.count, self.inserting = self.count, before, outside
        return head, found

    def iteration(self, op: ops.For | ops.While, pending: _Pending) -> tuple[_Pending, _Pending]:
        """(what is pending after the head of a loop, after its body)."""
        if isinstance(op, ops.While):
            pending = self.block(op.head, pending)
        return pending.copy(), self.block(op.body, pending)

    def aged(self, pending: _Pending, loop: Op) -> _Pending:
        """The same, seen from the next iteration, in which names stand for other numbers."""

        def aged(items: set[Any]) -> set[Any]:
            return {
                replace(item, stage=None)
                if isinstance(item, Effect) and isinstance(item.stage, str)
                else self.memory.aged(item, loop) if isinstance(item, Access)
                else item
                for item in items
            }  # fmt: skip

        return _Pending(
            aged(pending.done), aged(pending.copies), aged(pending.matmuls), aged(pending.told),
            pending.acquired,
        )  # fmt: skip
