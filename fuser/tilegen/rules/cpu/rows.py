"""Schedules of maps, reductions and sorts on a CPU: a block is enough work for one program."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.tilegen.rules.common import (
    MAX_BLOCK_ELEMENTS,
    block_of,
    blocks_of,
    map_extents,
    reduced_extents,
)
from fuser.tilegen.schedule import Schedule


def map_schedule(target: Target, extents: list[int], lead: int | None, item_bytes: int) -> Schedule:
    """Blocks of a map: see `MapRule`."""
    rows, columns = map_extents(extents, lead)
    if lead is not None:
        return blocks_of(rows=min(rows, 32), columns=min(columns, 64), reason="transpose")
    width = min(columns, MAX_BLOCK_ELEMENTS)
    return blocks_of(rows=max(1, min(rows, MAX_BLOCK_ELEMENTS // width)), columns=width)


def reduce_schedule(
    target: Target, rows: int, total: int, columns: int, item_bytes: int = 4, reads: int = 0,
    held: tuple[int, int, int] = (0, 0, 0),
) -> Schedule:  # fmt: skip
    """Blocks of a reduction: see `ReduceRule`. A core has its rows to itself, in its caches."""
    rows, total, columns = reduced_extents(rows, total, columns)
    width = min(columns, 64) if columns > 1 else 1
    height = max(1, min(rows, MAX_BLOCK_ELEMENTS // max(1, total * width)))
    return blocks_of(rows=height, columns=width, total=total)


def sort_schedule(target: Target, length: int) -> Schedule:
    """Blocks of a sort: see `SortRule`."""
    length = block_of(length, 1 << 20)
    return blocks_of(m=min(length, 64), n=min(length, 512))
