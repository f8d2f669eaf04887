"""What passes ask of loops."""

from __future__ import annotations

import re

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Integer


def end_of(loop: ops.For) -> ops.Yield:
    """What a body ends with."""
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    return last


def step_of(loop: ops.For) -> int:
    """By how much the variable grows; 0 where that is not known."""
    following = end_of(loop).scalars[0]
    for op in loop.body.ops:
        if isinstance(op, Integer) and op.names[0] == following:
            found = re.fullmatch(rf"add i32 {re.escape(loop.scalars[0])}, (\d+)", op.text)
            return int(found[1]) if found else 0
    return 0
