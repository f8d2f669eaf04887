"""Move a tile from one layout to another: by renaming registers, or through shared memory."""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import flattened, in_registers, row_major, tile_size
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.dtypes import DType


def convert(low: Builder, tile: Tile, layout: Layout) -> Tile:
    """The same tile in another layout."""
    if tile.layout == layout:
        return tile
    if in_registers(tile.layout, layout):
        made = low.new(tile.dtype, tile.shape, layout)
        return low.add(gpu.Relabel(x=tile, results=(made,)))
    return _through_shared(low, tile, layout)


def _through_shared(low: Builder, tile: Tile, layout: Layout) -> Tile:
    low.cluster.stay_in_block("a change of layout", tile.layout, layout)
    if low.frugal:
        return low.in_slices(tile, tile.shape, layout)
    source, rank = tile.layout, len(tile.shape)
    bytes_ = max(1, tile.dtype.bytes)
    axis = max(range(rank), key=lambda a: source.vector(a) + layout.vector(a) + (a == rank - 1))
    cover = [max(a, b) for a, b in zip(source.shape, layout.shape, strict=True)]
    order = [axis] + [a for a in reversed(range(rank)) if a != axis]
    steps = [0] * rank
    pitch = bytes_
    for position, a in enumerate(order):
        steps[a] = pitch
        pitch *= cover[a]
        if position == 0 and rank > 1:
            # 16 spare bytes a row: rows start in different banks, and vectors stay aligned
            pitch = -(-pitch // 16) * 16 + 16
    slot = low.shared.allocate(pitch)
    write_tile(low, tile, slot, steps, axis)
    made = low.new(tile.dtype, tile.shape, layout)
    low.do(gpu.ReadShared(slot=slot, steps=tuple(steps), axis=axis, results=(made,)))
    low.shared.free(slot)
    return made


def write_tile(low: Builder, tile: Tile, slot: Slot, steps: list[int], axis: int) -> None:
    """Write a tile to a slot, its elements so many bytes apart along each axis."""
    low.do(gpu.WriteShared(slot=slot, x=tile, steps=tuple(steps), axis=axis))


def reshape(low: Builder, tile: Tile, shape: Coordinates, layout: Layout) -> Tile:
    """The same elements in row-major order under another shape, in the given layout."""
    source = tile.layout
    if in_registers(flattened(source, tile.shape), flattened(layout, shape)):
        made = low.new(tile.dtype, shape, layout)
        return low.add(gpu.Relabel(x=tile, flat=True, results=(made,)))
    low.cluster.stay_in_block("a reshape", source, layout)
    dtype = tile.dtype
    if low.frugal:
        return low.in_slices(tile, shape, layout)
    slot = low.shared.allocate(tile_size(shape) * dtype.bytes)
    write_dense(low, tile, slot, row_major(tile.shape, dtype.bytes)[1])
    made = read_dense(low, dtype, shape, layout, slot)
    low.shared.free(slot)
    return made


def read_dense(low: Builder, dtype: DType, shape: Coordinates, layout: Layout, slot: Slot) -> Tile:
    """Read a tile whose elements lie in order."""
    return low.add(gpu.ReadDense(slot=slot, results=(low.new(dtype, shape, layout),)))


def write_dense(low: Builder, tile: Tile, slot: Slot, steps: list[int]) -> None:
    """Write the elements of a tile, and none past its edges, one by one."""
    low.do(gpu.WriteDense(slot=slot, x=tile, steps=tuple(steps)))
