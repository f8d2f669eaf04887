"""Schedules of maps, reductions and sorts on a GPU: tiles are spread over warps, their dims are
powers of two, and there should be a few blocks for each multiprocessor."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.rules.common import (
    block_of,
    blocks_of,
    ceildiv,
    map_extents,
    power_of_two,
    reduced_extents,
)
from fuser.tilegen.schedule import Schedule


def map_schedule(target: Target, extents: list[int], lead: int | None, item_bytes: int) -> Schedule:
    """Blocks of a map: see `MapRule`."""
    total = prod(size_hint(extent) for extent in extents)
    rows, columns = map_extents(extents, lead)
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
    target: Target, rows: int, total: int, columns: int, item_bytes: int = 4, reads: int = 0,
    held: tuple[int, int, int] = (0, 0, 0),
) -> Schedule:  # fmt: skip
    """Blocks of a reduction: see `ReduceRule`. Several blocks may share a row."""
    if columns == 1 and not is_symbolic(total) and held_blocks(target, total, *held):
        cluster, height = held_blocks(target, total, *held), 1
        many = not is_symbolic(rows) and rows >= target.units
        if cluster == 2 and held[1] == 2 and held[2] > 1 and many:
            cluster, height = 4, 2  # what rows share is read from the L2 once for both
        schedule = blocks_of(warps=8, rows=height, columns=1, total=power_of_two(total))
        return replace(schedule, cluster=cluster, resident_rows=True)
    rows, total, columns = reduced_extents(rows, total, columns)
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
    near = item_bytes <= 2 and part >= 512 and rows * total * item_bytes <= NEAR
    while near and part * height < 4096 and rows // (height * 2) >= 4 * target.units:
        height *= 2
        warps = max(1, part * height // 2048)
    schedule = blocks_of(warps=power_of_two(warps), rows=height, columns=1, total=whole)
    return replace(schedule, cluster=cluster)


NEAR = 16 << 20
"""Bytes of rows that the L2 still has from the kernel in front: they come so soon that what a block
takes to start counts, and fewer, larger ones are faster."""
ROW_ELEMENTS = 16384
"""Elements of a row that a block keeps in registers."""


def row_blocks(target: Target, padded: int, reads: int, item_bytes: int) -> int:
    """Blocks that share a row, where the target has clusters: as many as hold it in registers. A
    row that eight blocks cannot hold is read twice, by one."""
    if not target.clusters or not ROW_ELEMENTS < padded <= 8 * ROW_ELEMENTS:
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
    if not target.clusters or padded < ROW_ELEMENTS or not values or total * bytes % (16 * values):
        return 0
    if padded == ROW_ELEMENTS and (values > 1 or (bytes > 2 and lines < 2)):
        return 0
    blocks = max(1, padded * bytes // HELD_BYTES)
    return blocks if blocks <= 4 else 0


def sort_schedule(target: Target, length: int) -> Schedule:
    """Blocks of a sort: see `SortRule`."""
    length = block_of(length, 1 << 20)
    return blocks_of(m=min(power_of_two(length), 64), n=min(power_of_two(length), 64))
