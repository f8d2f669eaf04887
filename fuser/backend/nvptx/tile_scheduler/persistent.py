"""Persistent kernels: a block for each multiprocessor, which runs programs of the grid in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.ir.warp_transpose import BUFFER
from fuser.backend.nvptx.layouts.assignment import trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.scalars import is_scalar_arithmetic
from fuser.backend.nvptx.memory.operand_staging import shared_tile_for
from fuser.backend.nvptx.memory.tensor_map import add_map
from fuser.backend.nvptx.memory.tma_boxes import box_of
from fuser.backend.nvptx.schedule.dot_chain import find_dot_chain
from fuser.backend.nvptx.schedule.producer_ring import Channel
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import TileScheduler
from fuser.tilegen import ops


class Persistent(TileScheduler):
    """Programs in the order of the raster: a block has that of its own number, and then every
    `blocks`th. Of open sizes there may be fewer programs than blocks: those beyond find nothing to
    do."""

    def __init__(self, low: Builder, blocks: int) -> None:
        self.low, self.blocks = low, blocks
        self._program = ""

    def first(self) -> Operand:
        return self.low.scalars.head.register(f"{self.low.order.unit}.x")

    def next(self, at: Operand, tiles: Operand = 1) -> Operand:
        e = self.low.scalars
        return e.plus(at, e.times(tiles, self.blocks))

    def is_tile(self, at: str) -> str:
        e = self.low.scalars
        self._program = self.program(at)
        return e.compare("ult", self._program, e.size(self.low.order.programs))

    def program(self, at: str) -> str:
        """The number of the program; not below that of programs where the block is done."""
        return at

    def iterations(self, loop: ops.For, at: Operand) -> Operand:
        return trip_count(loop)

    @contextmanager
    def tile(self, at: str) -> Iterator[None]:
        self.low.order.choose(self.low.scalars, self._program)
        yield


def begin(low: Builder) -> None:
    """Prepare the blocks of a kernel that a producer warp feeds: what is there for all tiles."""
    e, shared, groups = low.scalars, low.shared, low.producer.consumer_groups
    if groups > 1:
        low.producer.alternate(shared.allocate(8 * groups, 16))
        number = e.head.compute("lshr", e.tid, (32 * low.warps).bit_length() - 1)
        shared.divide(groups, e.head.lane(number, 0))
    if low.scheduler.blocks or low.producer.counters:
        shared.keep_warp_buffers(BUFFER * low.warps)
    if low.scheduler.blocks and any(find_dot_chain(low, s) for s in low.producer.streams.values()):
        low.producer.resident.update(_resident_loads(low))


def _resident_loads(low: Builder) -> dict[ops.Load, Channel]:
    """Operands from before the loop that the producer can fetch."""
    found: dict[ops.Load, Channel] = {}
    for op in low.kernel.body.ops:
        if not isinstance(op, ops.Load) or op not in low.assignment.staged:
            continue
        box = box_of(op, low.assignment.accesses[op])
        makers = [low.assignment.makers[value] for value in op.operands()]
        if box is None or not all(map(is_scalar_arithmetic, makers)):
            continue
        tile = shared_tile_for(low, op)
        if tile.shape != op.shape:
            low.shared.cancel(tile.slot)
            continue
        channel = Channel([op], [box], [], [tile], [add_map(low, op, box, tile)])
        channel.use_barriers(low.shared.allocate(16, 16))
        found[op] = channel
    return found
