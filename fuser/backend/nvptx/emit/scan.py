"""Scans: of registers, of lanes, of the totals that warps leave in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from fuser.backend.nvptx.emit.code import Code, shared_offset
from fuser.backend.nvptx.emit.folds import combiner, identity, shuffled
from fuser.backend.nvptx.emit.memory import from_memory
from fuser.backend.nvptx.emit.registers import filled
from fuser.backend.nvptx.emit.values import memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of, row_major
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates


def scan_registers(code: Code, op: ops.ScanRegisters) -> None:
    """One step of the fold a register."""
    x, axis, (running, total) = op.x, op.axis, op.results
    layout = x.layout
    regs = list(filled(code, x, (axis,), identity(op.fn, x.dtype)))
    combine = combiner(code, op.fn, x.dtype)
    rows: dict[Coordinates, list[int]] = {offset: [] for offset in total.layout.regs}
    for number, offset in enumerate(layout.regs):
        rows[(*offset[:axis], *offset[axis + 1 :])].append(number)
    total.assign(())
    for members in rows.values():
        members.sort(key=lambda number: layout.regs[number][axis], reverse=op.reverse)
        for before, number in pairwise(members):
            regs[number] = combine(regs[before], regs[number])
        total.regs.append(regs[members[-1]])
    running.assign(regs)


def scan_lanes(code: Code, op: ops.ScanLanes) -> None:
    """A shuffle, a step of the fold and a selection for each bit of the lane's number, and what the
    previous lane has then. They are the lowest bits of the number."""
    e, x, (totals, before) = code.emitter, op.x, op.results
    combine, start = combiner(code, op.fn, x.dtype), identity(op.fn, x.dtype)
    kind, mask = "down" if op.reverse else "up", sum(op.steps)
    totals.assign(())
    before.assign(())
    for running in x.regs:
        place = e.hoisted(f"and i32 {e.tid}, {mask}")
        if op.reverse:
            place = e.hoisted(f"xor i32 {place}, {mask}")
        for distance in op.steps:
            other = combine(shuffled(code, running, x.dtype, kind, distance), running)
            far = e.value(f"icmp uge i32 {place}, {distance}")
            running = e.value(f"select i1 {far}, {x.type} {other}, {x.type} {running}")
        front = shuffled(code, running, x.dtype, kind, 1)
        first = e.value(f"icmp eq i32 {place}, 0")
        totals.regs.append(running)
        before.regs.append(e.value(f"select i1 {first}, {x.type} {start}, {x.type} {front}"))


def fold_before(code: Code, op: ops.FoldBefore) -> None:
    """One load a part, folded where it is of a warp before."""
    e, made = code.emitter, op.tile
    layout, dtype = made.layout, made.dtype
    combine, type = combiner(code, op.fn, dtype), memory_type(dtype)
    size, steps = row_major(layout.shape, dtype.bytes)
    mine = e.thread_offset(
        [0] * 5 + [1 << op.bits.index(b) if b in op.bits else 0 for b in range(len(layout.warps))]
    )
    base = code.place(op.slot, e.thread_offset([offset_of(basis, steps) for basis in layout.bits]))
    count = 1 << len(op.bits)
    order = range(count - 1, 0, -1) if op.reverse else range(count - 1)
    made.assign(())
    for at in layout.regs:
        total = identity(op.fn, dtype)
        for number in order:
            pointer = shared_offset(code, base, offset_of(at, steps) + number * size)
            name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
            item = from_memory(code, name, dtype)
            earlier = e.value(f"icmp {'ult' if op.reverse else 'ugt'} i32 {mine}, {number}")
            folded = combine(total, item)
            total = e.value(f"select i1 {earlier}, {made.type} {folded}, {made.type} {total}")
        made.regs.append(total)


RULES: dict[type[Op], Callable[..., None]] = {
    ops.ScanRegisters: scan_registers,
    ops.ScanLanes: scan_lanes,
    ops.FoldBefore: fold_before,
}
