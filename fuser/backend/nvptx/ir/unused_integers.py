"""Leave out integers of the head that nothing reads.

head {                                          head {
  %s0 := call ... ctaid.x()                       %s1 := call ... ctaid.y()
  %s1 := call ... ctaid.y()                     }
}                                               store &y[%s1*4 + #0] ...
store &y[%s1*4 + #0] ...
"""

from __future__ import annotations

from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import scalars_of


def drop_unused(program: Program) -> None:
    """Keep what the body reads, and what that is made of."""
    wanted = {name for op in program.body.walk() for name in scalars_of(op)}
    if isinstance(program.group, str):
        wanted.add(program.group)
    kept: list[Op] = []
    for op in reversed(program.head.ops):
        if wanted.intersection(op.names):
            kept.append(op)
            wanted.update(scalars_of(op))
    program.head.ops[:] = kept[::-1]
