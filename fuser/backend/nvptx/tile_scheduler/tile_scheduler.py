"""What a tile scheduler is: which tiles a block computes, and how much of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.tilegen import ops


class TileScheduler:
    """The tiles of a block. This one is that of a plain grid: a block has the one tile that the
    hardware numbers. Others are persistent: a block has the tiles at `first`, at what `next` gives
    then, and so on, until a number is no tile; the loop over them is recorded in one place
    (tile_scheduler/tile_loop.py).

    blocks: those to launch, or multicast clusters of them; 0: one for each tile. blocks_per_sm:
    blocks that a multiprocessor holds; 0: as many as fit.
    """

    blocks = 0
    blocks_per_sm = 0

    def first(self) -> Operand:
        """The number of this block's first tile."""
        raise NotImplementedError

    def next(self, at: Operand, tiles: Operand = 1) -> Operand:
        """The number that is so many tiles after another: one, or none."""
        raise NotImplementedError

    def is_tile(self, at: str) -> str:
        """The condition under which a number is a tile: the block is done where it is not."""
        raise NotImplementedError

    def iterations(self, loop: ops.For, at: Operand) -> Operand:
        """Iterations of a loop in the tile of a number, by which a ring moves on."""
        raise NotImplementedError

    @contextmanager
    def tile(self, at: str) -> Iterator[None]:
        """What is recorded meanwhile is of the tile at this number; `is_tile` was asked before."""
        raise NotImplementedError
        yield

    def bounds(self, start: Operand, stop: Operand) -> tuple[Operand, Operand]:
        """What of the range of a loop belongs to the tile that is recorded."""
        return start, stop

    def complete(self, finals: list[Tile]) -> list[Tile]:
        """The sums of a whole tile, of those that its loop has here."""
        return finals
