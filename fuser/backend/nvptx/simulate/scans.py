"""Scans of registers, lanes and warps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import row_major
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.backend.nvptx.simulate.clocks import Array
from fuser.backend.nvptx.simulate.folds import combine, identity
from fuser.backend.nvptx.simulate.warp import Rule, Warp


def scan_registers(warp: Warp, op: ops.ScanRegisters) -> None:
    x, axis, (running, total) = op.x, op.axis, op.results
    shape = [x.shape[a] if a == axis else n for a, n in enumerate(x.layout.shape)]
    inside = warp.inside(x.layout, shape)
    found = np.where(inside, warp.tiles[x], identity(op.fn, x.dtype))
    rows: dict[Coordinates, list[int]] = {at: [] for at in total.layout.regs}
    for number, at in enumerate(x.layout.regs):
        rows[(*at[:axis], *at[axis + 1 :])].append(number)
    for members in rows.values():
        members.sort(key=lambda number: x.layout.regs[number][axis], reverse=op.reverse)
        for before, number in pairwise(members):
            found[:, number] = combine(op.fn, x.dtype, found[:, before], found[:, number])
    warp.tiles[running] = found
    warp.tiles[total] = found[:, [members[-1] for members in rows.values()]]


def scan_lanes(warp: Warp, op: ops.ScanLanes) -> None:
    x, (total, before), lanes = op.x, op.results, np.arange(32)
    mask = sum(op.steps)
    place = ((lanes & mask) ^ (mask if op.reverse else 0))[:, None]

    def moved(values: Array, distance: int) -> Array:
        source = lanes + distance if op.reverse else lanes - distance
        return values[np.where((source < 0) | (source > 31), lanes, source)]

    found = warp.tiles[x]
    for step in op.steps:
        further = combine(op.fn, x.dtype, moved(found, step), found)
        found = np.where(place >= step, further, found)
    warp.tiles[total] = found
    warp.tiles[before] = np.where(place == 0, identity(op.fn, x.dtype), moved(found, 1))


def fold_before(warp: Warp, op: ops.FoldBefore) -> None:
    made = op.tile
    layout, dtype = made.layout, made.dtype
    size, steps = row_major(layout.shape, dtype.bytes)
    bits = [1 << op.bits.index(b) if b in op.bits else 0 for b in range(len(layout.warps))]
    mine = warp.thread_offset([0] * 5 + bits)[:, None]
    at, count = warp.slot_addresses(op.slot, layout, steps), 1 << len(op.bits)
    total = np.full(at.shape, identity(op.fn, dtype))
    for part in range(count - 1, 0, -1) if op.reverse else range(count - 1):
        item = warp.read(op, at + part * size, dtype.numpy)
        earlier = mine < part if op.reverse else mine > part
        total = np.where(earlier, combine(op.fn, dtype, total, item), total)
    warp.tiles[made] = total


RULES: dict[type[Op], Rule] = {
    ops.ScanRegisters: scan_registers,
    ops.ScanLanes: scan_lanes,
    ops.FoldBefore: fold_before,
}
