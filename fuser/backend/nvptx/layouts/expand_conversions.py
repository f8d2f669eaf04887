"""Make each change of layout what it is: other names for registers, or a way through shared memory.

    %b = convert_layout %a : f32[64x64] #l1         alloc @0
                                                    write_shared @0, %a {steps = (4, 272), axis = 0}
                                                    %b = read_shared @0 {...} : f32[64x64] #l1
                                                    free @0
    %d = convert_layout %c : f32[64] #l2            %d = relabel %c : f32[64] #l2

What no thread has of its own goes through a slot that nobody else has meanwhile.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import moves_in_registers, row_major
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Slot, Tile


def expand_conversions(program: Program) -> None:
    """Expand every `convert_layout`. Slots are numbered in order of their allocation after it."""
    before = len(program.slots)
    _expand(program, program.body, 1)
    if len(program.slots) == before:
        return
    program.slots[:] = [op.slot for op in program.body.walk() if isinstance(op, ops.Alloc)]
    for number, slot in enumerate(program.slots):
        slot.number = number


def _expand(program: Program, block: Block, groups: int) -> None:
    """groups: consumer groups with a program each, which have slots of their own."""
    made: list[Op] = []
    for op in block.ops:
        if isinstance(op, ops.ConvertLayout):
            made += _expanded(program, op, groups)
            continue
        made.append(op)
        inside = op.threads // (32 * program.warps) if isinstance(op, ops.WarpRoles) else groups
        for inner in op.blocks():
            _expand(program, inner, inside)
    block.ops[:] = made


def _expanded(program: Program, op: ops.ConvertLayout, groups: int) -> list[Op]:
    x, made = op.x, op.tile
    if moves_in_registers(x, made, flat=op.flat):
        return [ops.Relabel(x=x, flat=op.flat, results=op.results, origin=op.origin)]
    slot = Slot(len(program.slots), 0, 16, copies=groups)
    program.slots.append(slot)
    write: Op
    read: Op
    if op.flat:
        slot.bytes, steps = row_major(x.shape, x.dtype.bytes)
        write = ops.WriteDense(slot=slot, x=x, steps=tuple(steps))
        read = ops.ReadDense(slot=slot, results=op.results)
    else:
        axis = _vector_axis(x, made)
        slot.bytes, steps = _padded(x, made, axis)
        write = ops.WriteShared(slot=slot, x=x, steps=tuple(steps), axis=axis)
        read = ops.ReadShared(slot=slot, steps=tuple(steps), axis=axis, results=op.results)
    found: list[Op] = [ops.Alloc(slot=slot), write, read, ops.Free(slot=slot)]
    for item in found:
        item.origin = op.origin
    return found


def _vector_axis(x: Tile, made: Tile) -> int:
    """The axis along which both layouts have the longest vectors."""
    rank = len(x.shape)
    return max(
        range(rank), key=lambda a: x.layout.vector(a) + made.layout.vector(a) + (a == rank - 1)
    )


def _padded(x: Tile, made: Tile, axis: int) -> tuple[int, list[int]]:
    """The bytes that a tile takes, all that either layout covers, contiguous along an axis; and the
    step along each axis."""
    rank = len(x.shape)
    cover = [max(a, b) for a, b in zip(x.layout.shape, made.layout.shape, strict=True)]
    steps, pitch = [0] * rank, max(1, x.dtype.bytes)
    for a in (axis, *(a for a in reversed(range(rank)) if a != axis)):
        steps[a] = pitch
        pitch *= cover[a]
        if a == axis and rank > 1:
            # 16 spare bytes a row: rows start in different banks, and vectors stay aligned
            pitch = -(-pitch // 16) * 16 + 16
    return pitch, steps


__all__ = ["expand_conversions"]
