"""Schedule loads so that the next row is requested while the threads of a block reduce this one.

    for %rows, (%first) body (%row) {       for %rows, (%first) body (%row) {
      %x = load &x[%row]                      %x = load &x[%row] {stage = -1, order = 2, where = 1}
      %f = cast %x                            %f = cast %x
      %sum = fold_lanes.sum %f                %sum = fold_lanes.sum %f
      ...                                     ...
    }                                       }

It is requested after the last use of this one, so that it comes to the same registers; nobody asks
for a row after the last (`where`). Rows for which there are no registers come through shared
memory: each thread copies what it reads itself.

      %x = load &x[%row]                      copy_own @0, &x[%row] {stage = -1, order = 4}
                                              commit_copies {stage = -1, order = 4}
                                              wait_copies
                                              %x = read_own @0
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import vectors
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.prefetch.code_motion import movable, read_by, words_of

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
    """Schedule loads of a loop of reductions ahead; how many. most: registers per thread that may
    hold them. shared_bytes: of a multiprocessor; 0: none may come through shared memory."""
    body = loop.body.ops
    if not any(isinstance(op, _FOLDS) for op in body) or any(op.blocks() for op in body):
        return 0
    each = min(MAX_REGISTERS, REGISTERS // program.threads)
    room = min(most, (each - _held(loop)) // SHARE)
    kept, _ = movable(loop, room, lambda load: True, chained=False)
    room = shared_bytes // max(BLOCKS, program.resident)
    room -= sum(slot.bytes for slot in program.slots)
    copied, moved = _copied(program, loop, set(kept), room)
    if copied:
        _through_shared(program, block, loop, copied, moved)
    for load in kept:
        uses = [at for at, op in enumerate(body[:-1], start=1) if load.tile in read_by(op)]
        load.schedule(-1, max(uses, default=0))
        load.guard(1)
    return len(kept) + len(copied)


def _held(loop: ops.For) -> int:
    """Registers per thread of what a loop carries, and of what it reads from before it."""
    made = {tile for op in loop.body.ops for tile in op.results}
    read = {tile for op in loop.body.ops for tile in read_by(op) if isinstance(tile, Tile)}
    return sum(map(words_of, {*loop.params, *(read - made)}))


def _bytes(program: Program, load: ops.Load) -> int:
    """Bytes of shared memory of what the threads copy."""
    access, layout = load.at.access, load.tile.layout
    count = len(vectors(layout, access.axis, access.width))
    return program.threads * count * access.width * access.view.dtype.bytes


def _copied(
    program: Program, loop: ops.For, others: set[ops.Load], room: int
) -> tuple[list[ops.Load], dict[Op, None]]:
    """What can come through so many bytes of shared memory, and with what it is made of."""
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
    program: Program, block: Block, loop: ops.For, loads: list[ops.Load], moved: dict[Op, None]
) -> None:
    """Copy rows an iteration ahead, as soon as this one's have been read."""
    copies, reads = list[ops.Scheduled](), dict[Op, Op]()
    for load in loads:
        slot = Slot(len(program.slots), _bytes(program, load), 16)
        program.slots.append(slot)
        layout, threads = load.tile.layout, program.threads
        copies.append(ops.CopyOwn(
            slot=slot, at=load.at, strip=layout, whole=layout, threads=threads, stage=-1
        ))  # fmt: skip
        reads[load] = ops.ReadOwn(
            slot=slot, at=load.at, whole=layout, threads=threads, pad=load.pad,
            results=load.results, origin=load.origin,
        )  # fmt: skip
        place = block.ops.index(loop)
        block.ops.insert(place + 1, ops.Free(slot=slot))
        block.ops.insert(place, ops.Alloc(slot=slot))
    copies.append(ops.CommitCopies(stage=-1))
    made = [op for op in loop.body.ops if op in moved and op not in reads]
    rest = [reads.get(op, op) for op in loop.body.ops if op not in made]
    loop.body.ops[:] = [*made, *copies, ops.WaitCopies(), *rest]
    for op in copies:
        op.schedule(op.stage, loop.body.ops.index(reads[loads[-1]]) + 1)
