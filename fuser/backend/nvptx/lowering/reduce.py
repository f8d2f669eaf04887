"""Reductions of a distributed tile: registers, then lanes by shuffles, then warps through shared
memory, then the blocks of a cluster. The order is fixed by the layout, so equal inputs give equal
bits."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.nvptx.cluster.cluster import NeedsOneBlock
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import row_major
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.dtypes import DType

Partials = list[list[Tile]]
"""For each part its tiles."""


def fill_edge(low: Recording, tile: Tile, axes: tuple[int, ...], value: float | int = 0) -> Tile:
    """A tile with a number where an element lies past its edge along `axes`."""
    if all(tile.layout.shape[a] == tile.shape[a] for a in axes):
        return tile
    made = low.new(tile.dtype, tile.shape, tile.layout)
    return low.add(gpu.FillEdge(x=tile, axes=axes, value=value, results=(made,)))


@dataclass
class Partial:
    """A fold of some axis of a tile under way. of: the layout of what is folded; tile: what each
    thread has of the result."""

    fn: str
    axis: int
    of: Layout
    tile: Tile

    @property
    def dtype(self) -> DType:
        return self.tile.dtype

    @property
    def layout(self) -> Layout:
        return self.tile.layout


def reduce_tile(low: Builder, fn: str, tile: Tile, axis: int) -> Tile:
    """Fold an axis away; the result's layout is the tile's without that axis."""
    return fold_threads(low, fold_registers(low, fn, tile, axis))


def fold_registers(
    low: Recording, fn: str, tile: Tile, axis: int, before: Partial | None = None
) -> Partial:
    """Fold the registers of each thread. before: of other registers of the same tile."""
    result = tile.layout.reduced(axis)
    shape = (*tile.shape[:axis], *tile.shape[axis + 1 :])
    made = low.new(tile.dtype, shape, result, "fold")
    earlier = before.tile if before is not None else None
    low.do(gpu.FoldRegisters(fn=fn, x=tile, axis=axis, before=earlier, results=(made,)))
    return Partial(fn, axis, tile.layout, made)


def fold_threads(low: Builder, partial: Partial) -> Tile:
    """Fold what the threads have: lanes, warps, the blocks of a cluster."""
    folded = partial.tile
    steps = tuple(1 << bit for bit, basis in enumerate(partial.of.lanes) if basis[partial.axis])
    if steps:
        made = low.new(folded.dtype, folded.shape, folded.layout, "fold")
        folded = low.add(gpu.FoldLanes(fn=partial.fn, x=folded, steps=steps, results=(made,)))
    bits = [bit for bit, basis in enumerate(partial.of.warps) if basis[partial.axis]]
    inside, blocks = low.cluster.split(bits)
    for gather, which in ((partials_of_warps, inside), (partials_of_blocks, blocks)):
        if which:
            partials = gather(low, [folded], which)
            folded = fold_partials(low, partial.fn, [p[0] for p in partials])
    return folded


def fold_partials(low: Recording, fn: str, partials: list[Tile]) -> Tile:
    """Tiles of one layout folded in a fixed order."""
    like = partials[0]
    made = low.new(like.dtype, like.shape, like.layout, "fold")
    return low.add(gpu.FoldParts(fn=fn, parts=tuple(partials), results=(made,)))


def partials_of_warps(low: Recording, values: list[Tile], bits: list[int]) -> Partials:
    """What the warps that differ in `bits` of the warp number have of some tiles of one layout."""
    like = values[0]
    size, _ = row_major(like.layout.shape, like.dtype.bytes * len(values))
    slot = low.shared.allocate(size << len(bits))
    low.do(gpu.WriteParts(slot=slot, values=tuple(values), bits=tuple(bits)))
    numbers = [
        number
        for number in range(1 << len(bits))  # twelve warps have four bits
        if sum(1 << bit for i, bit in enumerate(bits) if number >> i & 1) < low.warps
    ]
    found = [[low.new(v.dtype, v.shape, v.layout, "part") for v in values] for _ in numbers]
    low.do(gpu.ReadParts(
        slot=slot, parts=tuple(numbers), count=len(values),
        results=tuple(tile for partial in found for tile in partial),
    ))  # fmt: skip
    low.shared.free(slot)
    return found


def partials_of_blocks(low: Builder, values: list[Tile], bits: list[int]) -> Partials:
    """What the blocks that differ in `bits` of their number have of some tiles of one layout."""
    if len(bits) < low.cluster.bits:
        raise NeedsOneBlock("a reduction over some of the blocks")
    return low.cluster.exchange(values)
