"""Schedule the matmuls of an iteration to stay in flight until those of the next one are issued.

A loop says so (`in_flight`) whose matmuls only add to sums that it carries. The wait in it, and the
arrivals after it, which give back a stage, are of the iteration after then (expand_loops.py).
Operands that threads write are overwritten after a wait for what reads them, and after a barrier,
which is due then (block_barriers.py). Nothing else may lie there before the last matmul has read.

    for 512, (0, 0, 0), (%c)                    for 512, (0, 0, 0), (%c)
        {in_flight = 1} body (...) {                body (...) {
                                                  wgmma_wait
      write_tile @1, %w                           write_tile @1, %w
      mbarrier_wait %full, %phase                 mbarrier_wait %full, %phase
      %a = wgmma ..., @0, @1, %sum                %a = wgmma ..., @0, @1, %sum
      %b = wgmma_wait (%a)                        %b = wgmma_wait (%a) {stage = 1}
      mbarrier_arrive %empty, %first              mbarrier_arrive %empty, %first {stage = 1}
      free @1                                     yield %following, %next, ..., %b
      yield %following, %next, ..., %b          }
    }                                           free @1
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Integer
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import SharedTile
from fuser.backend.nvptx.schedule.expand_loops import arrivals

_MAKING = (Integer, ops.Full, ops.FillEdge)
"""What an operand that threads write is made of at last."""


def leave_in_flight(program: Program) -> None:
    """Schedule every loop that says that its matmuls may run on."""
    _block(program.body)


def _block(block: Block) -> None:
    for op in block.ops[:]:
        for inner in op.blocks():
            _block(inner)
        if isinstance(op, ops.For) and op.in_flight:
            op.overlap(in_flight=0)
            _schedule(op.body)
            at = block.ops.index(op) + 1
            at += arrivals(block.ops[at:])
            block.ops[at:at] = _keep_operands(op.body)


def _schedule(body: Block) -> None:
    """Wait, and give back, an iteration later."""
    wait = next(op for op in body.ops if isinstance(op, ops.WgmmaWait))
    at = body.ops.index(wait) + 1
    for op in (wait, *body.ops[at : at + arrivals(body.ops[at:])]):
        if isinstance(op, ops.Scheduled):
            op.schedule(1)


def _keep_operands(body: Block) -> list[ops.Free]:
    """Wait before threads overwrite what the matmuls in flight read, and give what frees that: it
    belongs after the loop."""
    read = (tile for op in body.ops if isinstance(op, ops.Wgmma) for tile in (op.a, op.b))
    slots = {tile.slot for tile in read if isinstance(tile, SharedTile)}
    freed = [op for op in body.ops if isinstance(op, ops.Free) and op.slot in slots]
    body.ops[:] = [op for op in body.ops if op not in freed]
    for at, op in enumerate(body.ops):
        if isinstance(op, ops.WriteTile) and op.target.slot in slots:
            while isinstance(body.ops[at - 1], _MAKING):
                at -= 1
            body.ops.insert(at, ops.WgmmaWait(origin=op.origin))
            break
    return freed
