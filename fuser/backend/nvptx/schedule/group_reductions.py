"""Let reductions that do not depend on each other cross the warps of a block together.

    write_parts @0, (%a)                        write_parts @0, (%a)
    %p = read_parts @0                          %b = fold_lanes.sum %y
    %x = map.sub (%x0, %p)                      write_parts @1, (%b)
    %b = fold_lanes.sum %y                      %p = read_parts @0
    write_parts @1, (%b)                        %x = map.sub (%x0, %p)
    %q = read_parts @1                          %q = read_parts @1

All warps wait between a write and its read (memory/block_barriers.py): once for both then.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Slot
from fuser.backend.nvptx.prefetch.code_motion import PURE, makers_of, take

_MOVABLE = (*PURE, ops.Cast, ops.Bitcast, ops.FoldRegisters, ops.FoldLanes)
_ORDERED = (ops.Barrier, ops.WgmmaWait, ops.WaitCopies, ops.MbarrierWait, ops.Where)


def group_reductions(program: Program) -> None:
    """Move what a warp writes for the others before its wait for an earlier reduction."""
    _block(program.body)


def _block(block: Block) -> None:
    for op in block.ops:
        for inner in op.blocks():
            _block(inner)
    at = 0
    while at < len(block.ops):
        if isinstance(block.ops[at], ops.ReadParts):
            moved, end = _independent(block.ops, at)
            kept = [op for op in block.ops[at:end] if op not in moved]
            block.ops[at:end] = [*moved, *kept]
            at += len(moved)
        at += 1


def _independent(body: Sequence[Op], at: int) -> tuple[dict[Op, None], int]:
    """What can go before the read at a place: the writes after it, up to one that needs it, and
    what these are made of, in their order; and the end of where they are."""
    makers: dict[object, Op] = makers_of(body[at : at + 1])
    moved: dict[Op, None] = {}
    written: set[Slot] = set()
    for end in range(at + 1, len(body)):
        op = body[end]
        if op.blocks() or isinstance(op, _ORDERED):
            break
        if isinstance(op, ops.WriteParts):
            fresh = op.slot in makers and op.slot not in written  # nobody reads the slot before
            if not fresh or not take(op, makers, moved, _MOVABLE):
                break
            written.add(op.slot)
        makers |= makers_of([op])
    else:
        end = len(body)
    return {op: None for op in body[at:end] if op in moved}, end
