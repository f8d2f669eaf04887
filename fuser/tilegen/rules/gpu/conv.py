"""Schedules of convolutions on a GPU: as a matmul whose rows are gathered, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuser.base.target import Target
from fuser.tilegen.rules.common import block_of, blocks_of, ceildiv, power_of_two
from fuser.tilegen.rules.gpu.cost import UNIT_ROWS, fed_by_copies, ring_bytes, stage_bytes
from fuser.tilegen.rules.gpu.matmul import least, persistent, shared
from fuser.tilegen.rules.gpu.tiles import HALF_TILES, WIDE_TILES, has_room
from fuser.tilegen.rules.problem import MIN_CHANNELS, Problem
from fuser.tilegen.schedule import Schedule

TALL, NARROW = (192, 128), (192, 64)
"""(rows, columns) of three warp groups: where threads copy, and in one wave of the copy engine's,
beside which two groups in ping-pong are faster (docs/lab/gpu-conv.md)."""
CONV_TILES = tuple(sorted((*HALF_TILES, TALL, NARROW), reverse=True))
"""Tall ones first: of two that cost the same."""
PING_PONG = (8192, 16384, 192)
"""Elements of the smallest and the largest tile of one of two ping-pong warp groups, columns."""
DEEP, MANY = 256, 8
"""Steps of k, and waves of blocks, from which on a convolution of few channels has many."""
SHARED, PREFETCHED, ALL_SHARED = 225 << 10, 144 << 10, 216 << 10
"""Bytes of operands that a multiprocessor has room for; those under way in a block that has it for
itself; and where the copy engine fills its ring, which takes a line of 128 bytes in a few cycles.
"""
MAX_STAGES = 10


def conv_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a convolution: see `MatmulRule`."""
    p = problem.closed()
    assert p.image is not None
    options = list(candidates(target, p))
    if p.image.channels >= MIN_CHANNELS:
        found = least(target, p, options)
        # narrow boxes were not measured
        return found if found.block("k") >= 64 else replace(found, im2col=False)
    half = p.bits == 16
    if half and p.k >= DEEP:
        return _deep_schedule(target, p)
    small = (s for s in options if max(s.block("m"), s.block("n")) <= 64)
    found = least(target, p, small)
    # what two warps have on its way suffices
    tiles = p.tiles(found.block("m"), found.block("n"))
    many = half and ceildiv(tiles, target.units) >= MANY
    return replace(
        found, warps=2 if many else 4, stages=2 if many else 3,
        blocks=_blocks(found.block("m"), found.block("n"), 16),
    )  # fmt: skip


def candidates(target: Target, problem: Problem) -> Iterator[Schedule]:
    """The legal schedules of a convolution of known sizes."""
    p, wgmma = problem, problem.bits == 16 and target.wgmma
    streamed = fed_by_copies(target, p, UNIT_ROWS)
    # with a short k the output dominates, and several blocks a multiprocessor hide it
    most = 1 << 12 if p.k <= 64 else 1 << 13 if p.k <= 512 else 3 << 13
    for rows, columns in CONV_TILES if p.bits == 16 else WIDE_TILES[:-1]:
        three = rows == TALL[0]
        if not has_room(target, rows, columns) or (three and not wgmma):
            continue
        plain = _plain_schedule(target, p, rows, columns)
        several = p.tiles(rows, columns) > target.units
        fits = not several if columns == NARROW[1] else not streamed
        if rows * columns <= most and (not three or (fits and streamed == (columns == NARROW[1]))):
            yield plain
        if streamed:
            yield from shared(target, p, replace(plain, blocks=_blocks(rows, columns, 64)))
        if streamed and several:
            deep = replace(plain, blocks=_blocks(rows, columns, 64))
            yield from persistent(target, p, deep, *PING_PONG)


def _blocks(rows: int, columns: int, depth: int) -> tuple[tuple[str, int], ...]:
    return (("m", rows), ("n", columns), ("k", depth))


def _plain_schedule(target: Target, p: Problem, rows: int, columns: int) -> Schedule:
    """A tile a block."""
    assert p.image is not None
    channels, half = p.image.channels, p.bits == 16
    depth = 64 if half else 32 if p.bits < 64 else 16
    while depth > 16 and channels % depth and depth > channels % depth:
        depth //= 2
    waves = ceildiv(p.tiles(rows, columns), target.units)
    warps = 12 if rows == 192 else 8 if rows * columns >= 128 * 128 else 4
    stages = 6 if (rows, columns) == NARROW else 4 if half else 3
    stage = stage_bytes(p, rows, columns, depth)
    if half and warps == 4 and (3 <= waves <= 4 or (waves > 4 and p.k <= 512)):
        # three blocks at once, and so all of the last wave
        stages = max(2, min(stages, SHARED // (3 * stage), p.iterations(depth)))
    if half and waves == 1 and warps < 12:
        # one block a multiprocessor: many bytes on their way, and few barriers
        if rows + columns <= 96 and channels % 128 == 0:
            depth = 128
        room = ALL_SHARED if fed_by_copies(target, p, rows) else PREFETCHED
        some = room // stage_bytes(p, rows, columns, depth)
        stages = max(4, min(some, MAX_STAGES, p.iterations(depth)))
    stages = max(2, min(stages, ring_bytes(target) // stage_bytes(p, rows, columns, depth)))
    return blocks_of(warps=warps, stages=stages, m=rows, n=columns, k=depth)


def _deep_schedule(target: Target, p: Problem) -> Schedule:
    """Few channels and many taps, as where an image is cut into patches: to fetch the rows takes
    longer than to multiply them. Where there are few blocks, small ones fetch side by side."""
    count = p.tiles(64, 64)
    rows, columns = (64, 64) if count >= target.units else (16, 32)
    return blocks_of(
        stages=3, reason=f"gathered; {count} blocks of 64x64 on {target.units} multiprocessors",
        m=rows, n=columns, k=64,
    )  # fmt: skip


def direct_schedule(target: Target, m: int, n: int, row: int, products: int) -> Schedule:
    """Blocks of a convolution without a matmul: see `DirectConvRule`."""
    m, n = block_of(m, 1 << 20), block_of(n, 1 << 20)
    width = min(power_of_two(n), 64)
    return blocks_of(m=min(power_of_two(m), 1024 // width), n=width)
