"""Tensor memory, and matmuls whose sums lie in it.

A block's tensor memory has a shadow of its own, a cell for each lane of a column. Matmuls are an
agent that runs by itself: what it writes is there for a warp after a wait for a commit. `order` of
a rule is what happens before what, without the numbers; the protocol verifier has that alone.
"""

from __future__ import annotations

import functools

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Slot
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.layouts.mma_units import UNITS
from fuser.backend.nvptx.layouts.tensor_grid import COLUMNS, LANES, MIN_COLUMNS
from fuser.backend.nvptx.simulate.clocks import Array, Shadow, SimulationError
from fuser.backend.nvptx.simulate.matrix import from_shared
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp
from fuser.dtypes import BY_NAME


class TensorMemory(Shadow):
    """The tensor memory of a block. words: [columns, lanes], floats that are no numbers at first.
    slots: columns that are allocated, by the slots that stand for them."""

    places = "cell {} of tensor memory"

    def __init__(self) -> None:
        super().__init__(COLUMNS * LANES)
        self.words = np.full((COLUMNS, LANES), 0xFFFFFFFF, np.uint32)
        self.slots: dict[Slot, int] = {}
        self.committed: dict[Slot, int] = {}


def _memory(warp: Warp) -> TensorMemory:
    found = warp.machine.tensor_memory
    if warp.block not in found:
        found[warp.block] = TensorMemory()
    memory: TensorMemory = found[warp.block]
    return memory


def _barrier_at(warp: Warp, slot: Slot, number: int) -> int:
    """The address of the barrier at which a group of matmuls ends."""
    return int(warp.place(slot, 8 * (1 + number % ops.TENSOR_BARRIERS)))


def alloc(warp: Warp, op: ops.TensorAlloc) -> None:
    if warp.number:
        return
    memory = _memory(warp)
    if op.columns < MIN_COLUMNS or op.columns & (op.columns - 1) or op.columns > COLUMNS:
        raise SimulationError(f"{op.columns} columns of tensor memory cannot be allocated")
    if memory.slots:
        raise SimulationError("tensor memory is allocated twice")
    memory.slots[op.slot] = op.columns
    start = int(warp.place(op.slot))
    warp.machine.shared[warp.block].claim(np.arange(start, start + 4), warp.clock, warp.did(op))


def address(warp: Warp, op: ops.TensorAddress) -> None:
    start = int(warp.place(op.slot))
    memory = warp.machine.shared[warp.block]
    memory.read(np.arange(start, start + 4), warp.clock, warp.did(op))
    warp.tensor_groups[op.slot] = (0, 0)


def _cells(warp: Warp, op: Op, slot: Slot, first: int, columns: int, lanes: Array) -> Array:
    """The cells of some columns; raises SimulationError where they are nobody's."""
    memory = _memory(warp)
    if slot not in warp.tensor_groups:
        raise SimulationError("the address of tensor memory was not read")
    if not 0 <= first < first + columns <= memory.slots.get(slot, 0):
        raise SimulationError(f"{warp.did(op)} is beyond the columns that are allocated")
    at = np.arange(first, first + columns)[:, None] * LANES + lanes
    return np.asarray(at.reshape(-1))


def free(warp: Warp, op: ops.TensorFree) -> None:
    if warp.number:
        return
    memory = _memory(warp)
    cells = _cells(warp, op, op.slot, 0, op.columns, np.arange(LANES))
    if memory.slots[op.slot] != op.columns:
        raise SimulationError("other columns of tensor memory are given back than were allocated")
    memory.claim(cells, warp.clock, warp.did(op))
    del memory.slots[op.slot]


# matmuls ------------------------------------------------------------------------------------------


def order_mma(warp: Warp, op: ops.TensorMma) -> None:
    """The first warp's thread issues: its unit reads and writes by itself."""
    if warp.number:
        return
    memory, unit, grid = _memory(warp), warp.unit, op.grid
    unit.learn(warp.clock.known)
    lanes, bands = np.arange(LANES), grid.m // LANES
    cells = _cells(warp, op, op.slot, op.sums, bands * grid.covered[1], lanes)
    if warp.number_of(op.keeps):
        memory.read(cells, unit, warp.did(op))
    memory.claim(cells, unit, warp.did(op))
    if op.a is None:
        words = op.k * op.b.dtype.bytes // 4
        memory.read(_cells(warp, op, op.slot, op.left, bands * words, lanes), unit, warp.did(op))


def mma(warp: Warp, op: ops.TensorMma) -> None:
    order_mma(warp, op)
    if warp.number:
        return
    words, (m, n) = _memory(warp).words, op.grid.covered
    depth, dtype = np.arange(op.k), BY_NAME[UNITS[op.unit].name]
    b = from_shared(warp, op, op.b, depth, np.arange(n), op.unit, issued=True)
    if op.a is not None:
        a = from_shared(warp, op, op.a, np.arange(m), depth, op.unit, issued=True)
    else:
        wide = op.k * dtype.bytes // 4
        bands = [
            np.ascontiguousarray(words[op.left + band * wide :][:wide].T).view(dtype.numpy)
            for band in range(m // LANES)
        ]
        a = np.concatenate(bands)
    total = a.astype(np.float64) @ b.astype(np.float64)
    keeps = warp.number_of(op.keeps)
    for band in range(m // LANES):
        sums = words[op.sums + band * n :][:n]
        made = total[band * LANES :][:LANES].T.astype(np.float32)
        made = made + sums.view(np.float32) if keeps else made
        sums[...] = np.ascontiguousarray(made).view(np.uint32)


def commit(warp: Warp, op: ops.TensorCommit) -> None:
    """What was issued ends by and by, and then the barrier's phase does. All have waited for the
    group that had the barrier before: who is late would take this phase for that one."""
    committed, waited = warp.tensor_groups[op.slot]
    if committed - waited >= ops.TENSOR_BARRIERS:
        raise SimulationError("more groups of matmuls are in flight than there are barriers")
    warp.tensor_groups[op.slot] = committed + 1, waited
    if warp.number:
        return
    at = _barrier_at(warp, op.slot, committed)
    barrier = warp.machine.mbarrier(warp.block, at)
    warp.machine.shared[warp.block].claim(np.arange(at, at + 8), warp.clock, warp.did(op))
    warp.unit.learn(warp.clock.release())
    told = warp.unit.release()
    warp.machine.flights.append(lambda: barrier.arrive(1, told))


def wait(warp: Warp, op: ops.TensorWait) -> Steps:
    committed, waited = warp.tensor_groups[op.slot]
    while committed - waited > op.pending:
        at = _barrier_at(warp, op.slot, waited)
        barrier = warp.machine.mbarrier(warp.block, at)
        parity = waited // ops.TENSOR_BARRIERS % 2
        yield functools.partial(barrier.has_ended, parity)
        warp.clock.learn(barrier.given)
        memory = warp.machine.shared[warp.block]
        memory.read(np.arange(at, at + 8), warp.clock, warp.did(op))
        waited += 1
        warp.tensor_groups[op.slot] = committed, waited


# tiles --------------------------------------------------------------------------------------------


def _places(warp: Warp, layout: Layout, column: int, pack: int) -> tuple[Array, Array]:
    """[32, registers]: columns and lanes of the elements of a tile. Raises SimulationError where a
    warp does not reach them."""
    at = warp.coordinates(layout)
    lanes = at[:, :, 0] % LANES
    columns = column + (at[:, :, 0] // LANES * layout.shape[1] + at[:, :, 1]) // pack
    if (lanes // 32 != warp.number % 4).any():
        raise SimulationError("a warp does not reach the lanes of its elements")
    return columns, lanes


def _touched(warp: Warp, op: Op, slot: Slot, columns: Array, lanes: Array) -> Array:
    _cells(warp, op, slot, int(columns.min()), int(np.ptp(columns)) + 1, np.arange(1))
    return np.asarray((columns * LANES + lanes).reshape(-1))


def order_load(warp: Warp, op: ops.TensorLoad) -> None:
    places = _places(warp, op.tile.layout, op.column, 1)
    _memory(warp).read(_touched(warp, op, op.slot, *places), warp.clock, warp.did(op))


def load(warp: Warp, op: ops.TensorLoad) -> None:
    order_load(warp, op)
    places = _places(warp, op.tile.layout, op.column, 1)
    warp.tiles[op.tile] = _memory(warp).words[places].view(op.tile.dtype.numpy)


def _writes(warp: Warp, layout: Layout) -> bool:
    """Whether a warp is the one of those with the same elements that writes them."""
    repeats = [0] * 5 + [0 if any(basis) else 1 for basis in layout.warps]
    return not warp.thread_offset(repeats).any()


def order_store(warp: Warp, op: ops.TensorStore) -> None:
    if _writes(warp, op.x.layout):
        places = _places(warp, op.x.layout, op.column, op.pack)
        _memory(warp).claim(_touched(warp, op, op.slot, *places), warp.clock, warp.did(op))


def store(warp: Warp, op: ops.TensorStore) -> None:
    order_store(warp, op)
    if _writes(warp, op.x.layout):
        places = _places(warp, op.x.layout, op.column, op.pack)
        _memory(warp).words[places] = np.ascontiguousarray(warp.tiles[op.x]).view(np.uint32)


RULES: dict[type[Op], Rule] = {
    ops.TensorAlloc: alloc,
    ops.TensorAddress: address,
    ops.TensorFree: free,
    ops.TensorMma: mma,
    ops.TensorCommit: commit,
    ops.TensorWait: wait,
    ops.TensorLoad: load,
    ops.TensorStore: store,
}
