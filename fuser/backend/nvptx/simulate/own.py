"""Tiles in shared memory of which every thread reads what it copied itself; parts of tiles."""

from __future__ import annotations

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import row_major, vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.simulate.clocks import Array
from fuser.backend.nvptx.simulate.copies import issue
from fuser.backend.nvptx.simulate.memory import touched
from fuser.backend.nvptx.simulate.warp import Rule, Warp


def places(warp: Warp, op: ops.CopyOwn | ops.ReadOwn, layout: Layout) -> Array:
    """[32, registers]: byte addresses of the elements of a strip."""
    access = op.at.access
    axis, width, item = access.axis, access.width, access.view.dtype.bytes
    found = vectors(op.whole, axis, width)
    number = {offset: at for at, (offset, _) in enumerate(found)}
    thread = (warp.number * 32 + np.arange(32)) * width * item
    regs = []
    for at in layout.regs:
        inside = at[axis] % width
        first = (*at[:axis], at[axis] - inside, *at[axis + 1 :])
        regs.append((number[first] * op.threads * width + inside) * item)
    return np.asarray(warp.place(op.slot, thread[:, None] + np.array(regs, np.int64)))


def copy_own(warp: Warp, op: ops.CopyOwn) -> None:
    address, where = touched(warp, op.at, op.strip)
    source = warp.array(op.at.access.view.buffer)
    values = np.where(where, source[address], np.zeros(1, source.dtype))
    issue(warp, op, places(warp, op, op.strip).reshape(-1), values.reshape(-1))


def read_own(warp: Warp, op: ops.ReadOwn) -> None:
    made = op.tile
    _, where = touched(warp, op.at, made.layout)
    found = warp.read(op, places(warp, op, made.layout), made.dtype.numpy)
    warp.tiles[made] = np.where(where, found, np.asarray(op.pad or 0).astype(found.dtype))


def gather_shared(warp: Warp, op: ops.GatherShared) -> None:
    made = op.tile
    place = np.array(warp.coordinates(made.layout))
    place[..., op.axis] = warp.tiles[op.at]
    where = warp.inside(made.layout, made.shape)
    at = np.where(where, place @ np.array(op.steps, np.int64), 0)
    warp.tiles[made] = warp.read(op, np.asarray(warp.place(op.slot, at)), made.dtype.numpy, where)


def _window(warp: Warp, tile: Tile, op: ops.WriteWindow | ops.ReadWindow) -> tuple[Array, Array]:
    """[32, registers]: byte addresses of a tile's elements, and whether they are in a window."""
    steps = np.array(row_major(tile.shape, 1)[1], np.int64)
    place = warp.coordinates(tile.layout) @ steps - op.first
    where = warp.inside(tile.layout, tile.shape) & (place >= 0) & (place < op.count)
    return np.asarray(warp.place(op.slot, np.where(where, place, 0) * tile.dtype.bytes)), where


def write_window(warp: Warp, op: ops.WriteWindow) -> None:
    at, where = _window(warp, op.x, op)
    warp.write(op, at, warp.tiles[op.x], where)


def read_window(warp: Warp, op: ops.ReadWindow) -> None:
    made = op.tile
    at, where = _window(warp, made, op)
    found = warp.read(op, at, made.dtype.numpy, where)
    before = found if op.before is None else warp.tiles[op.before]
    warp.tiles[made] = np.where(where, found, before)


def write_slice(warp: Warp, op: ops.WriteSlice) -> None:
    x, axis = op.x, op.axis
    shape = (*x.shape[:axis], op.count, *x.shape[axis + 1 :])
    place = np.array(warp.coordinates(x.layout))
    place[..., axis] -= op.start
    where = warp.inside(x.layout, x.shape)
    where = where & (place[..., axis] >= 0) & (place[..., axis] < op.count)
    at = np.where(where, place @ np.array(row_major(shape, x.dtype.bytes)[1], np.int64), 0)
    warp.write(op, np.asarray(warp.place(op.slot, at)), warp.tiles[x], where)


RULES: dict[type[Op], Rule] = {
    ops.CopyOwn: copy_own,
    ops.ReadOwn: read_own,
    ops.GatherShared: gather_shared,
    ops.WriteWindow: write_window,
    ops.ReadWindow: read_window,
    ops.WriteSlice: write_slice,
}
