"""Clusters: blocks that share one program and exchange data through each other's shared memory.

A tile is spread over the warps of all blocks: the number of the block in its cluster gives the bits
of the warp number above those of a block. What stays within a thread needs nothing new. A reduction
ends with an exchange: every block writes its partial result into all of them, and all fold the
parts in the order of block numbers, so that all have the same bits. A loop that accumulates a
matmul, or values that can be merged (cluster/reduction_merge.py), is cut into ranges of iterations,
one a block, and the sums of all are added up after it, also in the order of the blocks, each by
the thread that goes on with it.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import row_major
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.integers import first_block_bit
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.dtypes import DType
from fuser.tilegen import ops

LARGEST = 8
"""Blocks of a cluster that every Hopper GPU can run."""


def can_send(dtype: DType) -> bool:
    """Whether remote stores that complete on a barrier have elements of this size."""
    return dtype.bits in (32, 64)


class NeedsOneBlock(Exception):
    """Something in the kernel cannot be spread over blocks; it is lowered again for single ones."""


class Cluster:
    """The blocks of a program. The blocks have all started when `wait` returns first."""

    def __init__(self, low: Recording, blocks: int) -> None:
        self.low = low
        self.blocks = blocks
        self.bits = blocks.bit_length() - 1
        self.arrived = False
        self.started = False  # whether barriers made at the head of the kernel are known to all

    def begin(self) -> None:
        """Tell the other blocks that this one runs, so that its shared memory may be written."""
        if self.blocks > 1 and not self.low.assignment.dots:
            self._arrive(relaxed=True)
            self.started = True

    def wait_for_start(self) -> None:
        """Every block runs and has made its barriers."""
        if self.arrived:
            self._wait()

    @property
    def first_bit(self) -> int:
        """The lowest bit of a thread's number that tells the block in its cluster."""
        return first_block_bit(self.low.warps, self.blocks)

    def stay_in_block(self, what: str, *layouts: Layout) -> None:
        """Raises NeedsOneBlock where tiles of these layouts are spread over blocks."""
        over = (any(basis) for layout in layouts for basis in layout.bits[self.first_bit :])
        if self.blocks > 1 and any(over):
            raise NeedsOneBlock(what)

    def enter_reduction(self, op: ops.Reduce, layout: Layout) -> None:
        """A reduction over blocks may run once only: nothing keeps a second exchange from the same
        slot. layout: of what is reduced."""
        if self.low.assignment.home[op.result] is not self.low.kernel.body:
            self.stay_in_block("a reduction in a loop", layout)

    def split(self, bits: list[int]) -> tuple[list[int], list[int]]:
        """(bits of a warp's number in its block, bits of the block's number) of a list of bits of
        the warp number."""
        if self.blocks == 1:
            return bits, []
        inside = self.first_bit - 5
        return [b for b in bits if b < inside], [b - inside for b in bits if b >= inside]

    def _arrive(self, relaxed: bool = False) -> None:
        """What was written before can be read by every block after its `_wait`."""
        self.low.do(gpu.ClusterArrive(relaxed=relaxed))
        self.arrived = True

    def _wait(self) -> None:
        self.low.do(gpu.ClusterWait())
        self.arrived = False

    def finish(self) -> None:
        """Wait for an arrival that nothing has waited for."""
        if self.arrived:
            self._wait()

    def splits(self, loop: ops.For) -> bool:
        """Whether the blocks share the iterations of a loop."""
        plan = self.low.assignment
        dots = (plan.dots[op] for op in loop.body.ops if isinstance(op, ops.Dot))
        return loop in plan.reduction_merges or any(dot.blocks > 1 for dot in dots)

    def publish(self) -> None:
        """What this block wrote into its shared memory can be read by the others, and theirs."""
        self._arrive()
        self._wait()

    def done_reading(self) -> None:
        """The other blocks may end, for all that this one reads of them."""
        self._arrive()

    def exchange(self, values: list[Tile]) -> list[list[Tile]]:
        """For every block of the cluster, in order, its elements of some tiles of one layout.

        Each block has a slot with a place for the parts of all, which nothing else uses: a block
        that is late may find it written. One thread writes a part to one block. Where a barrier can
        count the bytes, a slot and its barrier serve one exchange, so nobody has to tell when they
        are free; a block that has all parts is written to no more, and may end.
        """
        low, like = self.low, values[0]
        layout, dtype = like.layout, like.dtype
        inside = self.first_bit
        free_bits = [bit for bit in range(inside) if not any(layout.bits[bit])]
        if len(free_bits) < self.bits:
            raise NeedsOneBlock("a reduction whose result no threads repeat")
        counted = self.started and can_send(dtype)
        if not counted and self.arrived:
            self._wait()  # every block has started, or has read what was there before
        size, _ = row_major(layout.shape, dtype.bytes * len(values))
        slot = low.shared.allocate(size * self.blocks, early=True)
        if counted:
            barrier = low.shared.allocate(8, 8, early=True)
            senders = 1 << (inside - len(free_bits))
            bytes_ = senders * len(layout.regs) * len(values) * dtype.bytes * self.blocks
            low.do(gpu.ExpectParts(barrier=barrier, bytes=bytes_))
            self.wait_for_start()
            low.do(gpu.SendParts(slot=slot, values=tuple(values), barrier=barrier))
            at = low.scalar_of(gpu.Address(slot=barrier))
            low.do(gpu.MbarrierWait(barrier=at, parity=0))
            low.do(gpu.Reread())
        else:
            low.do(gpu.SendParts(slot=slot, values=tuple(values)))
            self._arrive()
            self._wait()
        found = [
            [low.new(v.dtype, v.shape, v.layout, "part") for v in values]
            for _ in range(self.blocks)
        ]
        low.do(gpu.ReadParts(
            slot=slot, parts=tuple(range(self.blocks)), count=len(values),
            results=tuple(tile for part in found for tile in part),
        ))  # fmt: skip
        return found
