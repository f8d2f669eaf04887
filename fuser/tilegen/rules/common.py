"""What the schedule rules of all targets share: sizes of blocks, open ones included."""

from __future__ import annotations

from math import prod

from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.schedule import Schedule

MAX_SYMBOLIC_ROWS = 32
"""The block of a number of queries of any size."""
MAX_SYMBOLIC_KEYS = 64
"""The block of a number of keys of any size: what hangs over is computed in vain."""
MAX_SYMBOLIC_DEPTH = 256
"""The block of a contracted dim of any size."""
MAX_BLOCK_ELEMENTS = 4096
"""Elements of a block of rows at most, where a size is open or the target is a CPU: about 10
microseconds of simple work would be more, but the runtime hands out chunks of programs."""


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


FEW_ROWS, STREAMED = 16, 1024
"""Rows of a block, and the k from which on it waits for its weights alone."""
NARROWEST, WIDEST = 16, 128
"""Columns of such a block, of all accumulators (Target.one_wave_columns has as few as suffice)."""


def blocks_of(
    warps: int = 4, stages: int = 1, group: int = 0, reason: str = "", **blocks: int
) -> Schedule:
    """A schedule with the given blocks, by name; the rest of the arguments as in Schedule."""
    return Schedule(
        blocks=tuple(blocks.items()), warps=warps, stages=stages, group=group, reason=reason
    )


def map_extents(extents: list[int], lead: int | None) -> tuple[int, int]:
    """(rows, columns) that a block of a map has at most. lead: see `MapRule`."""
    columns = block_of(extents[-1], MAX_BLOCK_ELEMENTS)
    rows = extents[lead] if lead is not None else prod(extents[:-1])
    if is_symbolic(*extents):
        rows = power_of_two(size_hint(rows))
    return rows, columns


def reduced_extents(rows: int, total: int, columns: int) -> tuple[int, int, int]:
    """The extents of a reduction as its blocks see them: open ones by their examples."""
    if is_symbolic(rows, total, columns):
        # the comparison leaves a guard: a plan for rows in one piece serves no others
        several = columns != 1 and size_hint(columns) > 1
        long = size_hint(total) > MAX_BLOCK_ELEMENTS or several
        if is_symbolic(total):
            # columns are as fast in chunks; a row is best in one piece
            chunk = MAX_SYMBOLIC_KEYS if several else MAX_BLOCK_ELEMENTS
            total = block_of(total, chunk) if long else cover(total)
        rows, columns = block_of(rows, MAX_BLOCK_ELEMENTS), block_of(columns, MAX_BLOCK_ELEMENTS)
    return rows, total, columns
