"""Request the next row while the threads of a block reduce this one.

    for %rows, (%first) body (%row) {           %some := slt i32 %first, %rows
      %x = load &x[%row]                        %x.first = load &x[%first] {where = %some}
      %f = cast %x                              for %rows, (%first), (%x.first) body (%row, %x) {
      %sum = fold_lanes.sum %f                    %f = cast %x
      ...                                         %x.next = load &x[%ahead] {where = %more}
    }                                             %sum = fold_lanes.sum %f
                                                  ...
                                                  yield %x.next
                                                }

It is requested after the last use of this one, so that it comes to the same registers; nobody asks
for a row after the last. Rows for which there are no registers come through shared memory: each
thread copies what it reads itself.

      ...                                         wait_copies
      %x = load &x[%row]                          %x = read_own @0
                                                  where %more { copy_own @0, &x[%ahead] }
                                                  commit_copies
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import vectors
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Operand, Slot, Tile
from fuser.backend.nvptx.prefetch.code_motion import read_by, words_of
from fuser.backend.nvptx.prefetch.loop_loads import (
    Movable,
    NextIteration,
    carry,
    loads_of,
    movable,
)

SHARE = 4
"""One of so many of the registers that a loop leaves free may hold what comes ahead."""
REGISTERS, MAX_REGISTERS = 65536, 255
"""Registers of a multiprocessor, and the most per thread."""
BLOCKS = 2
"""Blocks of a multiprocessor that shared memory for rows leaves room for."""
COPIED = (4, 8, 16)
"""Bytes that a thread can copy at once."""
_FOLDS = (ops.FoldLanes, ops.ReadParts)


def prefetch_rows(
    program: Program, block: Block, loop: ops.For, most: int, shared_bytes: int
) -> int:
    """Load ahead in a loop of reductions; how many loads. most: registers per thread that may hold
    them. shared_bytes: of a multiprocessor; 0: none may come through shared memory."""
    body = loop.body.ops
    if not any(isinstance(op, _FOLDS) for op in body) or any(op.blocks() for op in body):
        return 0
    each = min(MAX_REGISTERS, REGISTERS // program.threads)
    kept = movable(loop, min(most, (each - _held(loop)) // SHARE), lambda load: True, chained=False)
    room = shared_bytes // max(BLOCKS, program.resident)
    room -= sum(slot.bytes for slot in program.slots)
    copied = _copied(program, loop, set(kept.loads), room)
    if not kept.loads and not copied.loads:
        return 0
    following = NextIteration(loop)
    before = _to_registers(loop, kept, following) if kept.loads else []
    if copied.loads:
        before += _through_shared(program, block, copied, following)
    loop.body.ops[:0] = following.ops
    if not loop.certain:
        test = (loop.firsts[0], loop.stop)
        before.insert(0, Integer(fn="slt", operands=test, names=(_some(loop),)))
    place = block.ops.index(loop)
    block.ops[place:place] = before
    return len(kept.loads) + len(copied.loads)


def _some(loop: ops.For) -> str:
    """The name of whether there is an iteration."""
    return f"{loop.scalars[0]}.some"


def _held(loop: ops.For) -> int:
    """Registers per thread of what a loop carries, and of what it reads from before it."""
    made = {tile for op in loop.body.ops for tile in op.results}
    read = {tile for op in loop.body.ops for tile in read_by(op) if isinstance(tile, Tile)}
    return sum(map(words_of, {*loop.params, *(read - made)}))


def _to_registers(loop: ops.For, found: Movable, following: NextIteration) -> list[Op]:
    """Carry loads; what comes before the loop."""
    before, ahead = found.cloned(loop.firsts[0], following.at)
    ahead = _guarded(ahead, following.more)
    if not loop.certain:
        before = _guarded(before, _some(loop))
    carry(loop, found.loads, before, ahead)
    body = [op for op in loop.body.ops if op not in found.loads]
    for load, again in zip(found.loads, loads_of(ahead), strict=True):
        uses = [at for at, op in enumerate(body[:-1]) if load.tile in read_by(op)]
        body.insert(max(uses, default=-1) + 1, again)
    loop.body.ops[:] = [*(op for op in ahead if not isinstance(op, ops.Load)), *body]
    return before


def _guarded(body: Iterable[Op], condition: str) -> list[Op]:
    """Ops whose loads touch memory only where a condition holds."""
    return [
        dataclasses.replace(op, where=condition) if isinstance(op, ops.Load) else op for op in body
    ]


def _bytes(program: Program, load: ops.Load) -> int:
    """Bytes of shared memory of what the threads copy."""
    access, layout = load.at.access, load.tile.layout
    count = len(vectors(layout, access.axis, access.width))
    return program.threads * count * access.width * access.view.dtype.bytes


def _copied(program: Program, loop: ops.For, others: set[ops.Load], room: int) -> Movable:
    """The loads that can come through so many bytes of shared memory."""
    taken = 0

    def wanted(load: ops.Load) -> bool:
        nonlocal taken
        access = load.at.access
        size = access.width * access.view.dtype.bytes if access.shape else 0
        if load in others or access.mask is not None or size not in COPIED:
            return False
        if load.tile.layout.vector(access.axis) % access.width:
            return False
        taken += _bytes(program, load)
        return taken <= room

    return movable(loop, 1 << 31, wanted, chained=False)


def _through_shared(
    program: Program, block: Block, found: Movable, following: NextIteration
) -> list[Op]:
    """Copy rows ahead; what comes before the loop."""
    loop, reads, slots = found.loop, dict[Op, Op](), list[Slot]()
    for load in found.loads:
        slot = Slot(len(program.slots), _bytes(program, load), 16)
        program.slots.append(slot)
        slots.append(slot)
        reads[load] = ops.ReadOwn(
            slot=slot, at=load.at, whole=load.tile.layout, threads=program.threads,
            pad=load.pad, results=load.results, origin=load.origin,
        )  # fmt: skip
    before, ahead = found.cloned(loop.firsts[0], following.at, ".copied")
    last = found.loads[-1]
    body: list[Op] = [ops.WaitCopies(pending=0)]
    for op in loop.body.ops:
        body.append(reads.get(op, op))
        if op is last:
            body += _copies(program, ahead, slots, following.more)
    loop.body.ops[:] = body
    after = block.ops.index(loop) + 1
    block.ops[after:after] = [ops.Free(slot=slot) for slot in slots]
    some = 1 if loop.certain else _some(loop)
    return [*(ops.Alloc(slot=slot) for slot in slots), *_copies(program, before, slots, some)]


def _copies(program: Program, body: list[Op], slots: list[Slot], condition: Operand) -> list[Op]:
    """Loads as copies, where a condition holds, in a group of their own."""
    issued = [
        ops.CopyOwn(
            slot=slot, at=load.at, strip=load.tile.layout, whole=load.tile.layout,
            threads=program.threads,
        )
        for load, slot in zip(loads_of(body), slots, strict=True)
    ]  # fmt: skip
    made = [op for op in body if not isinstance(op, ops.Load)]
    where = ops.Where(condition=condition, body=Block([], [*made, *issued]))
    return [*made, *issued, ops.CommitCopies()] if condition == 1 else [where, ops.CommitCopies()]
