"""Gathers: elements of a tile at places that other elements say, through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.convert import write_dense
from fuser.backend.nvptx.emit.memory import from_memory
from fuser.backend.nvptx.ir.layouts import row_major, tile_size
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.values import memory_type
from fuser.errors import LoweringError
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def lower_gather(low: Lowering, op: ops.Gather) -> Tile:
    """The result, in its own layout: all of the operand lies in shared memory meanwhile."""
    e, dtype = low.emitter, op.x.dtype
    layout = low.layout(op.result)
    at = low.tile(op.at, layout)
    source = low.as_it_is(op.x)
    low.cluster.stay_in_block("a gather", layout, source.layout)
    if tile_size(op.x.shape) * dtype.bytes > low.target.shared_bytes:
        raise LoweringError(
            f"a gather in {op.x!r} takes more than the shared memory of {low.target.arch}",
            hint="use smaller blocks",
        )
    size, steps = row_major(op.x.shape, dtype.bytes)
    slot = low.shared.allocate(size)
    low.shared.before_write()
    write_dense(low, source, slot, steps)
    low.shared.before_read()
    indexer = low.indexer(layout)
    type, start = memory_type(dtype), low.shared.pointer(slot)
    regs = []
    for offset, reg in zip(layout.regs, at.regs, strict=True):
        place = e.times(low.as_i32(reg, at), steps[op.axis])
        for axis in range(op.x.type.rank):
            if axis != op.axis:
                along = e.plus(indexer.thread(axis), offset[axis])
                place = e.plus(place, e.times(along, steps[axis]))
        inside = indexer.inside(op.result.shape, offset)
        if inside is not None:  # past the edge any place will do
            place = e.pick(inside, place, 0)
        pointer = e.value(f"getelementptr i8, ptr addrspace(3) {start}, i32 {place}")
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        regs.append(from_memory(low, name, dtype))
    low.shared.free(slot)
    return Tile(dtype, op.result.shape, layout, regs)
