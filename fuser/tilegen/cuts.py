"""How blocks of a GPU share the tiles that whole turns leave over (backend/nvptx/shares.py)."""

from __future__ import annotations

from dataclasses import dataclass

MOST_PARTS = 4
"""Blocks that share a tile at most: the head adds the sums of the others one after the other."""


@dataclass(frozen=True)
class Cut:
    """How `left` tiles of `trips` trips are cut for so many blocks: each into a head of `first`
    trips and `parts` more of at most `length`; a block does such a part of `run` tiles."""

    left: int
    trips: int
    first: int
    length: int
    parts: int
    run: int

    @property
    def lists(self) -> int:
        """Blocks that do the same part, of other tiles."""
        return -(-self.left // self.run)

    @property
    def tails(self) -> int:
        """Blocks that do later parts."""
        return self.lists * self.parts

    @property
    def turn(self) -> float:
        """What the cut tiles take of the time of a whole one, sums apart."""
        return max(self.first, self.run * self.length) / self.trips


def cut_tiles(left: int, trips: int, blocks: int, most: int = MOST_PARTS) -> Cut | None:
    """The cut of the tiles left over that takes the least time, of at most `most` parts; None where
    there is none."""
    if not 0 < left < blocks or trips < 2:
        return None
    spare = blocks - left
    if spare >= left:
        length = -(-trips // min(blocks // left, most))
        return Cut(left, trips, length, length, -(-trips // length) - 1, 1)
    run = -(-left // spare)
    first = -(-trips * run // (run + 1))
    return Cut(left, trips, first, trips - first, 1, run) if first < trips else None
