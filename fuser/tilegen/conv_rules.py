"""Schedules of convolutions: as a matmul, without one, and by Winograd's transforms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod

from fuser.dtypes import BY_NAME
from fuser.graph.sizes import by_example, is_symbolic, size_hint
from fuser.target import DotUnit, Target
from fuser.tilegen import units
from fuser.tilegen.dot_rules import (
    PREFETCHED,
    SHARED,
    deep_stages,
    gpu_tile,
    register_tiles,
    swept_rows,
)
from fuser.tilegen.rules import block_of, blocks_of, ceildiv, cover, power_of_two
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.share_rules import ping_pong_schedule, split_schedule

ALONE = 1.2
"""How much longer a block takes that has a multiprocessor for itself: nothing hides its ends."""
ONE_WAVE = (192, 64)
"""A tile of 12 warps that fills a multiprocessor: fast where all blocks run at once."""
WAVE = 2.5e5
"""What a wave of two ping-pong warp groups costs besides matmuls and loads, in multiply-adds of all
steps of k."""
ALL_SHARED = 216 << 10
"""Bytes of the ring of a block that has a multiprocessor for itself, where the copy engine, which
takes a line of 128 bytes in a few cycles, fills it."""
VECTOR = 32
"""Elements of 16 bits in the longest vector."""

FEW_CHANNELS = 16
"""Of these a loop over k would be short: taps that lie together in memory are one loop."""


def conv_schedule(
    target: Target, m: int, n: int, channels: int, taps: int, bits: int, groups: int,
    unit: DotUnit | None = None, *, staged: bool = False, window: Window | None = None,
    run: int = 1,
) -> Schedule:  # fmt: skip
    """Blocks "m" (pixels), "n" (output channels), "k" (input channels, or taps and channels).
    staged: whether operands are copied as they are and results are not reduced. window: where
    pixels lie in memory with their channels together, in the dtype that the unit multiplies. run:
    how many taps follow each other in memory, with all their channels."""
    staged = staged and not is_symbolic(channels)
    m, n, groups = size_hint(m), size_hint(n), size_hint(groups)
    fixed = not is_symbolic(channels)
    channels = cover(channels)
    if unit is not None:
        if window is not None and fixed and taps > 1 and channels % unit.depth == 0:
            rows = _image_rows(target, unit, window, n, channels)
            if rows:
                found = units.schedule(
                    target, unit, m, n, channels * taps, 1, 1, rows * window.pixels[-1]
                )
                return replace(found, reason=f"{unit.name}, windows slide over {rows} rows")
        few = taps > 1 and channels < unit.depth
        rows = _copied_rows(target, unit, m, channels * taps) if few else 0
        found = units.schedule(target, unit, m, n, channels * taps, 1, 1, rows)
        whole = fixed and _gathers(target, unit, found.blocks[0][1], channels, taps)
        k = channels * taps if channels < unit.depth or whole else channels
        return replace(found, blocks=(*found.blocks[:2], ("k", k)))
    if not target.is_cuda:
        line = channels * bits // 8
        rows, columns = _register_tile(target, m, n, bits, taps * line)
        group = swept_rows(
            target, ceildiv(m, rows), ceildiv(n, columns), rows, line, columns * taps * line,
            m * n * bits // 8,
        )  # fmt: skip
        k = channels * run if fixed and channels < FEW_CHANNELS else channels
        return blocks_of(group=group, m=rows, n=columns, k=k, reason="register tile of least waste")
    half = bits == 16
    # rows are gathered; with a short k the output dominates, and several blocks a processor hide it
    k = channels * taps
    most = 1 << 12 if k <= 64 else 1 << 13 if k <= 512 else 3 << 13
    tall = ((192, 128),) if half and target.arch == "sm_90a" else ()
    streamed = half and staged and bool(tall) and channels % 64 == 0 == n % 8 and k >= 128
    tile = partial(
        gpu_tile, target, m, n, bits, 1, groups, most, row_cost=60,
        tall_cost=24 if streamed and taps > 1 else 0, alone=ALONE,
    )  # fmt: skip
    rows, columns, waves, reason = tile(more=(*tall, ONE_WAVE) if streamed else tall)
    if (rows, columns) == ONE_WAVE and waves > 1:
        rows, columns, waves, reason = tile(more=tall)
    depth = 64 if half else 32 if bits < 64 else 16
    if half and staged and waves == 1 and channels % 64 == 0:
        shared = split_schedule(target, m, n, k, groups)
        if shared is not None:
            return replace(shared, group=0)
    if streamed:
        paired = ping_pong_schedule(
            target, m, n, k, 1, groups, (rows, columns, waves), fixed=False, least=1 << 13,
            widest=192, each=WAVE, alone=ALONE,
        )  # fmt: skip
        if paired is not None:
            return replace(paired, group=0)
    if channels < 16:
        return blocks_of(stages=3, reason=reason, m=min(rows, 64), n=min(columns, 64), k=16)
    while depth > 16 and channels % depth and depth > channels % depth:
        depth //= 2
    warps = 8 if rows * columns >= 128 * 128 else 4
    warps = 12 if rows == 192 else warps
    stages = 6 if (rows, columns) == ONE_WAVE else 4 if half else 3
    iterations = taps * ceildiv(channels, depth)
    if half and warps == 4 and (3 <= waves <= 4 or (waves > 4 and k <= 512)):
        # three blocks at once, and so all of the last wave
        stages = max(2, min(stages, SHARED // (3 * 2 * (rows + columns) * depth), iterations))
    if half and waves == 1 and warps < 12:
        # one block a multiprocessor: many bytes on their way, and few barriers
        if rows + columns <= 96 and channels % 128 == 0:
            depth = 128
        room = ALL_SHARED if streamed and rows >= 64 else PREFETCHED
        stages = deep_stages(rows + columns, depth, taps * ceildiv(channels, depth), room)
    schedule = blocks_of(warps=warps, stages=stages, reason=reason, m=rows, n=columns, k=depth)
    # narrow boxes were not measured
    return schedule if depth >= 64 else replace(schedule, extra={"windows": False})


@dataclass(frozen=True)
class Window:
    """A convolution of two spatial dims. pixels: batch, height and width of the result; the others
    are along height and width."""

    pixels: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]


def _image_rows(target: Target, unit: DotUnit, window: Window, n: int, channels: int) -> int:
    """Rows of the result in a block whose part of the image is copied once for all taps
    (backend/cpu/implicit_im2col.py); 0: windows are copied one by one.

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
        if rows > 1 and (bytes > target.l2_bytes // 4 or pixels > MOST_PIXELS):
            break
        if (batch > 1 and height % rows) or tiles * 16 > MOST_WASTE * max(16, rows * width):
            continue
        blocks = ceildiv(height, rows) * batch
        rounds = ceildiv(blocks, target.workers) * target.workers if blocks > 1 else 1
        cost = rounds * (tiles + 0.5 * (tiles % 2) + 0.5 + 5 * copied / 16 / max(n, 16))
        if blocks < 2 * target.workers:
            cost *= 1.05  # columns are divided, each of their blocks copies the image
        if cost < least:
            best, least = rows, cost
    return best


def _copied_rows(target: Target, unit: DotUnit, m: int, k: int) -> int:
    """Rows of a block of windows that are copied one by one: the copy stays in a part of L1."""
    fits = target.l1_bytes // 4 // (k * BY_NAME[unit.dtype].bytes) // 16 * 16
    return min(units.rows_of(m), max(32, fits))


MOST_PIXELS = 512
"""Of a block of a sliding window."""
MOST_WASTE = 1.5
"""Pixels of tiles over those of the result."""


def _register_tile(target: Target, m: int, n: int, bits: int, column: int) -> tuple[int, int]:
    """(rows, columns) of the register tile of least work of those with a panel of weights that
    fits L2 twice: in use, and under way. column: bytes of a column of weights."""
    tiles = [tile for _, *tile in register_tiles(target, m, n, bits)]
    room = target.l2_bytes * 3 // 4
    rows, columns = next((t for t in tiles if 2 * t[1] * column <= room), tiles[0])
    return rows, columns


def _gathers(target: Target, unit: DotUnit, rows: int, channels: int, taps: int) -> bool:
    """Whether the windows of a block are copied as a whole, and all their products added up in
    registers: tap by tap, the sums of every tile are loaded and stored for few steps of k. Runs of
    channels are whole vectors, and what is copied stays in L2."""
    bytes = BY_NAME[unit.dtype].bytes * rows * channels * taps
    return unit.dtype == "bf16" and channels % VECTOR == 0 and bytes <= target.l2_bytes * 3 // 4


def direct_schedule(target: Target, m: int, n: int, row: int, products: int) -> Schedule:
    """Blocks "m" (pixels) and "n" (channels) of a convolution without a matmul. row: pixels
    along the last dim. products: of an element of the result."""
    m, n = block_of(m, 1 << 20), block_of(n, 1 << 20)
    if not target.is_cuda:
        lanes = target.lanes(32)
        # a vector of weights a product, sums and offsets: a second vector of channels shares the
        # addresses; more of them, and the weights are loaded for every pixel
        vectors = (target.vector_registers - 4) // (products + 2)
        fits = [v * lanes for v in (2, 1) if n % (v * lanes) == 0] if vectors >= 2 else []
        width = fits[0] if fits else min(n, 64)
        return blocks_of(m=_part_of_row(row, max(1, min(m, 1024 // width))), n=width)
    width = min(power_of_two(n), 64)
    return blocks_of(m=min(power_of_two(m), 1024 // width), n=width)


def _part_of_row(row: int, most: int) -> int:
    """At most `most` pixels, all of one row if parts of equal size make it up: what lies above or
    below the image is then known for all of them at once."""
    if is_symbolic(row) or row <= most:
        return most if is_symbolic(row) else row
    return next((part for part in range(most, most // 4, -1) if row % part == 0), most)


MATMUL_RATE = 1.2
"""Multiply-adds of a matmul over those that the target says of a core, whose clock it does not
know."""
MOVE_BYTES = 2e10
"""Bytes a second that one core reads or writes past its own caches."""


@by_example
def winograd_side(target: Target, channels: int, outputs: int, pixels: tuple[int, ...]) -> int:
    """The side of the squares of outputs, 2 or 4, with which a 3x3 convolution is fastest by
    Winograd's transforms; 0 where the sum over windows is.

    All are multiply-adds beside a stream of weights from memory; squares of inputs and of matmuls
    also go through memory twice.
    """
    if min(channels, outputs) < 32:
        return 0
    rate = MATMUL_RATE * target.flops_f32 / target.units
    stream = target.bandwidth / target.units
    images, height, width = pixels

    def matmuls(count: int, rows: int) -> float:
        flops, bytes = 2 * count * rows * channels * outputs, 4 * count * channels * outputs
        return max(flops / rate, bytes / stream)

    best, side = 0.85 * matmuls(9, prod(pixels)), 0
    for squares_side in (2, 4):
        squares = images * ceildiv(height, squares_side) * ceildiv(width, squares_side)
        count = (squares_side + 2) ** 2
        moved = 2 * 4 * count * squares * (channels + outputs)
        cost = matmuls(count, ceildiv(squares, 8) * 8) + moved / MOVE_BYTES
        if cost < best:
            best, side = cost, squares_side
    return side


def squares_schedule(target: Target, squares: int, channels: int) -> Schedule:
    """Blocks "m" (squares) and "n" (channels) of a transform of Winograd's."""
    squares, channels = block_of(squares, 1 << 20), block_of(channels, 1 << 20)
    width = min(channels, 64)
    return blocks_of(m=max(1, min(squares, 256 // width)), n=width)
