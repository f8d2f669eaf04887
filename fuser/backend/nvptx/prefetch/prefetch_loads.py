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
iteration asks for its own again, which it has.

Two iterations are one then: what is asked for in the first half is multiplied in the second, where
the registers that the first half has done with are free for what is asked for there. One at a time,
a loop would end with moves from where it loads to where it reads, which wait for what is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import end_of, step_of, take_two
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import cloned
from fuser.backend.nvptx.prefetch.code_motion import makers_of, read_by, take, words_of

MOST = 64
"""Registers of a thread for what is a loop's next iteration's."""
_DOTS = (ops.Mma, ops.MmaTf32)


def prefetch_loads(program: Program) -> Decision | None:
    """Load ahead in every loop of matmuls, and say how many loads; None where there is none."""
    count = sum(_ahead(block, loop) for block, loop in _loops(program.body))
    if not count:
        return None
    return Decision("loads prefetched to registers", True, f"{count} loads an iteration ahead")


def _loops(block: Block) -> Iterator[tuple[Block, ops.For]]:
    for op in list(block.ops):
        if isinstance(op, ops.WarpRoles):
            continue
        if isinstance(op, ops.For) and any(isinstance(o, _DOTS) for o in op.body.ops):
            yield block, op
        for inner in op.blocks():
            yield from _loops(inner)


def _ahead(block: Block, loop: ops.For) -> int:
    """Move the loads of one loop an iteration ahead; how many."""
    step = step_of(loop)
    if not (loop.certain and step):
        return 0
    makers, moved = makers_of(loop.body.ops), dict[Op, None]()
    others = {*loop.scalars[1:], *loop.params}
    loads: list[ops.Load] = []
    room = MOST
    for op in loop.body.ops:
        if not isinstance(op, ops.Load) or not op.constant or op.where is not None:
            continue
        if op.at.access.view.buffer.role != "constant":
            continue
        size, found = words_of(op.tile, op), dict(moved)
        if size > room or not take(op, makers, found):
            continue
        if any(others & read_by(item) for item in found):
            continue
        room -= size
        moved = found
        loads.append(op)
    if not loads:
        return 0
    variable, each = loop.scalars[0], [op for op in loop.body.ops if op in moved]
    before = cloned(each, ".first", {variable: loop.firsts[0]})
    following, more, at = (f"{variable}.{word}" for word in ("following", "more", "ahead"))
    ahead = [
        Integer(fn="add", operands=(variable, step), names=(following,)),
        Integer(fn="slt", operands=(following, loop.stop), names=(more,)),
        Integer(fn="select", operands=(more, following, variable), names=(at,)),
        *cloned(each, ".next", {variable: at}),
    ]
    loop.params += tuple(op.tile for op in loads)
    loop.inits += tuple(op.tile for op in before if isinstance(op, ops.Load))
    loop.results += tuple(dataclasses.replace(op.tile, name=f"{op.tile.name}.last") for op in loads)
    loop.body.ops[:] = [*ahead, *(op for op in loop.body.ops if op not in loads)]
    end = end_of(loop)
    end.values += tuple(op.tile for op in ahead if isinstance(op, ops.Load))
    place = block.ops.index(loop)
    block.ops[place:place] = before
    later = block.ops[block.ops.index(loop) + 1 :]
    if not any({*loop.scalars, *end.scalars} & read_by(op) for op in later):
        place = block.ops.index(loop)
        block.ops[place:place] = take_two(loop)
    return len(loads)


__all__ = ["prefetch_loads"]
