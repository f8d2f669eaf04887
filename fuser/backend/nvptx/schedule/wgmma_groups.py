"""Close matmuls in flight as groups, and let them see the registers that they read.

What one wait gives is a group: `wgmma_commit` after its last matmul, which waits count. A group is
preceded by `wgmma_fence`, as threads may have written sums and fragments, but not where the group
follows another one at once.

    %a = wgmma ..., @0, @1                      wgmma_fence
    %b = wgmma ..., @0, @2                      %a = wgmma ..., @0, @1
    %c = wgmma ..., %words, @3                  %b = wgmma ..., @0, @2
    %x, %y = wgmma_wait {values = (%a, %b)      wgmma_commit
                         pending = 1}           %c = wgmma ..., %words, @3
    %z = wgmma_wait {values = (%c,)}            wgmma_commit
                                                %x, %y = wgmma_wait {values = (%a, %b)
                                                                     pending = 1}
                                                %z = wgmma_wait {values = (%c,)}
"""

from __future__ import annotations

import itertools

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Tile


def close_groups(program: Program) -> None:
    """Insert fences and commits, in every block for itself."""
    _block(program.body)


def _block(block: Block) -> None:
    waits: dict[Tile, Op] = {}
    for op in reversed(block.ops):
        if isinstance(op, ops.WgmmaWait):
            waits |= dict.fromkeys(op.values, op)
    issued = [op for op in block.ops if isinstance(op, ops.Wgmma)]
    groups = {op: waits.get(op.tile, op) for op in issued}
    following = dict(itertools.pairwise(issued))
    made: list[Op] = []
    opened: Op | None = None
    for op in block.ops:
        for inner in op.blocks():
            _block(inner)
        if not isinstance(op, ops.Wgmma):
            made.append(op)
            continue
        if groups[op] is not opened:
            opened, at = groups[op], _place_before(made, op.keeps)
            if not at or not isinstance(made[at - 1], ops.WgmmaCommit):
                made.insert(at, ops.WgmmaFence(origin=op.origin))
        made.append(op)
        after = following.get(op)
        if after is None or groups[after] is not opened:
            made.append(ops.WgmmaCommit(origin=op.origin))
            opened = None
    block.ops[:] = made


def _place_before(made: list[Op], keeps: object) -> int:
    """The place before the integer that says whether sums are kept, or at the end."""
    last = made[-1] if made else None
    return len(made) - (isinstance(last, Integer) and keeps in last.names)
