"""Copies to shared memory by way of registers, where threads have no copies under way (sm_75).

What is copied is loaded where the copy stood, and written as late as it may land: before the next
wait for copies, an op with blocks, or the end of the block. In a pipeline of two stages a tile
travels while the one before it is multiplied; the barrier at the head of the loop orders both, as
it does copies. Loads of a `where` have its condition for themselves.

    for 512, (0, 0) body (%k, %stage) {         for 512, (0, 0) body (%k, %stage) {
      wait_copies {pending = 0}                   barrier
      barrier                                     %next = load &x[...] {where = %more}
      where %more {                               %sum = mma ..., @0<...>[%stage], ...
        copy_async &x[...], @0<...>[%other]       write_tile @0<...>[%other], %next
      }                                           yield
      commit_copies                             }
      %sum = mma ..., @0<...>[%stage], ...
      yield
    }
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Operand, Tile


def stage_through_registers(program: Program) -> None:
    """Take every copy of threads apart; nothing is left that waits for copies."""
    _Staging().block(program.body)


class _Staging:
    def __init__(self) -> None:
        self.count = 0

    def block(self, block: Block) -> None:
        made: list[Op] = []
        late: list[Op] = []

        def land() -> None:
            made.extend(late)
            late.clear()

        for op in block.ops:
            match op:
                case ops.CopyAsync():
                    self.copy(op, None, made, late)
                case ops.Where() if any(isinstance(o, ops.CopyAsync) for o in op.body.ops):
                    for inner in op.body.ops:  # the rest is indices and masks
                        if isinstance(inner, ops.CopyAsync):
                            self.copy(inner, op.condition, made, late)
                        else:
                            made.append(inner)
                case ops.CommitCopies():
                    pass
                case ops.WaitCopies():
                    land()
                case _:
                    if op.blocks() or isinstance(op, ops.Yield | ops.Condition | ops.Free):
                        land()
                    for nested in op.blocks():
                        self.block(nested)
                    made.append(op)
        land()
        block.ops[:] = made

    def copy(
        self, op: ops.CopyAsync, where: Operand | None, made: list[Op], late: list[Op]
    ) -> None:
        self.count += 1
        target = op.target
        tile = Tile(target.dtype, target.shape, op.layout, name=f"%staged{self.count}")
        made.append(ops.Load(
            at=op.at, pad=0, constant=True, where=where, results=(tile,), origin=op.origin
        ))  # fmt: skip
        late.append(ops.WriteTile(target=target, x=tile, origin=op.origin))
