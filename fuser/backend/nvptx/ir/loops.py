"""What passes ask of loops."""

from __future__ import annotations

import dataclasses

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Integer, Op
from fuser.backend.nvptx.ir.rewrite import cloned


def step_of(loop: ops.For) -> int:
    """By how much the variable grows; 0 where that is not known."""
    following = loop.end.scalars[0]
    for op in loop.body.ops:
        if isinstance(op, Integer) and op.names[0] == following:
            match op.operands:
                case (variable, int(step)) if op.fn == "add" and variable == loop.scalars[0]:
                    return step if step > 0 else 0
            return 0
    return 0


def take_two(loop: ops.For) -> list[Op]:
    """Let a loop of a known number of iterations, two or more, do two in each, and give what comes
    before it: the first one where their number is odd. Nothing where the number is not
    known. After the loop nobody may use its scalars. Slots that a body allocates and does not free
    are the same in all."""
    first, stop, step = loop.firsts[0], loop.stop, step_of(loop)
    if not (isinstance(first, int) and isinstance(stop, int) and step and loop.certain):
        return []
    count = -(-(stop - first) // step)
    if count < 2:
        return []
    before: list[Op] = []
    freed = {op.slot for op in loop.body.ops if isinstance(op, ops.Free)}
    lasting = {
        op for op in loop.body.ops if isinstance(op, ops.Alloc) and op.slot not in freed
    }  # fmt: skip
    if count % 2:
        known = dict(zip((*loop.scalars, *loop.params), (*loop.firsts, *loop.inits), strict=True))
        alone = cloned(loop.body.ops, ".alone", known)
        end = alone.pop()
        assert isinstance(end, ops.Yield)
        before = alone
        loop.start((first + step, *end.scalars[1:]), end.values)
        loop.body.ops[:] = [op for op in loop.body.ops if op not in lasting]
    end = loop.end
    given = dict(zip((*loop.scalars, *loop.params), (*end.scalars, *end.values), strict=True))
    again = cloned((op for op in loop.body.ops if op not in lasting), ".again", given)
    variable = loop.scalars[0]
    following = f"{variable}.two"
    loop.body.ops[-1:] = again
    last = loop.end
    add = Integer(fn="add", operands=(variable, 2 * step), names=(following,))
    end = dataclasses.replace(last, scalars=(following, *last.scalars[1:]))
    loop.body.ops[-1:] = [add, end]
    return before
