"""Global memory: loads, stores and atomics."""

from __future__ import annotations

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Place
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.simulate.clocks import Array, SimulationError
from fuser.backend.nvptx.simulate.data import evaluate
from fuser.backend.nvptx.simulate.warp import Rule, Warp
from fuser.graph.sizes import size_hint


def touched(
    warp: Warp,
    at: Place,
    layout: Layout,
    threads: Operand | None = None,
    kept: Array | None = None,
    settled: bool = False,
) -> tuple[Array, Array]:
    """[32, registers]: element numbers in the buffer, and whether they may be touched. threads: in
    which that may be, instead of all. kept: where a mask says so that has another layout. settled:
    they are said to need no wait for the previous kernel."""
    if not settled:
        warp.touch(at.access.view.buffer)
    where = warp.inside(layout, at.access.shape) & warp.active[:, None]
    if threads is not None:
        where = where & warp.scalar(threads).astype(bool)[:, None]
    for expression, size in at.access.bounds:
        place = warp.index(expression, layout, at.scope)
        where = where & (place >= 0) & (place < size_hint(size))
    if at.mask is not None:
        if at.mask.layout != layout:
            raise SimulationError("a mask in another layout than the access")
        where = where & warp.tiles[at.mask].astype(bool)
    if kept is not None:
        where = where & kept
    address = warp.index(at.access.linear, layout, at.scope)
    size = len(warp.array(at.access.view.buffer))
    outside = where & ((address < 0) | (address >= size))
    if outside.any():
        raise SimulationError(
            f"element {int(address[outside][0])} of {at.access.view.buffer.name}, which has {size}"
        )
    return np.where(where, address, 0), where


def load(warp: Warp, op: ops.Load) -> None:
    layout = op.tile.layout
    address, where = touched(warp, op.at, layout, op.where)
    if op.once:
        where = where & warp.alone(layout)[:, None]
    found = warp.array(op.at.access.view.buffer)[address]
    warp.tiles[op.tile] = np.where(where, found, np.asarray(op.pad or 0).astype(found.dtype))


def store(warp: Warp, op: ops.Store) -> None:
    address, where = touched(warp, op.at, op.value.layout)
    if op.once:
        where = where & warp.alone(op.value.layout)[:, None]
    warp.array(op.at.access.view.buffer)[address[where]] = warp.tiles[op.value][where]


def atomic_add(warp: Warp, op: ops.AtomicAdd) -> None:
    address, where = touched(warp, op.at, op.value.layout)
    where = where & warp.alone(op.value.layout)[:, None]
    if op.first_block and warp.block:
        return
    np.add.at(warp.array(op.at.access.view.buffer), address[where], warp.tiles[op.value][where])


_COMBINED = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


def atomic(warp: Warp, op: ops.Atomic) -> None:
    """Threads one after the other."""
    layout, values = op.value.layout, warp.tiles[op.value]
    address, where = touched(warp, op.at, layout)
    memory, found = warp.array(op.at.access.view.buffer), np.zeros_like(values)
    for place in zip(*np.nonzero(where & warp.alone(layout)[:, None]), strict=True):
        at, new = address[place], values[place]
        found[place] = old = memory[at]
        if op.compare is not None:
            new = new if old == warp.tiles[op.compare][place] else old
        elif op.fn == "load":
            new = old
        elif op.fn not in ("exchange", "store"):
            new = evaluate(_COMBINED.get(op.fn, op.fn), [old, new])
        if op.fn == "store":
            found[place] = new
        if op.fn != "load":
            memory[at] = new
    for made in op.results:
        warp.tiles[made] = found


def await_previous(warp: Warp, op: ops.AwaitPrevious) -> None:
    warp.previous_ended()


def nothing(warp: Warp, op: Op) -> None:
    """Order that the simulator keeps anyway."""


RULES: dict[type[Op], Rule] = {
    ops.Load: load,
    ops.Store: store,
    ops.AtomicAdd: atomic_add,
    ops.Atomic: atomic,
    ops.Fence: nothing,
    ops.AwaitPrevious: await_previous,
    ops.LaunchDependents: nothing,
}
