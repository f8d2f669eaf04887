"""Copies that come by and by: of the copy engine, and of threads; swizzled tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import SharedTile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.simulate.clocks import Array, SimulationError
from fuser.backend.nvptx.simulate.memory import nothing, touched
from fuser.backend.nvptx.simulate.shared import fly
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp, as_bytes, bytes_at
from fuser.dtypes import BY_NAME
from fuser.graph.sizes import size_hint
from fuser.tilegen.ir import View


def box(source: Array, map: TensorMap, start: list[int]) -> Array:
    """[rows, columns] of a box, zeros out of bounds."""
    steps = [1, *(size_hint(step) for step in map.strides)]
    address, inside = np.asarray(size_hint(map.offset)), np.asarray(True)
    for dim, (first, size) in enumerate(zip(start, [size_hint(n) for n in map.shape], strict=True)):
        count = map.box[dim]
        shape = [1] * len(map.shape)
        shape[len(map.shape) - 1 - dim] = count
        at = first + np.arange(count).reshape(shape)
        address, inside = address + at * steps[dim], inside & (at >= 0) & (at < size)
    found = np.where(inside, source[np.where(inside, address, 0)], np.zeros(1, source.dtype))
    return np.asarray(found.reshape(-1, map.box[0]))


def walk(source: Array, map: TensorMap, start: list[int], offsets: list[int], rows: int) -> Array:
    """[rows, columns] of an im2col walk: from a position on through the bounding box, dim by dim;
    every position plus the offsets, zeros out of bounds. The last dim has no such box."""
    steps = [1, *(size_hint(step) for step in map.strides)]
    sizes, begin = [size_hint(size) for size in map.shape], size_hint(map.offset)
    columns = start[0] + np.arange(map.box[0])
    within = (columns >= 0) & (columns < sizes[0])
    place = list(start[1:])
    found = np.zeros((rows, map.box[0]), source.dtype)
    for row in range(rows):
        at = [p + o for p, o in zip(place, [*offsets, 0], strict=True)]
        if all(0 <= p < size for p, size in zip(at, sizes[1:], strict=True)):
            base = begin + sum(p * step for p, step in zip(at, steps[1:], strict=True))
            found[row, within] = source[base + columns[within]]
        for dim, (low, high) in enumerate(zip(map.lower, map.upper, strict=True)):
            place[dim] += map.steps[dim]
            if place[dim] <= sizes[1 + dim] - 1 + high:
                break
            place[dim] = low
        else:
            place[-1] += 1
    return found


def map_of(warp: Warp, op: ops.Fetch) -> TensorMap:
    """The tensor map of a fetch, that of the last tile there."""
    name = op.edge if op.edge and warp.number_of(op.beyond) else op.map
    return warp.machine.program.tensor_maps[int(name.lstrip("%map"))]


def fetch(warp: Warp, op: ops.Fetch) -> None:
    program, map = warp.machine.program, map_of(warp, op)
    warp.touch(program.buffers[map.argument])
    source = warp.array(program.buffers[map.argument]).reshape(-1)
    offsets = [warp.number_of(at) for at in op.offsets]
    if op.im2col:
        fetch_boxes(warp, op, lambda start: walk(source, map, start, offsets, op.rows))
    else:
        fetch_boxes(warp, op, lambda start: box(source, map, start))


def fetch_boxes(warp: Warp, op: ops.Fetch, receive: Callable[[list[int]], Array]) -> None:
    """Set off the copies of what `receive` has at the start of each box: [rows, columns]."""
    program, machine, map = warp.machine.program, warp.machine, map_of(warp, op)
    tile, dtype = op.into, BY_NAME[map.dtype]
    start = [warp.number_of(at) for at in op.start]
    bits = 1 << warp.block if op.to is None else warp.number_of(op.to)
    base = int(np.asarray(warp.place(tile.slot, warp.number_of(tile.stage))))
    at = warp.number_of(op.barrier)
    span = map.box[0] * dtype.bytes
    for along in range(op.across):
        for first in range(0, op.rows, op.step):
            moved = [start[0] + along * map.box[0], *start[1:]]
            if len(moved) > 1:
                moved[1] += first
            received = receive(moved)
            rows, columns = np.indices(received.shape)
            rows = rows + first
            chunk = columns * dtype.bytes // 16
            swizzle_row = {128: rows & 7, 64: rows >> 1 & 3, 32: rows >> 2 & 1, 0: rows & 0}[
                map.swizzle
            ]
            inside = columns * dtype.bytes % 16
            place = (
                base + along * tile.block_bytes + rows * span + (chunk ^ swizzle_row) * 16 + inside
            )
            for block in range(program.cluster):
                if bits >> block & 1:
                    data = as_bytes(received.astype(dtype.numpy).reshape(-1))
                    where = bytes_at(place.reshape(-1), dtype.bytes)
                    fly(warp, op, block, where, data, machine.mbarrier(block, at))


def write_tile(warp: Warp, op: ops.WriteTile) -> None:
    at, where = swizzled_places(warp, op.target, op.x.layout)
    warp.write(op, at, warp.tiles[op.x], where)


def read_tile(warp: Warp, op: ops.ReadTile) -> None:
    at, where = swizzled_places(warp, op.source, op.tile.layout)
    warp.tiles[op.tile] = warp.read(op, at, op.tile.dtype.numpy, where)


def swizzled_places(warp: Warp, tile: SharedTile, layout: Layout) -> tuple[Array, Array]:
    """[32, registers]: byte addresses in a shared tile, and whether they are allocated."""
    at = warp.coordinates(layout)
    rows, columns = (at[..., 0], at[..., 0]) if tile.flat else (at[..., 0], at[..., 1])
    where = warp.inside(layout, tile.shape)
    place = warp.tile_addresses(tile, rows, columns)
    return np.where(where, place, 0), where


def copy_async(warp: Warp, op: ops.CopyAsync) -> None:
    place, allocated = swizzled_places(warp, op.target, op.layout)
    keep = allocated & warp.active[:, None] & warp.alone(op.layout)[:, None]
    early = warp.waits_for_previous and op.settled is not None
    address, where = touched(warp, op.at, op.layout, settled=early)
    if early:
        check_settled(op.at.access.view, address[where])
    source = warp.array(op.at.access.view.buffer)
    if not op.fill:
        keep &= where
    values = np.where(where, source[address], np.zeros(1, source.dtype))[keep]
    issue(warp, op, place[keep], values)


def check_settled(view: View, address: Array) -> None:
    """Raises SimulationError for elements of a view that a kernel of the run may write."""
    if view.settled is None:
        return
    dim, count = view.settled
    step = size_hint(view.strides[dim])
    wider = [size_hint(other) for other in view.strides if size_hint(other) > step]
    place = (address - size_hint(view.offset)) // step
    place = place % (min(wider) // step) if wider else place
    if (place >= size_hint(count)).any():
        raise SimulationError(f"{view.buffer.name} is read where it may still be written")


def issue(warp: Warp, op: Op, place: Array, values: Array) -> None:
    """Copies of values to byte addresses that are under way, of the group that is open."""
    at, data = bytes_at(place, values.itemsize), as_bytes(values)
    memory, group, clock = warp.machine.shared[warp.block], warp.copies[-1], warp.copier
    clock.learn(warp.clock.known)
    memory.claim(at, clock, warp.did(op))
    group.begin()

    def arrive() -> None:
        memory.data[at] = data
        group.end()

    warp.machine.flights.append(arrive)


def commit_copies(warp: Warp, op: ops.CommitCopies) -> None:
    warp.commit_copies()


def wait_copies(warp: Warp, op: ops.WaitCopies) -> Steps:
    done = warp.copies[: len(warp.copies) - 1 - op.pending]
    yield lambda: not any(group.under_way for group in done)
    for group in done:
        warp.clock.learn(group.told)


def fence_async(warp: Warp, op: ops.FenceAsync) -> None:
    warp.clock.fence()


RULES: dict[type[Op], Rule] = {
    ops.Fetch: fetch,
    ops.PrefetchMap: nothing,
    ops.WriteTile: write_tile,
    ops.ReadTile: read_tile,
    ops.CopyAsync: copy_async,
    ops.CommitCopies: commit_copies,
    ops.WaitCopies: wait_copies,
    ops.FenceAsync: fence_async,
}
