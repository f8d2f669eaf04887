"""float32 matmuls on wgmma: operands split into two parts of tf32."""

from __future__ import annotations

import numpy as np

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import SharedTile
from fuser.backend.nvptx.simulate.clocks import Array
from fuser.backend.nvptx.simulate.warp import Rule, Warp, bytes_at

GROUP = 8
"""k of one instruction."""


def split(values: Array) -> tuple[Array, Array]:
    """(big, small): rounded to ten bits after the point, and the rest, cut to as many."""
    words = np.ascontiguousarray(values, np.float32).view(np.int32)
    big = ((words + 4096) & -8192).view(np.float32)
    rest = (values - big).astype(np.float32)
    return big, (rest.view(np.int32) & -8192).view(np.float32)


def split_right(warp: Warp, op: ops.SplitRight) -> None:
    """A warp has groups of k, a lane columns."""
    (k, n), number = op.big.shape, warp.number - warp.base
    rows = np.arange(number * GROUP, (number + 1) * GROUP)[None, :, None]
    columns = (np.arange(32)[:, None, None] + np.arange(0, n, 32)[None, None, :]) % n
    where = np.broadcast_to(rows < k, (32, GROUP, columns.shape[2]))
    at = warp.tile_addresses(op.source, np.minimum(rows, k - 1), columns)
    parts = split(warp.read(op, at, op.source.dtype.numpy, where))
    for tile, part in zip((op.big, op.small), parts, strict=True):
        warp.write(op, warp.tile_addresses(tile, np.minimum(rows, k - 1), columns), part, where)


def wgmma_split(warp: Warp, op: ops.WgmmaSplit) -> None:
    """The left operand is read by threads; groups but the last have been waited for."""
    made = op.tile
    at = warp.coordinates(made.layout)
    rows, row_of = np.unique(at[:, :, 0], return_inverse=True)
    columns, column_of = np.unique(at[:, :, 1], return_inverse=True)
    depth = np.arange(op.k)
    left = _read(warp, op, op.a, rows, depth, issued=False)
    big_a, small_a = split(left)
    warp.unit.learn(warp.clock.known)
    big_b, small_b = (
        _read(warp, op, tile, depth, columns, issued=True) for tile in (op.big, op.small)
    )
    total = np.zeros((len(rows), len(columns)))
    for a, b in ((small_a, big_b), (big_a, small_b), (big_a, big_b)):
        total += a.astype(np.float64) @ b.astype(np.float64)
    found = total[row_of.reshape(at.shape[:2]), column_of.reshape(at.shape[:2])]
    warp.tiles[made] = np.asarray(found.astype(made.dtype.numpy))
    warp.tiles.in_flight[made] = len(warp.groups)
    warp.groups.append(warp.unit.release())


def _read(
    warp: Warp, op: Op, tile: SharedTile, rows: Array, columns: Array, *, issued: bool
) -> Array:
    at = warp.tile_addresses(tile, rows[:, None], columns[None, :])
    memory, size = warp.machine.shared[warp.block], tile.dtype.bytes
    clock = warp.unit if issued else warp.clock
    memory.read(bytes_at(at, size), clock, warp.did(op), by_unit=issued)
    found = memory.data[at[..., None] + np.arange(size)]
    return np.ascontiguousarray(found).view(tile.dtype.numpy)[..., 0]


RULES: dict[type[Op], Rule] = {ops.SplitRight: split_right, ops.WgmmaSplit: wgmma_split}
