"""Record that a tile is wanted in another layout, or under another shape."""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import moves_in_registers
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.builder import Builder


def convert(low: Builder, tile: Tile, layout: Layout) -> Tile:
    """The same tile in another layout."""
    if tile.layout == layout:
        return tile
    made = low.new(tile.dtype, tile.shape, layout)
    return _record(low, "a change of layout", gpu.ConvertLayout(x=tile, results=(made,)))


def reshape(low: Builder, tile: Tile, shape: Coordinates, layout: Layout) -> Tile:
    """The same elements in row-major order under another shape, in the given layout."""
    made = low.new(tile.dtype, shape, layout)
    return _record(low, "a reshape", gpu.ConvertLayout(x=tile, flat=True, results=(made,)))


def _record(low: Builder, what: str, op: gpu.ConvertLayout) -> Tile:
    """Raises NeedsOneBlock where elements would go to another block: shared memory is a block's."""
    if low.cluster.blocks > 1 and not moves_in_registers(op.x, op.tile, flat=op.flat):
        low.cluster.stay_in_block(what, op.x.layout, op.tile.layout)
    return low.add(op)
