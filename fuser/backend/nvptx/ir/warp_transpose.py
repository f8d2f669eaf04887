"""Where the elements of an accumulator tile lie while a warp transposes it in its buffer, strip
by strip: what the builder plans with, and the rules write by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.base.forks import cached_property

ROWS, PITCH = 16, 128
"""Rows of a strip, and bytes of a row in the buffer."""
BUFFER = ROWS * PITCH
"""Bytes of shared memory that a warp has for itself."""


@dataclass(frozen=True)
class WarpTranspose:
    """layout: of the accumulator. bands: first rows of a warp's strips. start, columns: of a warp.
    width: columns of a strip (the last may stick out). vector: elements of an access to memory."""

    layout: Layout
    bands: tuple[int, ...]
    start: int
    columns: int
    width: int
    vector: int

    @property
    def end(self) -> int:
        return self.start + self.columns

    def groups(self) -> Iterator[tuple[int, int, list[Coordinates]]]:
        """(band, first column, offsets of its vectors) of every strip."""
        across = min(32 * self.vector, self.width)
        step = 32 * self.vector // across
        for band in self.bands:
            for first in range(self.start, self.end, self.width):
                offsets: list[Coordinates] = [
                    (band + row, first + column)
                    for row in range(0, ROWS, step)
                    for column in range(0, self.width, across)
                ]
                yield band, first, offsets

    def blocks(self, first: int) -> Iterator[tuple[int, int]]:
        """(column, how many blocks of 8 columns) that are turned at once, of the strip that begins
        at a column."""
        for column in range(first, min(first + self.width, self.end), 16):
            yield column, 2 if column + 16 <= self.end else 1

    @cached_property
    def memory_layout(self) -> Layout:
        """The layout in which memory is accessed, `vector` elements at once."""
        lanes: list[Coordinates] = []
        at = self.vector
        while len(lanes) < 5 and at < self.width:
            lanes.append((0, at))
            at *= 2
        lanes += [(1 << bit, 0) for bit in range(5 - len(lanes))]
        regs = tuple(
            (row, column + i)
            for _, _, offsets in self.groups()
            for row, column in offsets
            for i in range(self.vector)
        )
        rows, columns = self.layout.shape
        covered = (rows, columns + -self.columns % self.width)
        return Layout(covered, regs, tuple(lanes), self.layout.warps)


def warp_transpose_in(layout: Layout, width: int, vector: int) -> WarpTranspose | None:
    """The strips of an accumulator layout; None where it is none of whole blocks of 16 rows and 8
    columns."""
    rows = sorted({row for row, _ in layout.regs})
    columns = sorted({column for _, column in layout.regs})
    bands = tuple(row for row in rows if row % 16 == 0)
    blocks = [column for column in columns if column % 8 == 0]
    if rows != [band + half for band in bands for half in (0, 8)]:
        return None
    start = columns[0]
    if columns != [start + 8 * i + pair for i in range(len(blocks)) for pair in (0, 1)]:
        return None
    if len(layout.regs) != len(rows) * len(columns):
        return None
    return WarpTranspose(layout, bands, start, 8 * len(blocks), width, vector)
