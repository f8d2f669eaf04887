"""Offsets for the slots of shared memory: those that are never live together may overlap.

slot @0: 512 bytes                              slot @0: 512 bytes at 0
slot @1: 256 bytes                              slot @1: 256 bytes at 0
alloc @0  ...  free @0                          alloc @0  ...  free @0
alloc @1  ...  free @1                          alloc @1  ...  free @1

A loop that frees what was allocated before it has it again in its next iteration: the operands
that a producer fetches for the next program of a block. Then it is not free.

alloc @0                                        alloc @0
while ... body {                                while ... body {
  ...                                             ...
  free @0
}                                               }
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Slot


def place_slots(program: Program) -> None:
    """Choose every slot's offset, first fit in order of birth."""
    _keep_repeated(program.body, None)
    lives = _lives(program)
    placed: list[Slot] = []
    for slot in program.slots:
        first, last = lives[slot]
        rivals = [o for o in placed if first <= lives[o][1] and lives[o][0] <= last]
        offset = 0
        for other in sorted(rivals, key=lambda other: other.offset):
            if offset + slot.size <= other.offset:
                break
            offset = max(offset, -(-(other.offset + other.size) // slot.align) * slot.align)
        slot.place(offset)
        placed.append(slot)


def _keep_repeated(block: Block, own: set[Slot] | None) -> None:
    """Drop what frees slots that an iteration finds. own: those that the loop around the block
    allocates, where there is one."""
    if own is not None:
        block.ops[:] = [op for op in block.ops if not isinstance(op, ops.Free) or op.slot in own]
    for op in block.ops:
        loop = isinstance(op, ops.For | ops.While)
        inside = [inner for part in op.blocks() for inner in part.walk()] if loop else []
        made = {inner.slot for inner in inside if isinstance(inner, ops.Alloc)} if loop else own
        for inner in op.blocks():
            _keep_repeated(inner, made)


def _lives(program: Program) -> dict[Slot, tuple[int, int]]:
    """From which op to which a slot is somebody's, by their numbers."""
    first: dict[Slot, int] = {}
    last: dict[Slot, int] = {}
    number = 0
    for number, op in enumerate(program.body.walk(), start=1):
        if isinstance(op, ops.Alloc):
            first[op.slot] = 0 if op.slot.early else number
        elif isinstance(op, ops.Free):
            last[op.slot] = number
    return {slot: (first.get(slot, 0), last.get(slot, number + 1)) for slot in program.slots}
