"""How blocks of a GPU share the tiles that whole waves leave over
(backend/nvptx/tile_scheduler/stream_k.py)."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PARTS = 4
"""Blocks that share a tile at most: the head adds the sums of the others one after the other."""


@dataclass(frozen=True)
class Cut:
    """How `left` tiles of `iterations` iterations are cut for so many blocks: each into a head of
    `first` iterations and `parts` more of at most `length`; a block does such a part of `run`
    tiles."""

    left: int
    iterations: int
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
    def waves(self) -> float:
        """The part of a wave that the cut tiles take, sums apart."""
        return max(self.first, self.run * self.length) / self.iterations


def cut_tiles(left: int, iterations: int, blocks: int, most: int = MAX_PARTS) -> Cut | None:
    """The cut of the tiles left over that takes the least time, of at most `most` parts; None where
    there is none."""
    if not 0 < left < blocks or iterations < 2:
        return None
    spare = blocks - left
    if spare >= left:
        length = -(-iterations // min(blocks // left, most))
        return Cut(left, iterations, length, length, -(-iterations // length) - 1, 1)
    run = -(-left // spare)
    first = -(-iterations * run // (run + 1))
    return Cut(left, iterations, first, iterations - first, 1, run) if first < iterations else None
