"""Schedule what a loop of matmuls reads into registers one iteration ahead: it travels under the
iteration before, and that of the first one under the previous kernel (early_constants.py).

    for 512, (0,) body (%k) {                   for 512, (0,) {unroll = 2} body (%k) {
      %w = load &w[%k] {constant = true}          %w = load &w[%k] {stage = -1, constant = true}
      %b = map.mul (cast %w, %scale)              %b = map.mul (cast %w, %scale)
      write_tile @0, %b                           write_tile @0, %b
      %sum = mma ..., @0                          %sum = mma ..., @0
      yield                                       yield
    }                                           }

Operands as they lie in memory come by copies (pipeline_plan.py). These are computed on their way to
the matmul, as weights of a few bits are, so a thread has to have them in registers. The last
iteration asks for its own again, which it has. Loops of reductions: prefetch_rows.py.

Two iterations become one: what is asked for in the first half is multiplied in the second, where
the registers that the first half has done with are free for what is asked for there. One at a time,
a loop would end with moves from where it loads to where it reads, which wait for what is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.prefetch.code_motion import movable
from fuser.backend.nvptx.prefetch.prefetch_rows import prefetch_rows

MAX_WORDS = 64
"""Registers of 32 bits per thread that hold what the next iteration of a loop reads."""
_DOTS = (ops.Mma, ops.MmaTf32)


def prefetch_loads(program: Program, shared_bytes: int = 0) -> Decision | None:
    """Schedule loads ahead in every loop of matmuls or reductions, and say how many; None where
    there are none. shared_bytes: of a block, which rows may come through; 0: no asynchronous
    copies."""
    count = 0
    for block, loop in _loops(program.body):
        if any(isinstance(op, _DOTS) for op in loop.body.ops):
            count += _ahead(loop)
        else:
            count += prefetch_rows(program, block, loop, MAX_WORDS, shared_bytes)
    if not count:
        return None
    return Decision("loads prefetched", True, f"{count} loads an iteration ahead")


def _loops(block: Block) -> Iterator[tuple[Block, ops.For]]:
    for op in list(block.ops):
        if isinstance(op, ops.WarpRoles):
            continue
        if isinstance(op, ops.For):
            yield block, op
        for inner in op.blocks():
            yield from _loops(inner)


def _ahead(loop: ops.For) -> int:
    """Let the loads of a loop go an iteration ahead, and two iterations be one; how many."""
    if not loop.certain:
        return 0
    loads, _ = movable(loop, MAX_WORDS, _is_constant, chained=True)
    for load in loads:
        load.schedule(-1)
        loop.overlap(unroll=2)
    return len(loads)


def _is_constant(load: ops.Load) -> bool:
    return load.at.access.view.buffer.role == "constant"


__all__ = ["prefetch_loads"]
