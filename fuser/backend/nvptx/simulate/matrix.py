"""Matmuls: on matrix units at once, or in flight until a wait."""

from __future__ import annotations

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import WarpGrid
from fuser.backend.nvptx.simulate.clocks import Array, SimulationError
from fuser.backend.nvptx.simulate.memory import nothing
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp, bytes_at
from fuser.dtypes import BY_NAME, DType


def product(
    warp: Warp, op: Op, grid: WarpGrid, k: int, a: SharedTile | Tile,
    b: SharedTile | Tile, made: Tile, unit: str = "", issued: bool = False,
) -> Array:  # fmt: skip
    """[32, registers]: what a @ b is at the elements of a layout, over the steps of k of this
    warp. issued: it is read until a wait."""
    at = warp.coordinates(made.layout)
    rows, row_of = np.unique(at[:, :, 0], return_inverse=True)
    columns, column_of = np.unique(at[:, :, 1], return_inverse=True)
    depth = np.arange(k)
    if grid.warps_k > 1:
        group = (warp.number - warp.base) // (grid.warps_m * grid.warps_n)
        depth = depth[depth // grid.k_block % grid.warps_k == group]
    there = rows[rows < 8] if grid.lower_half else rows
    left, right = (
        _fragments(warp, x, along, across, unit)
        if isinstance(x, Tile)
        else from_shared(warp, op, x, along, across, unit, issued)
        for x, along, across in ((a, there, depth), (b, depth, columns))
    )
    left = np.pad(left, ((0, rows.size - there.size), (0, 0)))
    wide = np.int64 if made.dtype.is_integer else np.float64
    total = left.astype(wide) @ right.astype(wide)
    found = total[row_of.reshape(at.shape[:2]), column_of.reshape(at.shape[:2])]
    return np.asarray(found.astype(made.dtype.numpy))


def _operand(unit: str, dtype: DType) -> DType:
    """What an operand's elements are numbers of."""
    return BY_NAME.get(unit, dtype)


def from_shared(
    warp: Warp, op: Op, tile: SharedTile, rows: Array, columns: Array, unit: str, issued: bool
) -> Array:
    """[rows, columns] of a shared tile, zeros past what is allocated."""
    dtype = _operand(unit, tile.dtype)
    inside = (rows < tile.shape[0])[:, None] & (columns < tile.shape[1])[None, :]
    at = warp.tile_addresses(tile, rows[:, None], columns[None, :])
    memory = warp.machine.shared[warp.block]
    touched = bytes_at(at[inside], dtype.bytes)
    memory.read(touched, warp.unit if issued else warp.clock, warp.did(op), by_unit=issued)
    safe = np.where(inside, at, 0)[..., None] + np.arange(dtype.bytes)
    found = np.ascontiguousarray(memory.data[safe]).view(dtype.numpy)[..., 0]
    return np.where(inside, found, np.zeros(1, found.dtype))


def _fragments(warp: Warp, tile: Tile, rows: Array, columns: Array, unit: str) -> Array:
    """[rows, columns] of what the lanes of a warp have."""
    values, at = warp.tiles[tile], warp.coordinates(tile.layout)
    dtype = _operand(unit, tile.dtype)
    if tile.dtype.bytes != dtype.bytes:  # words of some elements each
        each = tile.dtype.bytes // dtype.bytes
        values = np.ascontiguousarray(values).view(dtype.numpy)
        at = np.repeat(at, each, axis=1)
        at = at + np.stack([np.zeros(each, int), np.arange(each)], 1)[np.arange(at.shape[1]) % each]
    size = (
        int(max(at[..., 0].max(), rows.max())) + 1,
        int(max(at[..., 1].max(), columns.max())) + 1,
    )
    whole = np.zeros(size, values.dtype)
    known = np.zeros(size, bool)
    whole[at[..., 0], at[..., 1]] = values
    known[at[..., 0], at[..., 1]] = True
    if not known[np.ix_(rows, columns)].all():
        raise SimulationError("the fragments of a warp are not all that its rows need")
    return np.asarray(whole[np.ix_(rows, columns)])


def mma(warp: Warp, op: ops.Mma) -> None:
    made = product(warp, op, op.grid, op.k, op.a, op.b, op.tile, op.unit)
    warp.tiles[op.tile] = warp.tiles[op.acc] + made


def mma_tf32(warp: Warp, op: ops.MmaTf32) -> None:
    made = product(warp, op, op.grid, op.k, op.a, op.b, op.tile)
    warp.tiles[op.tile] = warp.tiles[op.acc] + made


def fma_dot(warp: Warp, op: ops.FmaDot) -> None:
    at, depth, memory = warp.coordinates(op.tile.layout), np.arange(op.k), warp.machine.shared

    def read(slot: Slot, steps: tuple[int, ...], rows: Array, columns: Array) -> Array:
        place = np.asarray(warp.place(slot, rows * steps[0] + columns * steps[1]))
        memory[warp.block].read(bytes_at(place, op.dtype.bytes), warp.clock, warp.did(op))
        found = memory[warp.block].data[place[..., None] + np.arange(op.dtype.bytes)]
        return np.ascontiguousarray(found).view(op.dtype.numpy)[..., 0]

    a = read(op.a, op.a_steps, at[:, :, 0, None], depth)
    b = read(op.b, op.b_steps, depth, at[:, :, 1, None])
    total = (a.astype(np.float64) * b.astype(np.float64)).sum(2)
    warp.tiles[op.tile] = warp.tiles[op.acc] + total.astype(op.acc.dtype.numpy)


def pack_fragments(warp: Warp, op: ops.PackFragments) -> None:
    words = np.ascontiguousarray(warp.tiles[op.x]).view(op.tile.dtype.numpy)
    warp.tiles[op.tile] = words


def accumulate(warp: Warp, op: ops.Accumulate) -> None:
    warp.tiles[op.tile] = warp.tiles[op.acc] + warp.tiles[op.x]


def write_partials(warp: Warp, op: ops.WritePartials) -> None:
    inner = [offset_of(basis, op.steps) for basis in op.x.layout.bits]
    size = max(len(inner), len(op.parts))
    basis = [
        sum(part[bit] if bit < len(part) else 0 for part in (inner, op.parts))
        for bit in range(size)
    ]
    regs = np.array([offset_of(at, op.steps) for at in op.x.layout.regs], np.int64)
    at = np.asarray(warp.place(op.slot, warp.thread_offset(basis)[:, None] + regs))
    warp.write(op, at, warp.tiles[op.x])


def add_partials(warp: Warp, op: ops.AddPartials) -> None:
    at = warp.slot_addresses(op.slot, op.acc.layout, op.steps)
    total = warp.tiles[op.acc]
    for block in range(op.cluster) if op.cluster > 1 else (warp.block,):
        for offset in op.offsets:
            total = total + warp.read(op, at + offset, op.acc.dtype.numpy, block=block)
    warp.tiles[op.tile] = total


# in flight ----------------------------------------------------------------------------------------


def wgmma(warp: Warp, op: ops.Wgmma) -> None:
    warp.unit.learn(warp.clock.known)
    made = product(warp, op, op.grid, op.k, op.a, op.b, op.tile, op.unit, issued=True)
    if op.acc is not None and warp.number_of(op.keeps):
        made = warp.tiles.even_in_flight(op.acc) + made
    warp.tiles[op.tile] = made
    warp.tiles.in_flight[op.tile] = len(warp.groups)


def wgmma_commit(warp: Warp, op: ops.WgmmaCommit) -> None:
    warp.groups.append(warp.unit.release())


def wgmma_wait(warp: Warp, op: ops.WgmmaWait) -> Steps:
    """The four warps of a group issue a matmul together: it ends for all of them."""
    done, first = len(warp.groups) - op.pending, warp.number // 4 * 4
    group = [
        other for other in warp.machine.warps
        if other.block == warp.block and first <= other.number < first + 4
    ]  # fmt: skip
    if done > 0:
        yield lambda: all(len(other.groups) >= done for other in group)
        for other in group:
            warp.clock.learn(other.groups[done - 1])
    tiles = warp.tiles
    for made, value in zip(op.results, op.values, strict=True):
        tiles[made] = tiles.even_in_flight(value)
        if value in tiles.in_flight and tiles.in_flight[value] >= done:
            tiles.in_flight[made] = tiles.in_flight[value]
    if not op.values:
        for tile in [tile for tile, group in tiles.in_flight.items() if group < done]:
            del tiles.in_flight[tile]


RULES: dict[type[Op], Rule] = {
    ops.Mma: mma,
    ops.MmaTf32: mma_tf32,
    ops.FmaDot: fma_dot,
    ops.PackFragments: pack_fragments,
    ops.Accumulate: accumulate,
    ops.WritePartials: write_partials,
    ops.AddPartials: add_partials,
    ops.WgmmaFence: nothing,
    ops.Wgmma: wgmma,
    ops.WgmmaCommit: wgmma_commit,
    ops.WgmmaWait: wgmma_wait,
}
