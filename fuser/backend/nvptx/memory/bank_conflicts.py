"""Where elements of shared tiles lie, and the bank conflicts of stores in a layout."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fuser.backend.nvptx.ir.values import SharedTile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout

WORD, BANKS = 4, 32
"""Bytes of a bank, and how many there are: what a request for up to 128 bytes moves at once."""


def swizzled(tile: SharedTile, rows: Any, columns: Any) -> Any:
    """Bytes from the beginning of a shared tile to an element, or to those of arrays of
    coordinates. A row of a block of `span` bytes has its chunks of 16 bytes permuted by the row's
    number, as the copy engine does it."""
    if tile.flat:
        return (rows if tile.inner == 0 else columns) * tile.dtype.bytes
    line, along = (rows, columns) if tile.inner == 1 else (columns, rows)
    along = along * tile.dtype.bytes
    block, inside = along // tile.span, along % tile.span
    swizzle_row = {128: line & 7, 64: line >> 1 & 3, 32: line >> 2 & 1}[tile.span]
    chunk = (inside // 16) ^ swizzle_row
    return block * tile.block_bytes + line * tile.span + chunk * 16 + inside % 16


def store_cycles(tile: SharedTile, layout: Layout) -> int:
    """How often a warp takes its banks to write a tile of 16-bit elements or wider in vectors: once
    for each group of lanes with 128 bytes together, and again for each word that has the bank of
    another one's."""
    width = min(layout.vector(tile.inner), 16 // tile.dtype.bytes)
    bytes_ = max(WORD, width * tile.dtype.bytes)
    lanes = min(32, WORD * BANKS // bytes_)
    total = 0
    for first in range(0, 32, lanes):
        words: dict[int, set[int]] = defaultdict(set)
        for lane in range(first, first + lanes):
            at = swizzled(tile, *_place(layout, lane))
            for word in range(at // WORD, (at + bytes_ - 1) // WORD + 1):
                words[word % BANKS].add(word)
        total += max(map(len, words.values()))
    return total * len(layout.regs) // width


def _place(layout: Layout, lane: int) -> Coordinates:
    """The coordinates of a lane's first element."""
    found = [0] * len(layout.shape)
    for bit, basis in enumerate(layout.lanes):
        if lane >> bit & 1:
            found = [a + b for a, b in zip(found, basis, strict=True)]
    return tuple(found)


__all__ = ["store_cycles", "swizzled"]
