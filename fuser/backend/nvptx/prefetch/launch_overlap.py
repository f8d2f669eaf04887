"""Let the next kernel be launched, and wait until the one before this has ended (PDL).

Every program of every kernel waits, so that what is complete is complete for all that follow.
Constants do not change and need no wait; the barriers of stages are made before it.

    where %t0 {                                     where %t0 {
      mbarrier_init ...                               mbarrier_init ...
    }                                               }
    barrier                                         barrier
    warp_roles ...                                  await_previous (x, y)
                                                    warp_roles ...
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.program import Program


def overlap_launches(program: Program) -> None:
    """Insert the wait: at the start, or after the barriers that are made there."""
    body = program.body.ops
    data = tuple(buffer for buffer in program.buffers if buffer.role != "constant")
    body.insert(_after_barriers(body), ops.AwaitPrevious(buffers=data))


def _after_barriers(body: list[Op]) -> int:
    made = False
    for at, op in enumerate(body):
        made |= any(isinstance(inner, ops.MbarrierInit) for b in op.blocks() for inner in b.walk())
        if made and isinstance(op, ops.Barrier | ops.ClusterWait):
            return at + 1
    return 0
