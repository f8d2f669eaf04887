"""Tiles of a GPU's matmuls: which fit, and what follows from one."""

from __future__ import annotations

from collections.abc import Iterator

from fuser.base.target import Target
from fuser.tilegen.rules.common import blocks_of
from fuser.tilegen.rules.gpu.cost import fed_by_copies, ring_bytes, stage_bytes
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

HALF_TILES = (
    *((128, columns) for columns in (256, 192, 128)),
    *((64, 192), (64, 128), (128, 64), (64, 64), (64, 32)),
    *((32, 64), (32, 32), (16, 64), (16, 32)),
)
COPIED_TILES = ((192, 192), (64, 256), (64, 96))
"""(rows, columns) of a dot of operands of 16 bits or fewer, and more of those that the copy engine
fetches."""
WIDE_TILES = ((128, 64), (64, 64), (32, 64), (64, 32), (32, 32), (16, 64), (16, 32), (16, 16))
"""The same of wider operands."""
PING_PONG_TILES = ((128, 128), (64, 256), (64, 192), (128, 64), (64, 128), (64, 64))
"""The same of one of two ping-pong warp groups."""
MAX_COLUMNS, MAX_TILE, MAX_CODE_TILE = 256, 128 * 256, 128 * 128
"""Columns and elements of all accumulators of a tile; of 8-bit floats, whose sums of a step of k
are apart from those so far."""
MAX_STAGES = 18
EPILOGUE_BYTES = 16 << 10
"""Bytes of shared memory in which eight warps transpose 16 rows at a time for the store."""
LONG_STREAM = 192
"""Rows and columns of a tile, up to which the stages of threads' copies fill shared memory."""
SHORT_K = 1024
"""Steps of k below which the epilogue is a large part, which two warp groups then share."""


def tiles_of(target: Target, problem: Problem) -> Iterator[tuple[int, int]]:
    """(rows, columns) of the tiles that registers and shared memory have room for."""
    half = problem.bits <= 16
    most = MAX_CODE_TILE if problem.codes else MAX_TILE
    for rows, columns in (*HALF_TILES, *COPIED_TILES) if half else WIDE_TILES:
        wide, copied = columns * problem.accumulators, (rows, columns) in COPIED_TILES
        if copied and (problem.codes or not fed_by_copies(target, problem, rows)):
            continue
        # three warp groups have room for one accumulator; two of 96 columns fill their registers
        fits = rows * wide <= most or (copied and wide <= 192)
        stages = 2 * stage_bytes(problem, rows, columns, depth_of(problem))
        if (
            (columns == 96 and wide != 192)
            or (columns == 16 == wide)
            or 0 < target.shared_bytes < stages
        ):
            continue
        if wide <= MAX_COLUMNS and fits and has_room(target, rows, columns):
            yield rows, columns


def has_room(target: Target, rows: int, columns: int) -> bool:
    """Whether registers have room for the sums of a tile, and shared memory for transposing them
    for the store, 16 bytes between rows, beside the buffers of warps that store a few rows at a
    time."""
    if columns > 128 and not target.clusters:
        return False
    buffers = EPILOGUE_BYTES if target.clusters else 0
    return not 0 < target.shared_bytes < rows * (4 * columns + 16) + buffers


def warps_of(tile: int, accumulators: int, *, short: bool) -> int:
    """Warps that compute a tile of so many elements of all accumulators. short: a block has one
    tile, of a short k. Two accumulators have too few columns for two warp groups."""
    if tile > MAX_TILE:
        return 12
    shared = short and tile == 64 * 128 and accumulators == 1
    return 8 if tile >= 128 * 128 or shared else 4


def depth_of(problem: Problem) -> int:
    """Steps of k of an iteration."""
    bits, k = problem.bits, problem.k
    some = 16 // bits if bits < 16 else 1
    depth = 64 * some if bits <= 16 else 32 if bits < 64 else 16
    while depth > 16 * some and depth >= 2 * k:
        depth //= 2
    if bits <= 16 and not problem.streamed and not problem.codes and 64 * some < k <= 256 * some:
        # elements are copied one by one: as few as possible beyond the last
        depth = some * min((64, 48, 32), key=lambda deep: -(-k // (deep * some)) * (deep + 16))
    return depth


def plain_schedule(target: Target, problem: Problem, rows: int, columns: int) -> Schedule:
    """A matmul of one tile a block, with as many stages as shared memory has room for where few
    blocks are to come."""
    wide, depth = columns * problem.accumulators, depth_of(problem)
    waves = -(-problem.tiles(rows, columns) // target.units)
    copies, half = fed_by_copies(target, problem, rows), problem.bits <= 16
    stage, room = stage_bytes(problem, rows, columns, depth), ring_bytes(target)
    stages = 4 if half else 3
    streams = waves <= 2 if copies else half and waves == 1 and rows + wide <= LONG_STREAM
    if streams and not problem.codes:
        fewest = 2 if waves > 1 else 4
        stages = max(fewest, min(room // waves // stage, MAX_STAGES, problem.iterations(depth)))
    short = copies and waves == 1 and problem.k * problem.bits < SHORT_K * 16
    return blocks_of(
        warps=warps_of(rows * wide, problem.accumulators, short=short and not problem.codes),
        stages=max(2, min(stages, room // stage)), group=8 if problem.batch == 1 else 0,
        m=rows, n=columns, k=depth,
    )  # fmt: skip
