"""Load what a loop of matmuls, or of reductions, reads into registers one iteration ahead: it
travels under the iteration before, and that of the first one under the previous kernel
(early_constants.py).

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

Rows that are reduced one after the other are requested as soon as the row before has been used,
into the same registers; nobody asks for a row after the last.

Two iterations of matmuls are one then: what is asked for in the first half is multiplied in the
second, where the registers that the first half has done with are free for what is asked for there.
One at a time, a loop would end with moves from where it loads to where it reads, which wait for
what is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.loops import end_of, step_of, take_two
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.rewrite import cloned
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.prefetch.code_motion import makers_of, read_by, take, words_of

MAX_WORDS = 64
"""Registers of 32 bits per thread that hold what the next iteration of a loop reads."""
SHARE = 4
"""Loops of reductions use one of so many of the registers that they leave free."""
REGISTERS, MAX_REGISTERS = 65536, 255
"""Registers of a multiprocessor, and the most per thread."""
_DOTS = (ops.Mma, ops.MmaTf32)
_FOLDS = (ops.FoldLanes, ops.ReadParts)


def prefetch_loads(program: Program) -> Decision | None:
    """Load ahead in every loop of matmuls or reductions, and say how many loads; None where there
    is none."""
    each = min(MAX_REGISTERS, REGISTERS // program.threads)
    count = 0
    for block, loop in _loops(program.body):
        if any(isinstance(op, _DOTS) for op in loop.body.ops):
            count += _ahead_of_matmuls(block, loop)
        elif _reduces(loop):
            room = (each - _held(loop)) // SHARE
            count += _ahead_of_reductions(block, loop, min(MAX_WORDS, room))
    if not count:
        return None
    return Decision("loads prefetched to registers", True, f"{count} loads an iteration ahead")


def _loops(block: Block) -> Iterator[tuple[Block, ops.For]]:
    for op in list(block.ops):
        if isinstance(op, ops.WarpRoles):
            continue
        if isinstance(op, ops.For):
            yield block, op
        for inner in op.blocks():
            yield from _loops(inner)


def _reduces(loop: ops.For) -> bool:
    """Whether the threads of an iteration wait for each other once or more, and for nothing else
    than loads: rows, one after the other."""
    body = loop.body.ops
    return any(isinstance(op, _FOLDS) for op in body) and not any(op.blocks() for op in body)


def _held(loop: ops.For) -> int:
    """Registers per thread of what a loop carries, and of what it reads from before it."""
    made = {tile for op in loop.body.ops for tile in op.results}
    read = {tile for op in loop.body.ops for tile in read_by(op) if isinstance(tile, Tile)}
    return sum(map(words_of, {*loop.params, *(read - made)}))


def _ahead_of_matmuls(block: Block, loop: ops.For) -> int:
    """Move the loads of a loop an iteration ahead, and do two iterations in one; how many."""
    if not loop.certain:
        return 0
    found = _movable(loop, MAX_WORDS, lambda load: load.at.access.view.buffer.role == "constant")
    if not found.loads:
        return 0
    _carry(block, loop, found, guarded=False)
    end = end_of(loop)
    later = block.ops[block.ops.index(loop) + 1 :]
    if not any({*loop.scalars, *end.scalars} & read_by(op) for op in later):
        place = block.ops.index(loop)
        block.ops[place:place] = take_two(loop)
    return len(found.loads)


def _ahead_of_reductions(block: Block, loop: ops.For, room: int) -> int:
    """Request what the next iteration loads as soon as this one has used its own, so that it comes
    to the same registers; how many loads."""
    found = _movable(loop, room, lambda load: True)
    if found.loads:
        _carry(block, loop, found, guarded=True)
    return len(found.loads)


@dataclass
class _Movable:
    """Loads that can be done an iteration ahead. each: they and what they are made of."""

    loads: list[ops.Load]
    each: list[Op]


def _movable(loop: ops.For, room: int, wanted: Callable[[ops.Load], bool]) -> _Movable:
    """What depends on nothing but the number of the iteration, in so many registers."""
    makers, moved = makers_of(loop.body.ops), dict[Op, None]()
    others = {*loop.scalars[1:], *loop.params}
    loads: list[ops.Load] = []
    for op in loop.body.ops:
        if not isinstance(op, ops.Load) or not op.constant or op.where is not None:
            continue
        if not step_of(loop) or not wanted(op):
            continue
        size, found = words_of(op.tile, op), dict(moved)
        if size > room or not take(op, makers, found):
            continue
        if any(others & read_by(item) for item in found):
            continue
        room -= size
        moved = found
        loads.append(op)
    return _Movable(loads, [op for op in loop.body.ops if op in moved])


def _carry(block: Block, loop: ops.For, found: _Movable, *, guarded: bool) -> None:
    """Load before the loop, and in it for the next iteration. guarded: only where there is one, and
    after the last use of what was loaded before."""
    variable, first = loop.scalars[0], loop.firsts[0]
    following, more, at, some = (
        f"{variable}.{word}" for word in ("following", "more", "ahead", "some")
    )
    before = cloned(found.each, ".first", {variable: first})
    ahead = cloned(found.each, ".next", {variable: at})
    if guarded:
        _guard(ahead, more)
        if not loop.certain:
            _guard(before, some)
            test = Integer(fn="slt", operands=(first, loop.stop), names=(some,))
            before.insert(0, test)
    loop.params += tuple(op.tile for op in found.loads)
    loop.inits += tuple(op.tile for op in before if isinstance(op, ops.Load))
    loop.results += tuple(
        dataclasses.replace(op.tile, name=f"{op.tile.name}.last") for op in found.loads
    )
    end_of(loop).values += tuple(op.tile for op in ahead if isinstance(op, ops.Load))
    body = [op for op in loop.body.ops if op not in found.loads]
    if guarded:
        for load, again in zip(found.loads, [*_loads(ahead)], strict=True):
            uses = [at for at, op in enumerate(body[:-1]) if load.tile in read_by(op)]
            body.insert(max(uses, default=-1) + 1, again)
            ahead.remove(again)
    loop.body.ops[:] = [
        Integer(fn="add", operands=(variable, step_of(loop)), names=(following,)),
        Integer(fn="slt", operands=(following, loop.stop), names=(more,)),
        Integer(fn="select", operands=(more, following, variable), names=(at,)),
        *ahead,
        *body,
    ]
    place = block.ops.index(loop)
    block.ops[place:place] = before


def _loads(body: Iterable[Op]) -> Iterator[ops.Load]:
    return (op for op in body if isinstance(op, ops.Load))


def _guard(body: Iterable[Op], condition: str) -> None:
    """Let loads touch memory only where a condition holds."""
    for op in _loads(body):
        op.where = condition


__all__ = ["prefetch_loads"]
