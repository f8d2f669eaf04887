"""Scans: a running fold along one axis.

The axis is cut into runs, one a thread: registers first, then lanes, then warps. Each thread folds
its own run, lanes pass totals on by shuffles, warps by shared memory, and what came before a run is
folded into it at the end. A reverse scan is the same with every order turned round.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import row_major
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.layouts.convert import convert
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout, blocked, next_power
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.masks import spread
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.reduce import fold_partials
from fuser.tilegen import ops


def scan_layout(shape: Coordinates, axis: int, warps: int) -> Layout:
    """The scanned axis in runs: one fold of registers, lanes and warps covers it."""
    others = [a for a in reversed(range(len(shape))) if a != axis]
    run = max(1, next_power(shape[axis]) // (32 * warps))
    return blocked(shape, warps, (axis, *others), run, spread=True)


def scan_tile(low: Builder, op: ops.Scan, tile: Tile) -> Tile:
    """The inclusive running fold of a tile along op.axis."""
    axis, fn, reverse = op.axis, op.fn, op.reverse
    layout = scan_layout(tile.shape, axis, low.warps)
    tile = convert(low, tile, layout)
    outer = layout.reduced(axis)
    shape = (*tile.shape[:axis], *tile.shape[axis + 1 :])
    running = low.new(tile.dtype, tile.shape, layout, "scan")

    def short(hint: str) -> Tile:
        return low.new(tile.dtype, shape, outer, hint)

    total, before = short("total"), None
    low.do(gpu.ScanRegisters(fn=fn, x=tile, axis=axis, reverse=reverse, results=(running, total)))
    lanes = tuple(1 << bit for bit, basis in enumerate(layout.lanes) if basis[axis])
    if lanes:
        mine, total, before = total, short("total"), short("before")
        low.do(gpu.ScanLanes(
            fn=fn, x=mine, steps=lanes, reverse=reverse, results=(total, before)
        ))  # fmt: skip
    bits = tuple(bit for bit, basis in enumerate(layout.warps) if basis[axis])
    if bits:
        slot = low.shared.allocate(row_major(outer.shape, tile.dtype.bytes)[0] << len(bits))
        last = _last_of(low, lanes, reverse) if lanes else None
        low.do(gpu.WriteParts(slot=slot, values=(total,), bits=bits, where=last))
        earlier = low.add(gpu.FoldBefore(
            slot=slot, fn=fn, bits=bits, reverse=reverse, results=(short("before"),)
        ))  # fmt: skip
        low.shared.free(slot)
        before = earlier if before is None else fold_partials(low, fn, [earlier, before])
    if before is None:
        return running
    axes = tuple(a for a in range(layout.rank) if a != axis)
    return fold_partials(low, fn, [spread(low, before, axes, tile.shape, layout), running])


def _last_of(low: Recording, lanes: tuple[int, ...], reverse: bool) -> Operand:
    """Whether this lane is the last of those whose numbers differ in some bits, in the order of the
    scan."""
    e, mask = low.scalars, sum(lanes)
    place = e.head.compute("and", e.tid, mask)
    if reverse:
        place = e.head.compute("xor", place, mask)
    return e.compare("eq", place, mask)
