"""Show what threads wrote to shared memory to matrix units and the copy engine.

These see the writes of threads and their copies after a fence only (another proxy, in PTX's
words), which each thread makes for its own writes, before the barrier that is due anyway. One is
enough for writes to one slot that follow each other.

    wait_copies                                 wait_copies
    write_tile @2, %zeros                       fence_async
    barrier                                     write_tile @2, %zeros
    write_tile @2, %x                           barrier
    barrier                                     write_tile @2, %x
    %s = wgmma ..., @0, @2                      fence_async
                                                barrier
                                                %s = wgmma ..., @0, @2
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program

_ISSUED = (ops.Wgmma, ops.WgmmaSplit)


def fence_proxies(program: Program) -> None:
    """Insert the fences of a program whose matmuls read shared memory by themselves."""
    if any(isinstance(op, _ISSUED) for op in program.body.walk()):
        _block(program.body)


def _block(block: Block) -> None:
    made: list[Op] = []
    for number, op in enumerate(block.ops):
        for inner in op.blocks():
            _block(inner)
        made.append(op)
        if isinstance(op, ops.WaitCopies | ops.SplitRight) or (
            isinstance(op, ops.WriteTile) and not _written_again(op, block.ops[number + 1 :])
        ):
            made.append(ops.FenceAsync(origin=op.origin))
    block.ops[:] = made


def _written_again(op: ops.WriteTile, following: list[Op]) -> bool:
    for later in following:
        if isinstance(later, ops.WriteTile) and later.target.slot is op.target.slot:
            return True
        if later.blocks() or isinstance(later, _ISSUED):
            return False
    return False
