"""The merge of what the blocks of a cluster leave after a loop whose iterations they shared.

Every block writes its values to its own shared memory; after one barrier of the cluster, each
thread reads what it goes on with from all of them, and puts it together in the order of the blocks,
as cluster/reduction_merge.py says.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import row_major
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layouts.access_layout import operand_layout
from fuser.backend.nvptx.layouts.layout import Layout, next_power
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.masks import spread
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.tiles import finite, map_of
from fuser.tilegen import ops
from fuser.tilegen.value import Value


@dataclass(frozen=True, eq=False)
class _Written:
    """A value that every block left in a slot of its own, elements `steps` bytes apart."""

    tile: Tile
    slot: Slot
    steps: tuple[int, ...]


def merge_over_cluster(low: Builder, loop: ops.For, finals: list[Tile]) -> dict[Value, Tile]:
    """The loop's results that are used. finals: what this block has of each."""
    reduction_merges = low.assignment.reduction_merges[loop]
    used = [bool(low.assignment.uses.get(result)) for result in loop.results]
    needed = {
        m.top for m, use in zip(reduction_merges, used, strict=True) if use and m.top is not None
    }
    left = {
        position: _write(low, tile)
        for position, tile in enumerate(finals)
        if used[position] or position in needed
    }
    low.cluster.publish()
    found: dict[Value, Tile] = {}
    weights: dict[tuple[int, Layout], list[Tile]] = {}
    for position, (result, merge) in enumerate(zip(loop.results, reduction_merges, strict=True)):
        if not used[position]:
            continue
        layout = low.layout(result)
        partials = _read(low, left[position], layout)
        if merge.top is not None:
            top = left[merge.top]
            narrow = operand_layout(layout, merge.axes, top.tile.shape)
            key = (merge.top, narrow)
            if key not in weights:
                weights[key] = _weights(low, _read(low, top, narrow))
            partials = _weighted(low, partials, weights[key], merge.axes)
        total = partials[0]
        for partial in partials[1:]:
            total = map_of(low, {"sum": "add"}.get(merge.fn, merge.fn), total, partial)
        found[result] = total
    low.cluster.done_reading()  # the slots are not freed: others may still read them
    return found


def _write(low: Recording, tile: Tile) -> _Written:
    # what reads may cover more than what writes; 32 spare bytes a row turn the banks
    cover = [max(a, next_power(b)) for a, b in zip(tile.layout.shape, tile.shape, strict=True)]
    item = tile.dtype.bytes
    row = cover[-1] * item if len(cover) == 1 else -(-cover[-1] * item // 16) * 16 + 32
    size, steps = row_major((*cover[:-1], row // item), item)
    slot = low.shared.allocate(size)
    low.do(gpu.WriteShared(slot=slot, x=tile, steps=tuple(steps), axis=len(steps) - 1))
    return _Written(tile, slot, tuple(steps))


def _read(low: Builder, left: _Written, layout: Layout) -> list[Tile]:
    """What every block left, in a layout."""
    like = left.tile
    partials = tuple(
        low.new(like.dtype, like.shape, layout, "part") for _ in range(low.cluster.blocks)
    )
    axis = layout.rank - 1
    low.do(gpu.ReadBlocks(slot=left.slot, steps=left.steps, axis=axis, results=partials))
    return list(partials)


def _weights(low: Recording, tops: list[Tile]) -> list[Tile]:
    """exp(top of a block - the greatest), for each block; a greatest of -inf counts as 0."""
    greatest = tops[0]
    for top in tops[1:]:
        greatest = map_of(low, "max", greatest, top)
    around = finite(low, greatest)
    return [map_of(low, "exp", map_of(low, "sub", top, around)) for top in tops]


def _weighted(
    low: Recording, partials: list[Tile], weights: list[Tile], axes: tuple[int, ...]
) -> list[Tile]:
    """Every block's tile times the weights of its rows. axes: of the tile that the weights have."""
    return [
        map_of(low, "mul", partial, spread(low, weight, axes, partial.shape, partial.layout))
        for partial, weight in zip(partials, weights, strict=True)
    ]
