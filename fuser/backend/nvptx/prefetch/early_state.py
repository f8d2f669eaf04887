"""Ask for what was in memory before the run without waiting for the previous kernel.

Of a cache that grows, all rows but the last are of earlier runs (`View.settled`): where a stage has
none but such rows, its first copies need no wait. `settled` of a copy is the condition.

    await_previous (q, k)                           where %some {
    where %some {                                     %old.early := slt i32 %last, %past
      %old := slt i32 %last, %past                    where %old.early {
      copy_async &k[...], @0 {settled = %old}           copy_async &k[...], @0 {settled = ...}
    }                                                 }
    commit_copies                                   }
                                                    await_previous (q, k)
                                                    where %some {
                                                      %old := slt i32 %last, %past
                                                      %new := xor i1 %old, 1
                                                      where %new {
                                                        copy_async &k[...], @0
                                                      }
                                                    }
                                                    commit_copies

The early copies belong to the group that is committed first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import cloned
from fuser.backend.nvptx.prefetch.code_motion import PURE, makers_of, take, used
from fuser.backend.nvptx.prefetch.first_copies import only_copies

_BEFORE = (*PURE, ops.Alloc, ops.CopyAsync, ops.CommitCopies, ops.Load, ops.Keep)
"""What may stand between the wait and the copies: nothing else that touches shared memory."""


def request_state(program: Program) -> Decision | None:
    """Move copies that precede the first loop to before the wait, where their condition holds.
    None if no copy has one."""
    body = program.body
    if not any(isinstance(op, ops.CopyAsync) and op.settled is not None for op in body.walk()):
        return None
    at = next((n for n, op in enumerate(body.ops) if isinstance(op, ops.AwaitPrevious)), None)
    count = 0 if at is None else _split(body, at)
    name = "state requested early"
    if at is None:
        return Decision(name, False, "the kernel does not start under the previous one")
    if not count:
        return Decision(name, False, "something else comes before its copies")
    return Decision(name, True, f"{count} copies of what earlier runs have left")


def forget_state(program: Program) -> None:
    """Leave the conditions out, but for copies that come before the wait."""
    waits = any(isinstance(op, ops.AwaitPrevious) for op in program.body.ops)
    _forget(program.body, before=waits)


def _split(body: Block, at: int) -> int:
    """Put the early copies before the wait, op number `at`; how many there are."""
    after = body.ops[at + 1 :]
    early: dict[Op, None] = {}
    for op in after:
        if _settled(op) and not isinstance(op, PURE):
            early[op] = None
        elif not isinstance(op, _BEFORE) and not only_copies(op):
            break
    makers, moved = makers_of(after), dict[Op, None]()
    if not early or not all(take(op, makers, moved) for op in early):
        return 0
    front, rest = Block(), Block([], [op for op in after if op in early or op not in moved])
    for op in after:
        if op in moved:
            front.ops.extend(cloned([op], ".early", {}) if op in early else [op])
    copies = _where_settled(front, True)
    _where_settled(rest, False, early)
    body.ops[at:] = [*front.ops, body.ops[at], *rest.ops]
    return copies


def _settled(op: Op) -> bool:
    """Whether an op issues copies that have a condition, and does nothing else."""
    if isinstance(op, ops.Where):
        return all(map(_settled, op.body.ops))
    return isinstance(op, PURE) or (isinstance(op, ops.CopyAsync) and op.settled is not None)


def _where_settled(body: Block, holds: bool, among: Container[Op] | None = None) -> int:
    """Put each copy under its condition, or under the opposite of it; how many there are. among:
    ops of the block that have copies; None: any."""
    made: list[Op] = []
    copies = 0
    for op in body.ops:
        chosen = among is None or op in among
        if chosen and isinstance(op, ops.Where):
            copies += _where_settled(op.body, holds)
        if not chosen or not isinstance(op, ops.CopyAsync) or op.settled is None:
            made.append(op)
            continue
        copies += 1
        condition = op.settled
        if not holds:
            op = dataclasses.replace(op, settled=None)
            opposite = f"{condition}.not"
            made.append(Integer(fn="xor", type="i1", operands=(condition, 1), names=(opposite,)))
            condition = opposite
        made.append(ops.Where(condition=condition, body=Block([], [op])))
    body.ops[:] = made
    return copies


def _forget(block: Block, *, before: bool) -> None:
    """Drop the conditions of copies, of those after the wait if it is still to come, with what
    they are made of."""
    changed = False
    for at, op in enumerate(block.ops):
        before = before and not isinstance(op, ops.AwaitPrevious)
        if isinstance(op, ops.CopyAsync) and op.settled is not None and not before:
            block.ops[at], changed = dataclasses.replace(op, settled=None), True
        for inner in op.blocks():
            _forget(inner, before=before)
    if changed:
        block.ops[:] = used(block.ops)


__all__ = ["forget_state", "request_state"]
