"""Gathers: elements of a tile at places that other elements say, through shared memory."""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import row_major, tile_size
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.errors import LoweringError
from fuser.tilegen import ops


def lower_gather(low: Builder, op: ops.Gather) -> Tile:
    """The result, in its own layout: all of the operand lies in shared memory meanwhile."""
    dtype = op.x.dtype
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
    low.do(gpu.WriteDense(slot=slot, x=source, steps=tuple(steps)))
    made = low.new(dtype, op.result.shape, layout, op.result.name)
    low.do(gpu.GatherShared(
        slot=slot, at=at, axis=op.axis, steps=tuple(steps), results=(made,)
    ))  # fmt: skip
    low.shared.free(slot)
    return made
