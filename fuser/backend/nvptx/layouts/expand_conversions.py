"""Make each change of layout what it is: other names for registers, or a way through shared memory.

    %b = convert_layout %a : f32[64x64] #l1         alloc @0
                                                    write_shared @0, %a {steps = (4, 272), axis = 0}
                                                    %b = read_shared @0 {...} : f32[64x64] #l1
                                                    free @0
    %d = convert_layout %c : f32[64] #l2            %d = relabel %c : f32[64] #l2

What no thread has of its own goes through a slot that nobody else has meanwhile; where shared
memory is short, a window of its elements at a time.
"""

from __future__ import annotations

import dataclasses

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import moves_in_registers, row_major, tile_size
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.values import Slot, Tile


def expand_conversions(program: Program, window: int = 0) -> None:
    """Expand every `convert_layout`. window: bytes of a tile that are moved at a time; 0: all.
    Slots are numbered in the order of their allocation after it."""
    _expand(program, program.body, 1, window)
    program.slots[:] = [op.slot for op in program.body.walk() if isinstance(op, ops.Alloc)]
    for number, slot in enumerate(program.slots):
        slot.renumber(number)


def _expand(program: Program, block: Block, groups: int, window: int) -> None:
    """groups: consumer groups with a program each, which have slots of their own."""
    made: list[Op] = []
    for op in block.ops:
        if isinstance(op, ops.ConvertLayout):
            made += _expanded(op, groups, window)
            continue
        made.append(op)
        inside = op.threads // (32 * program.warps) if isinstance(op, ops.WarpRoles) else groups
        for inner in op.blocks():
            _expand(program, inner, inside, window)
    block.ops[:] = made


def _expanded(op: ops.ConvertLayout, groups: int, window: int) -> list[Op]:
    x, made = op.x, op.tile
    if moves_in_registers(x, made, flat=op.flat):
        return [ops.Relabel(x=x, flat=op.flat, results=op.results, origin=op.origin)]
    slot = Slot(0, 0, 16, copies=groups)
    through = _by_windows if window else _in_order if op.flat else _in_vectors
    found = [ops.Alloc(slot=slot), *through(x, made, slot, window), ops.Free(slot=slot)]
    for item in found:
        item.come_from(op.origin)
    return found


def _in_vectors(x: Tile, made: Tile, slot: Slot, window: int) -> list[Op]:
    """All that either layout covers, contiguous along the axis of the longest vectors of both."""
    last = len(x.shape) - 1
    axis = max(
        range(last + 1), key=lambda a: x.layout.vector(a) + made.layout.vector(a) + (a == last)
    )
    steps, pitch = [0] * (last + 1), max(1, x.dtype.bytes)
    for a in (axis, *(a for a in range(last, -1, -1) if a != axis)):
        steps[a] = pitch
        pitch *= max(x.layout.shape[a], made.layout.shape[a])
        if a == axis and last:
            # 16 spare bytes a row: rows start in different banks, and vectors stay aligned
            pitch = -(-pitch // 16) * 16 + 16
    slot.resize(pitch)
    return [
        ops.WriteShared(slot=slot, x=x, steps=tuple(steps), axis=axis),
        ops.ReadShared(slot=slot, steps=tuple(steps), axis=axis, results=(made,)),
    ]


def _in_order(x: Tile, made: Tile, slot: Slot, window: int) -> list[Op]:
    """Element by element, in the order that both shapes have them in."""
    size, steps = row_major(x.shape, x.dtype.bytes)
    slot.resize(size)
    return [
        ops.WriteDense(slot=slot, x=x, steps=tuple(steps)),
        ops.ReadDense(slot=slot, results=(made,)),
    ]


def _by_windows(x: Tile, made: Tile, slot: Slot, window: int) -> list[Op]:
    """A window of the elements at a time, in that order; the slot has room for one more."""
    count = window // x.dtype.bytes
    slot.resize((count + 1) * x.dtype.bytes)
    found: list[Op] = []
    before: Tile | None = None
    for first in range(0, tile_size(made.shape), count):
        part = dataclasses.replace(made, name=f"{made.name}.{first}")
        found.append(ops.WriteWindow(slot=slot, x=x, first=first, count=count))
        found.append(ops.ReadWindow(
            slot=slot, first=first, count=count, before=before, results=(part,)
        ))  # fmt: skip
        before = part
    found[-1].give((made,))
    return found


__all__ = ["expand_conversions"]
