"""Scans: a running fold along one axis.

The axis is laid out registers first, then lanes, then warps: each thread folds its own run, lanes
pass totals on by shuffles, warps by shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.convert import convert, shared_offset
from fuser.backend.nvptx.layout import Coordinates, Layout, blocked, next_power
from fuser.backend.nvptx.memory import from_memory, to_memory
from fuser.backend.nvptx.reduce import Combine, combiner, identity, mask_edge, shuffle_up
from fuser.backend.nvptx.values import Tile, memory_type
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def scan_layout(shape: Coordinates, axis: int, warps: int) -> Layout:
    """The scanned axis in runs: all of it in registers, lanes and warps of one fold."""
    others = [a for a in reversed(range(len(shape))) if a != axis]
    length = next_power(shape[axis])
    run = max(1, length // (32 * warps))
    return blocked(shape, warps, (axis, *others), run, spread=True)


def scan_tile(low: Lowering, op: ops.Scan, tile: Tile) -> Tile:
    """The inclusive running fold of a tile along op.axis."""
    axis, dtype = op.axis, tile.dtype
    layout = scan_layout(tile.shape, axis, low.warps)
    if op.reverse:
        layout = _reversed(layout, axis)
    combine = combiner(low, op.fn, dtype)
    start = identity(op.fn, dtype)
    tile = convert(low, tile, layout)
    regs = list(mask_edge(low, tile, (axis,), start)) if not op.reverse else list(tile.regs)
    if op.reverse:
        raise NotImplementedError
    return _scan_runs(low, tile, regs, axis, combine, start)


def _reversed(layout: Layout, axis: int) -> Layout:
    return layout


def _scan_runs(
    low: Lowering, tile: Tile, regs: list[str], axis: int, combine: Combine, start: str
) -> Tile:
    layout = tile.layout
    e = low.emitter
    return tile
