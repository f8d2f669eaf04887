"""Load what a loop of matmuls reads into registers one iteration ahead: it travels under the
iteration before, and that of the first one under the previous kernel (early_constants.py).

    for 512, (0,) body (%k) {                   %w.first = load &w[0]
      %w = load &w[%k] {constant = true}        for 512, (0,), (%w.first) body (%k, %w) {
      %b = map.mul (cast %w, %scale)              %following := add i32 %k, 64
      write_tile @0, %b                           %more := slt i32 %following, 512
      %sum = mma ..., @0                          %at := select i32 %more, %following, %k
      yield                                       %w.next = load &w[%at] {constant = true}
    }                                             %b = map.mul (cast %w, %scale)
                                                  write_tile @0, %b
                                                  %sum = mma ..., @0
                                                  yield %w.next
                                                }

Operands as they lie in memory come by copies (multistage_pipeline.py). These are computed on their
way to the matmul, as weights of a few bits are, so a thread has to have them in registers. The last
iteration asks for its own again, which it has. Loops of reductions: prefetch_rows.py.

Two iterations are one then: what is asked for in the first half is multiplied in the second, where
the registers that the first half has done with are free for what is asked for there. One at a time,
a loop would end with moves from where it loads to where it reads, which wait for what is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import take_two
from fuser.backend.nvptx.ir.op import Block
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.prefetch.code_motion import read_by
from fuser.backend.nvptx.prefetch.loop_loads import NextIteration, carry, movable
from fuser.backend.nvptx.prefetch.prefetch_rows import prefetch_rows

MAX_WORDS = 64
"""Registers of 32 bits per thread that hold what the next iteration of a loop reads."""
_DOTS = (ops.Mma, ops.MmaTf32)


def prefetch_loads(program: Program, shared_bytes: int = 0) -> Decision | None:
    """Load ahead in every loop of matmuls or reductions, and say how many loads; None where there
    is none. shared_bytes: of a block, which rows may come through; 0: no asynchronous copies."""
    count = 0
    for block, loop in _loops(program.body):
        if any(isinstance(op, _DOTS) for op in loop.body.ops):
            count += _ahead(block, loop)
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


def _ahead(block: Block, loop: ops.For) -> int:
    """Move the loads of a loop an iteration ahead, and do two iterations in one; how many."""
    if not loop.certain:
        return 0
    found = movable(loop, MAX_WORDS, _is_constant, chained=True)
    if not found.loads:
        return 0
    following = NextIteration(loop)
    before, ahead = found.cloned(loop.firsts[0], following.at)
    carry(loop, found.loads, before, ahead)
    body = [op for op in loop.body.ops if op not in found.loads]
    loop.body.ops[:] = [*following.ops, *ahead, *body]
    place = block.ops.index(loop)
    block.ops[place:place] = before
    end = loop.end
    later = block.ops[block.ops.index(loop) + 1 :]
    if not any({*loop.scalars, *end.scalars} & read_by(op) for op in later):
        place = block.ops.index(loop)
        block.ops[place:place] = take_two(loop)
    return len(found.loads)


def _is_constant(load: ops.Load) -> bool:
    return load.at.access.view.buffer.role == "constant"


__all__ = ["prefetch_loads"]
