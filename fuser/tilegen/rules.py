"""Schedules by simple cost rules: block sizes, warps and stages for each kind of region.

The rules read the Target and extents only. A CPU tile is an iteration space: blocks are register
tiles (contractions) or enough work for one program. A GPU tile is spread over warps: dims are
powers of two, and there should be a few blocks for each multiprocessor. Matmuls, convolutions and
attention have files of their own: dot_rules.py, conv_rules.py, attention_rules.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fuser.graph.sizes import is_symbolic, size_hint
from fuser.target import Target
from fuser.tilegen.schedule import Schedule

MOST_SYMBOLIC_ROWS = 32
"""The block of a number of queries of any size."""
MOST_SYMBOLIC_KEYS = 64
"""The block of a number of keys of any size: what hangs over is computed in vain."""
CPU_ELEMENTS = 4096
"""Elements of a map program on a CPU: about 10 microseconds of simple work would be more, but the
runtime hands out chunks of programs."""


def block_of(extent: int, most: int) -> int:
    """The extent of a block: min(extent, most), or, of a symbolic extent, what suits its example;
    the rest of a block that hangs over is masked."""
    return min(power_of_two(size_hint(extent)), most) if is_symbolic(extent) else min(extent, most)


def cover(extent: int) -> int:
    """The extent of a tile axis that must hold all of `extent`: a power of two that holds the
    example of a symbolic one, and a guard that it fits."""
    if not is_symbolic(extent):
        return extent
    whole = power_of_two(size_hint(extent))
    return whole if extent <= whole else int(extent)


def power_of_two(extent: int) -> int:
    """The least power of two that is not below `extent`."""
    return 1 << (max(extent, 1) - 1).bit_length()


def ceildiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def map_schedule(target: Target, extents: list[int], lead: int | None, item_bytes: int) -> Schedule:
    """Blocks "rows" and "columns" of a map over merged dims of the given extents."""
    sizes = [size_hint(extent) for extent in extents]
    total, columns = prod(sizes), block_of(extents[-1], CPU_ELEMENTS)
    rows = extents[lead] if lead is not None else prod(extents[:-1])
    if is_symbolic(*extents):
        rows = power_of_two(size_hint(rows))
    if not target.is_cuda:
        if lead is not None:
            return blocks_of(rows=min(rows, 32), columns=min(columns, 64), reason="transpose")
        width = min(columns, CPU_ELEMENTS)
        return blocks_of(rows=max(1, min(rows, CPU_ELEMENTS // width)), columns=width)
    if lead is not None:
        side = 32 if total < 32 * 64 * target.units else 64
        return blocks_of(
            rows=min(power_of_two(rows), side), columns=min(power_of_two(columns), side),
            reason="transpose",
        )  # fmt: skip
    work = 2048 if item_bytes <= 2 else 1024
    while work > 256 and ceildiv(total, work) < 2 * target.units:
        work //= 2
    width = min(power_of_two(columns), work)
    height = min(power_of_two(rows), max(1, work // width))
    return blocks_of(warps=max(1, min(4, width * height // 128)), rows=height, columns=width)


def reduce_schedule(
    target: Target,
    rows: int,
    total: int,
    columns: int,
    item_bytes: int = 4,
    reads: int = 0,
    held: tuple[int, int, int] = (0, 0, 0),
) -> Schedule:
    """Blocks "rows", "columns" (kept dims inside the reduced ones) and "total" (reduced extent).

    columns is 1 where the reduced dims are the innermost in memory. item_bytes: of an element read.
    reads: values as long as a row that are read, where rows may be spread over several blocks
    (running sums cannot), else 0. held: see held_blocks.
    """
    if columns == 1 and not is_symbolic(total) and held_blocks(target, total, *held):
        cluster, height = held_blocks(target, total, *held), 1
        many = not is_symbolic(rows) and rows >= target.units
        if cluster == 2 and held[1] == 2 and held[2] > 1 and many:
            cluster, height = 4, 2  # what rows share is read from the L2 once for both
        schedule = blocks_of(warps=8, rows=height, columns=1, total=power_of_two(total))
        return replace(schedule, cluster=cluster, extra={"held": True})
    if is_symbolic(rows, total, columns):
        long = size_hint(total) > CPU_ELEMENTS or size_hint(columns) > 1
        if is_symbolic(total):
            # columns are as fast in chunks; a row is best in one piece
            chunk = MOST_SYMBOLIC_KEYS if size_hint(columns) > 1 else CPU_ELEMENTS
            total = block_of(total, chunk) if long else cover(total)
        rows, columns = block_of(rows, CPU_ELEMENTS), block_of(columns, CPU_ELEMENTS)
    if not target.is_cuda:
        width = min(columns, 64) if columns > 1 else 1
        height = max(1, min(rows, CPU_ELEMENTS // max(1, total * width)))
        return blocks_of(rows=height, columns=width, total=total)
    padded = power_of_two(total)
    if columns > 1:
        width = min(power_of_two(columns), 64)
        return blocks_of(rows=1, columns=width, total=min(padded, max(1, 8192 // width)))
    cluster = row_blocks(target, padded, reads, item_bytes) if reads else 1
    whole = min(padded, ROW_ELEMENTS * cluster)
    height = 1
    while whole * height < 1024 and height * 2 <= rows and rows // (height * 2) >= target.units:
        height *= 2
    part = whole // cluster
    warps = max(1, min(16, part * height // (512 if cluster == 1 else 1024)))
    if item_bytes <= 2 and part * height == 4096:
        warps = 4  # bytes in flight of many small blocks rather than of few large ones
    schedule = blocks_of(warps=power_of_two(warps), rows=height, columns=1, total=whole)
    return replace(schedule, cluster=cluster)


ROW_ELEMENTS = 16384
"""Elements of a row that a block keeps in registers."""


def row_blocks(target: Target, padded: int, reads: int, item_bytes: int) -> int:
    """Blocks that share a row, where the target has clusters: as many as hold it in registers. A
    row that eight blocks cannot hold is read twice, by one."""
    if target.sm < 90 or not ROW_ELEMENTS < padded <= 8 * ROW_ELEMENTS:
        return 1
    part = ROW_ELEMENTS if reads < 3 and item_bytes <= 4 else ROW_ELEMENTS // 2
    if item_bytes > 4 and padded > 8 * part:
        return 1
    return min(8, padded // part)


HELD_BYTES = 64 << 10
"""Bytes of a row that a block keeps in shared memory, at most."""


def held_blocks(target: Target, total: int, values: int, bytes: int, lines: int) -> int:
    """Blocks that share a row of `total` elements whose inputs they keep in shared memory; 0 where
    registers are the better place.

    values, bytes: how many inputs have a row's length and rows of their own, and the bytes of an
    element of all of them. lines: inputs of a row's length that all rows share. Registers hold
    elements as float32, so that few rows of shorter elements fit a multiprocessor; two lines of
    float32 stay in the cache only if rows bypass it. A cluster of eight gains nothing.
    """
    padded = power_of_two(total)
    if target.sm < 90 or padded < ROW_ELEMENTS or not values or total * bytes % (16 * values):
        return 0
    if padded == ROW_ELEMENTS and (values > 1 or (bytes > 2 and lines < 2)):
        return 0
    blocks = max(1, padded * bytes // HELD_BYTES)
    return blocks if blocks <= 4 else 0


def blocks_of(
    warps: int = 4, stages: int = 1, group: int = 0, reason: str = "", **blocks: int
) -> Schedule:
    """A schedule with the given blocks, by name; the rest of the arguments as in Schedule."""
    return Schedule(
        blocks=tuple(blocks.items()), warps=warps, stages=stages, group=group, reason=reason
    )


def sort_schedule(target: Target, length: int) -> Schedule:
    """Blocks "m" (elements placed by a program) and "n" (elements compared at once)."""
    length = block_of(length, 1 << 20)
    if not target.is_cuda:
        return blocks_of(m=min(length, 64), n=min(length, 512))
    return blocks_of(m=min(power_of_two(length), 64), n=min(power_of_two(length), 64))
