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
    return _record(low, "a change of layout", tile, tile.shape, layout, flat=False)


def reshape(low: Builder, tile: Tile, shape: Coordinates, layout: Layout) -> Tile:
    """The same elements in row-major order under another shape, in the given layout."""
    return _record(low, "a reshape", tile, shape, layout, flat=True)


def _record(
    low: Builder, what: str, tile: Tile, shape: Coordinates, layout: Layout, *, flat: bool
) -> Tile:
    """What cannot go through shared memory is found here, where there still is another way."""
    made = low.new(tile.dtype, shape, layout)
    if not moves_in_registers(tile, made, flat=flat):
        low.cluster.stay_in_block(what, tile.layout, layout)
        if low.frugal:
            return low.in_slices(tile, shape, layout)
    return low.add(gpu.ConvertLayout(x=tile, flat=flat, results=(made,)))
