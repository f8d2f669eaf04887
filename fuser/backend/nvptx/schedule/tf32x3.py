"""float32 matmuls on Hopper's asynchronous tensor cores, at float32's accuracy.

x = big + small, two tf32 numbers that keep 21 bits of x; a product is small*big + big*small +
big*big. The left operand is split in registers, where the warp group that owns its rows holds it.
The right operand is split once for all of them: the copy engine fetches it as it is in memory, the
warps write its two parts into shared memory with k innermost, as the unit wants 32-bit operands.

The unit truncates its sums: those of an iteration start afresh and are added in float32.

    split the right operand of iteration 0; barrier
    for every iteration but the last:
        issue the matmuls, splitting the left operand step by step
        split the right operand of the next iteration into the other buffer; barrier
        release the stage; wait for the matmuls, add them to the sums; barrier
    the last iteration

Two blocks share a multiprocessor, so that one multiplies while the other waits.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, SharedTile, Slot, Tile, tile_bytes
from fuser.backend.nvptx.layouts.assignment import DotPlan, trip_count
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.schedule.consumer_warps import release
from fuser.backend.nvptx.schedule.producer_ring import Stream, advance, wait_barrier
from fuser.backend.nvptx.schedule.wgmma import accumulate, wait
from fuser.tilegen import ops


class Tf32x3Loop:
    """Emits a loop that accumulates one float32 matmul."""

    def __init__(self, low: Builder, stream: Stream, dot: ops.Dot) -> None:
        self.low, self.stream, self.dot = low, stream, dot
        self.plan: DotPlan = low.assignment.dots[dot]
        k, n = dot.b.shape
        self.operand_bytes = tile_bytes((k, n), 0, dot.b.dtype)
        self.slot: Slot = low.shared.allocate(4 * self.operand_bytes, 1024)

    def emit(self, sums: Tile) -> Tile:
        """The whole loop: sums plus its matmuls."""
        low, e, stream = self.low, self.low.scalars, self.stream
        self._fill(0, 0, 0)
        iteration, stage, phase, buffer = (e.name_of() for _ in range(4))
        param, total = low.like(sums), low.like(sums)
        loop = low.region(gpu.For(
            stop=trip_count(stream.loop) - 1, scalars=(iteration, stage, phase, buffer),
            firsts=(0, 0, 0, 0), params=(param,), inits=(sums,), body=ir.Block(), certain=True,
            results=(total,),
        ))  # fmt: skip
        after, flipped = advance(low, stream, stage, phase)
        other = e.compute("xor", buffer, 1)
        flying = self._issue(stage, buffer)
        self._fill(after, flipped, other)
        self._barrier()
        for channel in stream.channels:
            release(low, stream, channel, stage)
        end = self._accumulated(param, flying)
        self._barrier()
        following = e.compute("add", iteration, 1)
        low.do(gpu.Yield(scalars=(following, after, flipped, other), values=(end,)))
        loop.following()
        result = self._accumulated(total, self._issue(after, other))
        low.shared.free(self.slot)
        return result

    def _operands(self, stage: Operand) -> tuple[SharedTile, SharedTile]:
        """Both operands of an iteration, as the copy engine fetches them."""
        low = self.low
        for channel in self.stream.channels:
            for load, tile in zip(channel.loads, channel.tiles, strict=True):
                low.env[load.result] = tile.at_stage(low.scalars.times(stage, tile.bytes))
        for op in self.stream.loop.body.ops:
            if isinstance(op, ops.Permute):
                low.op(op)
        left, right = low.env[self.dot.a], low.env[self.dot.b]
        assert isinstance(left, SharedTile) and isinstance(right, SharedTile)
        return left, right

    def _split_tiles(self, buffer: Operand) -> list[SharedTile]:
        """Big and small of the right operand in one of two buffers."""
        e = self.low.scalars
        at = e.times(buffer, 2 * self.operand_bytes)
        k, n = self.dot.b.shape
        return [
            SharedTile(self.dot.b.dtype, (k, n), 0, self.slot, e.plus(at, i * self.operand_bytes))
            for i in range(2)
        ]

    def _fill(self, stage: Operand, phase: Operand, buffer: Operand) -> None:
        """Wait for an iteration's operands and split the right one."""
        low = self.low
        for channel in self.stream.channels:
            wait_barrier(low, self.stream.full(low, channel, stage), phase)
        source = self._operands(stage)[1]
        big, small = self._split_tiles(buffer)
        low.do(gpu.SplitRight(source=source, big=big, small=small))

    def _barrier(self) -> None:
        """All are done with what is given back, or with what is overwritten."""
        self.low.do(gpu.Barrier(threads=32 * self.low.warps, team=self.low.shared.group))

    def _issue(self, stage: Operand, buffer: Operand) -> Tile:
        """The matmuls of an iteration, in flight."""
        low, plan, acc = self.low, self.plan, self.dot.acc
        assert plan.grid is not None
        left = self._operands(stage)[0]
        big, small = self._split_tiles(buffer)
        made = low.new(acc.dtype, acc.shape, plan.accumulator, "flying")
        k = self.dot.b.shape[0]
        return low.add(
            gpu.WgmmaSplit(grid=plan.grid, k=k, a=left, big=big, small=small, results=(made,))
        )

    def _accumulated(self, total: Tile, flying: Tile) -> Tile:
        """total plus what the matmuls of an iteration come to, when they are complete."""
        return accumulate(self.low, total, wait(self.low, [flying], 0)[0])
