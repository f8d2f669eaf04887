"""Accumulator tiles that pass through a warp's own part of a slot, to and from lines of memory."""

from __future__ import annotations

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Slot
from fuser.backend.nvptx.ir.warp_transpose import BUFFER, warp_transpose_in
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.simulate.clocks import Array
from fuser.backend.nvptx.simulate.memory import touched
from fuser.backend.nvptx.simulate.warp import Rule, Warp


def store_lines(warp: Warp, op: ops.StoreLines) -> None:
    through(warp, op, op.slot, op.value.layout)
    layout = op.value.layout
    transpose = warp_transpose_in(layout, op.width, op.vector)
    assert transpose is not None
    lines = transpose.memory_layout  # that of indices and masks
    address, where = (within(warp, x, lines, layout) for x in touched(warp, op.at, lines))
    warp.array(op.at.access.view.buffer)[address[where]] = warp.tiles[op.value][where]


def load_lines(warp: Warp, op: ops.LoadLines) -> None:
    address, where = touched(warp, op.at, op.tile.layout)
    found = warp.array(op.at.access.view.buffer)[address]
    warp.tiles[op.tile] = np.where(where, found, np.asarray(op.pad or 0).astype(found.dtype))


def turn_lines(warp: Warp, op: ops.TurnLines) -> None:
    through(warp, op, op.slot, op.tile.layout)
    warp.tiles[op.tile] = within(warp, warp.tiles[op.x], op.x.layout, op.tile.layout)


def within(warp: Warp, values: Array, source: Layout, wanted: Layout) -> Array:
    """[32, registers] of a layout, of what the lanes of a warp have in another one."""
    mine, theirs = warp.coordinates(source), warp.coordinates(wanted)
    size = np.maximum(mine.reshape(-1, 2).max(0), theirs.reshape(-1, 2).max(0)) + 1
    whole = np.zeros(tuple(size), values.dtype)
    whole[mine[..., 0], mine[..., 1]] = values
    return np.asarray(whole[theirs[..., 0], theirs[..., 1]])


def through(warp: Warp, op: Op, slot: Slot, layout: Layout) -> None:
    """The warp writes its part of the slot and reads it back."""
    base = warp.thread_offset([0] * 5 + [BUFFER << bit for bit in range(len(layout.warps))])
    place = np.asarray(warp.place(slot, int(base[0]) + np.arange(BUFFER)))
    warp.machine.shared[warp.block].claim(place, warp.clock, warp.did(op))


RULES: dict[type[Op], Rule] = {
    ops.StoreLines: store_lines,
    ops.LoadLines: load_lines,
    ops.TurnLines: turn_lines,
}
