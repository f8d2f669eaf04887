"""Scans: a running fold along one axis.

The axis is cut into runs, one a thread: registers first, then lanes, then warps. Each thread folds
its own run, lanes pass totals on by shuffles, warps by shared memory, and what came before a run is
folded into it at the end. A reverse scan is the same with every order turned round.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from fuser.backend.nvptx.convert import convert
from fuser.backend.nvptx.emit.code import shared_offset
from fuser.backend.nvptx.emit.folds import Combine, combiner, identity, shuffled
from fuser.backend.nvptx.emit.memory import from_memory, to_memory
from fuser.backend.nvptx.emit.registers import filled
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir.layouts import offset_of, row_major
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layout import Coordinates, Layout, blocked, next_power
from fuser.backend.nvptx.values import memory_type
from fuser.dtypes import DType
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def scan_layout(shape: Coordinates, axis: int, warps: int) -> Layout:
    """The scanned axis in runs: one fold of registers, lanes and warps covers it."""
    others = [a for a in reversed(range(len(shape))) if a != axis]
    run = max(1, next_power(shape[axis]) // (32 * warps))
    return blocked(shape, warps, (axis, *others), run, spread=True)


def scan_tile(low: Lowering, op: ops.Scan, tile: Tile) -> Tile:
    """The inclusive running fold of a tile along op.axis."""
    axis, dtype = op.axis, tile.dtype
    layout = scan_layout(tile.shape, axis, low.warps)
    tile = convert(low, tile, layout)
    start = identity(op.fn, dtype)
    regs = filled(low.code, tile, (axis,), start)
    combine = combiner(low.code, op.fn, dtype)
    rows: dict[Coordinates, list[int]] = {}
    for number, offset in enumerate(layout.regs):
        rows.setdefault((*offset[:axis], *offset[axis + 1 :]), []).append(number)
    results = list(regs)
    totals = []
    for members in rows.values():
        members.sort(key=lambda number: layout.regs[number][axis], reverse=op.reverse)
        for before, number in pairwise(members):
            results[number] = combine(results[before], results[number])
        totals.append(results[members[-1]])
    prefixes: list[str | None] = [None] * len(totals)
    lanes = [1 << bit for bit, basis in enumerate(layout.lanes) if basis[axis]]
    if lanes:
        pairs = [_lanes(low, total, lanes, combine, start, tile, op.reverse) for total in totals]
        totals, prefixes = [t for t, _ in pairs], [p for _, p in pairs]
    warps = [bit for bit, basis in enumerate(layout.warps) if basis[axis]]
    if warps:
        earlier = _warps(low, totals, layout, axis, warps, combine, start, tile, op.reverse)
        prefixes = [
            b if p is None else combine(b, p) for b, p in zip(earlier, prefixes, strict=True)
        ]
    for prefix, members in zip(prefixes, rows.values(), strict=True):
        if prefix is not None:
            for number in members:
                results[number] = combine(prefix, results[number])
    return Tile(dtype, tile.shape, layout, results)


def _place(low: Lowering, bits: list[int], reverse: bool) -> Operand:
    """The number of this thread among those that differ in `bits` (values of tid bits)."""
    mask = sum(bits)
    part = low.emitter.hoisted(f"and i32 {low.emitter.tid}, {mask}")
    return low.emitter.hoisted(f"xor i32 {part}, {mask}") if reverse else part


def _lanes(
    low: Lowering,
    total: str,
    lanes: list[int],
    combine: Combine,
    start: str,
    tile: Tile,
    reverse: bool,
) -> tuple[str, str]:
    """(inclusive total, what lies before this lane) over lanes that share the scanned axis.

    They are the lowest lane bits, as scan_layout takes the axis first.
    """
    e, dtype = low.emitter, tile.dtype
    place = _place(low, lanes, reverse)
    kind = "down" if reverse else "up"

    def move(low: Lowering, name: str, dtype: DType, distance: int) -> str:
        return shuffled(low.code, name, dtype, kind, distance)

    running = total
    for distance in lanes:
        other = combine(move(low, running, dtype, distance), running)
        far = e.value(f"icmp uge i32 {place}, {distance}")
        running = e.value(f"select i1 {far}, {tile.type} {other}, {tile.type} {running}")
    before = move(low, running, dtype, 1)
    first = e.value(f"icmp eq i32 {place}, 0")
    return running, e.value(f"select i1 {first}, {tile.type} {start}, {tile.type} {before}")


def _warps(
    low: Lowering,
    totals: list[str],
    layout: Layout,
    axis: int,
    bits: list[int],
    combine: Combine,
    start: str,
    tile: Tile,
    reverse: bool,
) -> list[str]:
    """What the earlier warps along the axis hold, for every row."""
    e, dtype, type = low.emitter, tile.dtype, memory_type(tile.dtype)
    outer = layout.reduced(axis)
    size, steps = row_major(outer.shape, dtype.bytes)
    rows = [offset_of(basis, steps) for basis in outer.bits]
    part = [0] * len(rows)
    for position, bit in enumerate(bits):
        part[5 + bit] = size << position
    slot = low.shared.allocate(size << len(bits))
    offsets = [offset_of(at, steps) for at in outer.regs]
    lanes = [1 << bit for bit, basis in enumerate(layout.lanes) if basis[axis]]
    low.shared.before_write()
    last = None
    if lanes:
        last = e.value(f"icmp eq i32 {_place(low, lanes, reverse)}, {sum(lanes)}")
    base = low.shared.pointer(slot, e.plus(e.thread_part(rows), e.thread_part(part)))
    stores = [
        f"store {type} {to_memory(low, total, dtype)}, ptr addrspace(3) "
        f"{shared_offset(low, base, offset)}, align {dtype.bytes}"
        for offset, total in zip(offsets, totals, strict=True)
    ]
    if last is None:
        for text in stores:
            e.do(text)
    else:
        with e.where(last):
            for text in stores:
                e.do(text)
    low.shared.before_read()
    mine = e.thread_part(
        [0] * 5 + [(1 << bits.index(b)) if b in bits else 0 for b in range(len(rows) - 5)]
    )
    base = low.shared.pointer(slot, e.thread_part(rows))
    count = 1 << len(bits)
    order = range(count - 1, 0, -1) if reverse else range(count - 1)
    found = []
    for offset in offsets:
        total = start
        for number in order:
            pointer = shared_offset(low, base, offset + number * size)
            raw = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
            item = from_memory(low, raw, dtype)
            earlier = e.value(f"icmp {'ult' if reverse else 'ugt'} i32 {mine}, {number}")
            total = e.value(
                f"select i1 {earlier}, {tile.type} {combine(total, item)}, {tile.type} {total}"
            )
        found.append(total)
    low.shared.free(slot)
    return found
