"""Multicast clusters: programs side by side in the grid whose blocks share their loads.

Blocks that read the same tile of an operand, which the program numbers in its index arithmetic
tell, fetch a slice of it each, and the copy engine delivers every slice to all of them: a tile is
requested from the L2 once a cluster instead of once a block. A block's "full" barrier counts the
bytes of all slices, whoever sent them; its "empty" barrier is complete when the readers of a stage
have arrived in every block that it sends to. So consumers release a stage to all blocks that may
write it. No block ends before all that is sent to its barriers has come: the producer waits for its
last stages to be empty.

An arrival in another block tells nothing of what was written: matmuls that have been waited for
have read their operands, and there is nothing to be made visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.cluster.cluster import LARGEST, NeedsOneBlock
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, SharedTile
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.memory.tma_boxes import MulticastSlice
from fuser.backend.nvptx.schedule.producer_ring import Channel, Stream, arrive_where
from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value


def multicast_shape_of(kernel: Kernel, target: Target) -> tuple[int, int]:
    """Programs along the last two axes of the grid that form a cluster: as the schedule says,
    where the target has clusters and the grid divides by them."""
    found = _shape_or_reason(kernel, target)
    return (1, 1) if isinstance(found, str) else found


def decide_multicast(kernel: Kernel, target: Target, shape: tuple[int, int]) -> Decision | None:
    """Why the programs of a cluster fetch for each other or not; None where nobody asked."""
    if math.prod(kernel.schedule.neighbours) == 1:
        return None
    found = _shape_or_reason(kernel, target)
    if math.prod(shape) > 1:
        programs = f"{shape[0]} x {shape[1]}"
        return Decision(MECHANISM, True, f"{programs} programs fetch operands for each other")
    return Decision(
        MECHANISM, False, found if isinstance(found, str) else "no producer warp feeds its loops"
    )


MECHANISM = "multicast"


def _shape_or_reason(kernel: Kernel, target: Target) -> tuple[int, int] | str:
    """Programs that form a cluster, or why each is for itself."""
    rows, columns = kernel.schedule.neighbours
    powers = all(n & (n - 1) == 0 for n in (rows, columns))
    if not target.wgmma:
        return f"{target.arch} has no TMA here"
    if not powers or not 1 < rows * columns <= LARGEST:
        return f"{rows} x {columns} programs are no cluster"
    grid = kernel.grid
    if len(grid) < 2 or is_symbolic(*grid[-2:]) or kernel.schedule.cluster > 1:
        return "the grid has one axis, is open, or its programs are shared already"
    if grid[-2] % rows or grid[-1] % columns:
        return f"a grid of {grid[-2]} x {grid[-1]} does not divide by {rows} x {columns}"
    return rows, columns


class MulticastCluster:
    """The cluster of a kernel whose blocks have a program each; `shape` (1, 1) where it has none.
    Block number r of it is in row r // columns and column r % columns."""

    def __init__(self, low: Recording, shape: tuple[int, int]) -> None:
        self.low = low
        self.shape = shape
        self.blocks = math.prod(shape)
        self._peers: dict[ops.Load, list[list[int]]] = {}
        self._arrived = False

    def at_once(self) -> int:
        """How many clusters run at once, of blocks that take a multiprocessor each. Larger ones
        leave some of those idle: 30 of four fit an H200, which has 132."""
        units = self.low.target.units
        if self.blocks > 2:
            units -= units // 8
        return max(1, units // self.blocks)

    def plan(self, streams: Iterable[Stream]) -> None:
        """Find what is shared. Raises NeedsOneBlock where the blocks are not in step, or share
        nothing."""
        if self.blocks == 1:
            return
        for stream in streams:
            loop = stream.loop
            if not (loop.start.is_constant and loop.stop.is_constant):
                raise NeedsOneBlock("a loop whose length depends on the program")
            for channel in stream.channels:
                if not channel.dots or stream.split:
                    continue  # read by threads
                for load, tile in zip(channel.loads, channel.tiles, strict=True):
                    peers = self._find_peers(load)
                    slices = len(peers[0])
                    down = slices // math.gcd(tile.blocks, slices)
                    if slices > 1 and tile.rows % (8 * down) == 0:  # eight rows are a swizzle
                        self._peers[load] = peers
        if not self._peers:
            raise NeedsOneBlock("no operand that programs side by side share")

    def require_streams(self) -> None:
        """Raises NeedsOneBlock if there is such a cluster: blocks that copy by themselves cannot
        share."""
        if self.blocks > 1:
            raise NeedsOneBlock("operands that the copy engine cannot fetch")

    def _find_peers(self, load: ops.Load) -> list[list[int]]:
        """For every block, the blocks that load the same."""
        rows, columns = self.shape
        rank = len(self.low.kernel.grid)
        axes = _program_axes(self.low.kernel, load.operands())
        keys = [
            (r // columns if rank - 2 in axes else 0, r % columns if rank - 1 in axes else 0)
            for r in range(rows * columns)
        ]
        return [[r for r, other in enumerate(keys) if other == key] for key in keys]

    def slice_of(self, load: ops.Load, tile: SharedTile) -> MulticastSlice | None:
        """How a tile is fetched; None where each block fetches its own."""
        if load not in self._peers:
            return None
        peers = self._peers[load]
        across = math.gcd(tile.blocks, len(peers[0]))
        number = self._of_block([group.index(r) for r, group in enumerate(peers)])
        mask = self._of_block([sum(1 << r for r in group) for group in peers])
        return MulticastSlice(across, len(peers[0]) // across, number, mask)

    def _senders(self, channel: Channel) -> list[set[int]]:
        """For every block, those that send it slices of a channel; it sends to the same."""
        return [
            {r}.union(*(self._peers[load][r] for load in channel.loads if load in self._peers))
            for r in range(self.blocks)
        ]

    def senders(self, channel: Channel) -> int:
        """How many blocks send a block its slices of a channel."""
        return len(self._senders(channel)[0])

    def _of_block(self, values: list[int]) -> Operand:
        """The value, of 8 bits, that belongs to this block."""
        if len(set(values)) == 1:
            return values[0]
        e = self.low.scalars
        table = sum(value << (8 * r) for r, value in enumerate(values))
        table -= 1 << 64 if table >> 63 else 0
        bits = e.head.compute("shl", e.rank, 3)
        place = e.head.resize("zext", bits, "i32", "i64")
        word = e.head.resize("trunc", e.head.compute("lshr", table, place, "i64"), "i64", "i32")
        return e.head.compute("and", word, 255)

    def release(self, channel: Channel, barrier: str, threads: int) -> None:
        """Arrive on an empty barrier of a channel in every block that sends it slices: of each
        group of `threads` one thread for each of them."""
        e = self.low.scalars
        number = e.head.compute("and", e.tid, threads - 1)
        senders = self._senders(channel)
        if len(senders[0]) == 1:
            chosen = e.head.compare("eq", number, 0)
        else:
            few = e.head.compute("and", number, self.blocks - 1)
            mask = self._of_block([sum(1 << r for r in group) for group in senders])
            word = e.compute("lshr", mask, few)
            bit = e.resize("trunc", word, "i32", "i1")
            chosen = e.head.compare("ult", number, self.blocks)
            chosen = e.compute("and", chosen, bit, "i1")
        if len(senders[0]) == 1:
            arrive_where(self.low, barrier, chosen)
        else:
            self.low.do(gpu.MbarrierArrive(barrier=barrier, condition=chosen, block=few))

    def meet(self) -> None:
        """Every thread waits for those of all blocks: their barriers are ready for arrivals."""
        if self.blocks == 1:
            self.low.do(gpu.Barrier())
            return
        # what others must see, the barriers, follows a fence of its own
        self.low.do(gpu.ClusterArrive(relaxed=True))
        self.low.do(gpu.ClusterWait())

    def sends(self, stream: Stream) -> list[Channel]:
        """Channels of a stream that send something to other blocks too."""
        return [channel for channel in stream.channels if self.senders(channel) > 1]


def _program_axes(kernel: Kernel, values: Iterable[Value]) -> set[int]:
    """The axes of the grid on which scalars depend."""
    makers = {op.result: op for op in kernel.walk() if len(op.results) == 1 and not op.blocks()}
    found, seen = set[int](), set[Value]()
    todo = list(values)
    while todo:
        value = todo.pop()
        op = makers.get(value)
        if op is None or value in seen:
            continue
        seen.add(value)
        if isinstance(op, ops.ProgramId):
            found.add(op.axis)
        todo += op.operands()
    return found
