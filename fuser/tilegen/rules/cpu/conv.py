"""Schedules of convolutions on a CPU: as a matmul, and without one."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import DotUnit, Target
from fuser.dtypes import BY_NAME
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.rules.common import block_of, blocks_of, ceildiv
from fuser.tilegen.rules.cpu import units
from fuser.tilegen.rules.cpu.matmul import register_tiles, swept_rows
from fuser.tilegen.rules.problem import Problem, Window
from fuser.tilegen.schedule import Schedule

VECTOR = 32
"""Elements of 16 bits in the longest vector."""

FEW_CHANNELS = 16
"""Of these a loop over k would be short: taps that lie together in memory are one loop."""


def conv_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a convolution: see `MatmulRule`."""
    p, image = problem.closed(), problem.image
    assert image is not None and p.image is not None
    fixed, taps = not is_symbolic(image.channels), image.taps
    channels = p.image.channels
    if p.unit is not None:
        if image.window is not None and fixed and taps > 1 and channels % p.unit.depth == 0:
            rows = _image_rows(target, p.unit, image.window, p.n, channels)
            if rows:
                found = units.schedule(target, p, rows * image.window.pixels[-1])
                return replace(found, reason=f"{p.unit.name}, windows slide over {rows} rows")
        few = taps > 1 and channels < p.unit.depth
        found = units.schedule(target, p, _copied_rows(target, p, p.unit) if few else 0)
        whole = fixed and _gathers(target, p.unit, found.blocks[0][1], channels, taps)
        k = p.k if channels < p.unit.depth or whole else channels
        return replace(found, blocks=(*found.blocks[:2], ("k", k)))
    line = channels * p.bits // 8
    rows, columns = _register_tile(target, p, taps * line)
    group = swept_rows(
        target, ceildiv(p.m, rows), ceildiv(p.n, columns), rows, line, columns * taps * line,
        p.m * p.n * p.bits // 8,
    )  # fmt: skip
    k = channels * image.run if fixed and channels < FEW_CHANNELS else channels
    return blocks_of(group=group, m=rows, n=columns, k=k, reason="register tile of least cost")


def _image_rows(target: Target, unit: DotUnit, window: Window, n: int, channels: int) -> int:
    """Rows of the result in a block whose part of the image is copied once for all taps
    (backend/cpu/im2col/implicit.py); 0: windows are copied one by one.

    A tile is 16 pixels, those between two rows included; an odd one shares no panels with another,
    and a program reads the panels again: both cost as much as half a tile.
    """
    if unit.name != "amx" or len(window.kernel) != 2 or is_symbolic(*window.pixels):
        return 0
    batch, height, width = window.pixels
    (sy, sx), (dy, dx) = window.strides, window.dilation
    reach = sx * (width - 1) + dx * (window.kernel[1] - 1) + 1
    across = ceildiv(reach, sx)
    best, least = 0, float("inf")
    for rows in range(1, height + 1):
        pixels = (rows - 1) * across + width
        tiles = ceildiv(pixels, 16)
        lines = sy * (rows - 1) + dy * (window.kernel[0] - 1) + 1
        copied = lines * across * sx
        bytes = pixels * min(n, 256) * 4 + copied * channels * BY_NAME[unit.dtype].bytes
        if rows > 1 and (bytes > target.l2_bytes // 4 or pixels > MAX_BLOCK_PIXELS):
            break
        if (batch > 1 and height % rows) or tiles * 16 > MAX_PADDING * max(16, rows * width):
            continue
        blocks = ceildiv(height, rows) * batch
        rounds = ceildiv(blocks, target.workers) * target.workers if blocks > 1 else 1
        cost = rounds * (tiles + 0.5 * (tiles % 2) + 0.5 + 5 * copied / 16 / max(n, 16))
        if blocks < 2 * target.workers:
            cost *= 1.05  # columns are divided, each of their blocks copies the image
        if cost < least:
            best, least = rows, cost
    return best


def _copied_rows(target: Target, problem: Problem, unit: DotUnit) -> int:
    """Rows of a block of windows that are copied one by one: the copy stays in a part of L1."""
    fits = target.l1_bytes // 4 // (problem.k * BY_NAME[unit.dtype].bytes) // 16 * 16
    return min(units.rows_of(problem), max(32, fits))


MAX_BLOCK_PIXELS = 512
"""Of a block of a sliding window."""
MAX_PADDING = 1.5
"""Pixels of tiles over those of the result."""


def _register_tile(target: Target, problem: Problem, column: int) -> tuple[int, int]:
    """(rows, columns) of the register tile of least cost of those with a panel of weights that
    fits L2: twice, in use and under way, but once where L3 keeps up with a core of few
    multiply-adds. column: bytes of a column of weights."""
    tiles = register_tiles(target, problem)
    room = target.l2_bytes * 3 // 4
    return next((t for t in tiles if target.vector_fmas * t[1] * column <= room), tiles[0])


def _gathers(target: Target, unit: DotUnit, rows: int, channels: int, taps: int) -> bool:
    """Whether the windows of a block are copied as a whole, and all their products added up in
    registers: tap by tap, the sums of every tile are loaded and stored for few steps of k. Runs of
    channels are whole vectors, and what is copied stays in L2."""
    bytes = BY_NAME[unit.dtype].bytes * rows * channels * taps
    return unit.name != "amx" and channels % VECTOR == 0 and bytes <= target.l2_bytes * 3 // 4


def direct_schedule(target: Target, m: int, n: int, row: int, products: int) -> Schedule:
    """Blocks of a convolution without a matmul: see `DirectConvRule`."""
    m, n = block_of(m, 1 << 20), block_of(n, 1 << 20)
    lanes = target.lanes(32)
    # a vector of weights a product, sums and offsets: a second vector of channels shares the
    # addresses; more of them, and the weights are loaded for every pixel
    vectors = (target.vector_registers - 4) // (products + 2)
    fits = [v * lanes for v in (2, 1) if n % (v * lanes) == 0] if vectors >= 2 else []
    width = fits[0] if fits else min(n, 64)
    return blocks_of(m=_part_of_row(row, max(1, min(m, 1024 // width))), n=width)


def _part_of_row(row: int, most: int) -> int:
    """At most `most` pixels, all of one row if parts of equal size make it up: what lies above or
    below the image is then known for all of them at once."""
    if is_symbolic(row) or row <= most:
        return most if is_symbolic(row) else row
    return next((part for part in range(most, most // 4, -1) if row % part == 0), most)
