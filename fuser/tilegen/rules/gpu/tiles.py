"""Tiles of a GPU's matmuls, by their cost, and the stages of their rings."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.tilegen.rules.common import ceildiv

HALF_TILES = (
    *((128, columns) for columns in (256, 192, 128)),
    *((64, 192), (64, 128), (128, 64), (64, 64), (64, 32)),
    *((32, 64), (32, 32), (16, 64), (16, 32)),
)
WIDE_TILES = ((64, 64), (32, 64), (64, 32), (32, 32), (16, 64), (16, 32))
"""(rows, columns) of a GPU dot of 16-bit operands and of others, the largest first."""
SHARED = 225 << 10
"""Bytes of shared memory that the blocks of a multiprocessor have for operands."""
PREFETCHED = 144 << 10
"""Bytes of operands under way in a block that has a multiprocessor for itself."""


STRIPS = 16 << 10
"""Bytes of the buffers of eight warps that turn strips of 16 rows over."""


def gpu_tile(
    target: Target,
    m: int,
    n: int,
    bits: int,
    accumulators: int,
    batch: int,
    most: int = 1 << 15,
    row_cost: int = 24,
    tall_cost: int = 0,
    alone: float = 1.0,
    more: tuple[tuple[int, int], ...] = (),
    least: int = 0,
) -> tuple[int, int, int, str]:
    """(rows, columns, waves, reason): the tile of least estimated time.

    A wave is one block on every multiprocessor. In a step of k a block multiplies rows * columns
    and streams both operands; row_cost is the cost of a row of the left one, in multiply-adds, and
    tall_cost that of one of 64 rows or more, if it is another. Fitted to an H200. most: the largest
    tile, in elements of all accumulators. alone: what a block costs more that has a multiprocessor
    for itself, as nothing hides its start and its end. more: tiles beside the usual ones.
    least: rows of a tile.
    """
    sizes = (*more, *(HALF_TILES if bits == 16 else WIDE_TILES))
    sizes = tuple(size for size in sizes if size[0] >= least)
    best: tuple[float, bool, int, int, int] | None = None
    cost: float
    for rows, columns in sizes:
        too_wide = columns * accumulators > 256 or rows * columns * accumulators > most
        if (too_wide and (rows, columns) != sizes[-1]) or not has_room(target, rows, columns):
            continue
        waves = ceildiv(ceildiv(m, rows) * ceildiv(n, columns) * batch, target.units)
        line = tall_cost if tall_cost and rows >= 64 else row_cost
        cost = waves * (rows * columns + line * rows + 24 * columns + 2048)
        cost *= alone if waves == 1 else 1
        # of a tile and its transpose the wide one, while one accumulator fills its columns
        tie = columns * accumulators > 128
        if best is None or (cost, tie) < best[:2]:
            best = (cost, tie, rows, columns, waves)
    assert best is not None
    _, _, rows, columns, waves = best
    count = ceildiv(m, rows) * ceildiv(n, columns) * batch
    return rows, columns, waves, f"{count} blocks in {waves} waves on {target.units} processors"


def has_room(target: Target, rows: int, columns: int) -> bool:
    """Whether registers have room for the sums of a tile, and shared memory for turning them over
    for the store, 16 bytes between rows, beside the buffers of warps that store in strips."""
    if columns > 128 and not target.clusters:
        return False
    strips = STRIPS if target.clusters else 0
    return not 0 < target.shared_bytes < rows * (4 * columns + 16) + strips


def deep_stages(
    lines: int, depth: int, iterations: int, bytes_: int = PREFETCHED, most: int = 10
) -> int:
    """Stages of a block that has a multiprocessor, and its shared memory, for itself. lines: rows
    of the left operand and columns of the right ones; depth: 16-bit elements of each in a stage."""
    return max(4, min(bytes_ // (lines * depth * 2), most, iterations))
