"""Stream-K: blocks share the tiles that are left over after whole waves, by steps of their loops.

Whole waves leave multiprocessors idle where their number does not divide the tiles. Here the tiles
left over are done first, by all blocks: as many blocks as there are such tiles have the first part
of one each, the heads; those of lower numbers have the rest of them, each of several tiles one
after the other, or several of one tile where tiles are few. Whole tiles follow, in waves. All cuts
are at the same iterations, so that blocks which read the same rows or columns read them at the same
time. That counts: where every block has the next part of equal length of all iterations in a row,
tiles are cut anywhere, blocks are out of step, and requests for the same lines are no longer
answered together; matmuls run at half the speed then (docs/lab/gpu-stream-k.md).

Who has a later part of a tile leaves its sums in memory and raises a flag. The head waits for these
flags, adds up in the order of the iterations, so that the bits do not depend on who was faster, and
goes on to what follows the loop.

Nothing can wait for ever: a head waits only for blocks of lower numbers, which were started before
it, and these do what it waits for first and wait for nothing. So it does not matter how many blocks
the device can hold at once, or what other kernels run beside. (That blocks start in the order of
their numbers is how the hardware works; CUB's scans rest on it too.) A kernel that starts early
under this one's end (PDL) gets room only when all blocks have started.

Every warp has flags and memory of its own: what a thread adds, the same thread of another block has
left. The flags are a variable of the module, so every plan has its own; the head lowers what was
raised, and all are down when the kernel ends. The memory for sums is a buffer that the runtime
gives (CompiledKernel.workspace_bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.emit.stream_k import FLAGS
from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recorder import Region
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import TileScheduler
from fuser.tilegen import ops
from fuser.tilegen.stream_k import Cut


class StreamK(TileScheduler):
    """What `blocks` blocks, or multicast clusters, do of `tiles` programs with `cut.iterations`
    iterations each, `blocks_per_sm` of them on a multiprocessor. A work unit is a program, or a run
    of its iterations. number, start, stop: the program of the work unit that is being emitted, its
    first iteration and the one after its last.

    Where a block is, is one number: program * iterations + iteration. The programs left over come
    first.
    """

    def __init__(
        self, low: Builder, loop: ops.For, tiles: int, blocks: int, cut: Cut, blocks_per_sm: int = 1
    ) -> None:
        self.low, self.loop = low, loop
        self.tiles, self.blocks, self.cut = tiles, blocks, cut
        self.blocks_per_sm = blocks_per_sm
        self.number: Operand = 0
        self.start: Operand = 0
        self.stop: Operand = 0
        self.skip: Region | None = None

    # what belongs to whom -----------------------------------------------------------------------

    def _read(self, name: str) -> str:
        """A number that the hardware knows, read anew: what is made of it and kept would take
        registers from the sums."""
        return self.low.scalar_of(gpu.ReadRegister(register=f"{name}.x"))

    def _whole(self, block: Operand) -> Operand:
        """Where a block's whole tiles begin."""
        e = self.low.scalars
        return e.times(e.plus(block, self.cut.left), self.cut.iterations)

    def first(self) -> Operand:
        e, cut = self.low.scalars, self.cut
        block = self._read(self.low.order.unit)
        part = e.compute("udiv", block, cut.lists)
        number = e.times(e.minus(block, e.times(part, cut.lists)), cut.run)
        iteration = e.plus(e.times(part, cut.length), cut.first)
        tail = e.plus(e.times(number, cut.iterations), iteration)
        own = e.minus(block, cut.tails)
        is_tail = e.compare("ult", block, cut.tails)
        is_head = e.compare("ult", own, cut.left)
        head = e.pick(is_head, e.times(own, cut.iterations), self._whole(block))
        return e.pick(is_tail, tail, head)

    def work_unit(self, at: Operand) -> tuple[Operand, Operand, Operand]:
        """The work unit at `at`: (program, its first iteration, the one after its last)."""
        e, cut = self.low.scalars, self.cut
        number = e.compute("udiv", at, cut.iterations)
        first = e.minus(at, e.times(number, cut.iterations))
        is_head = e.compare("eq", first, 0)
        stop = e.pick(is_head, cut.first, e.plus(first, cut.length))
        stop = e.compute("umin", stop, cut.iterations)
        is_left = e.compare("ult", number, cut.left)
        return number, first, e.pick(is_left, stop, cut.iterations)

    def next(self, at: Operand, tiles: Operand = 1) -> Operand:
        e, cut = self.low.scalars, self.cut
        number, first, _ = self.work_unit(at)
        following = e.compute("add", number, 1)
        more = e.compare("ne", first, 0)
        more = e.compute("and", more, e.compare("ult", following, cut.left), "i1")
        in_list = e.compare("ne", e.compute("urem", following, cut.run), 0)
        more = e.compute("and", more, in_list, "i1")
        whole = self._whole(self._read(self.low.order.unit))
        then = e.pick(more, e.plus(at, cut.iterations), whole)
        is_left = e.compare("ult", number, cut.left)
        after = e.pick(is_left, then, e.plus(at, self.blocks * cut.iterations))
        return after if tiles == 1 else e.pick(e.compare("ne", tiles, 0), after, at)

    def is_tile(self, at: str) -> str:
        return self.low.scalars.compare("ult", at, self.tiles * self.cut.iterations)

    def iterations(self, loop: ops.For, at: Operand) -> Operand:
        _, first, stop = self.work_unit(at)
        return self.low.scalars.minus(stop, first)

    @contextmanager
    def tile(self, at: str) -> Iterator[None]:
        self.number, self.start, self.stop = self.work_unit(at)
        self.low.order.choose(self.low.scalars, self.number)
        self.skip = None
        yield
        if self.skip is not None:
            self.low.do(gpu.Yield())
            self.skip.following()

    def bounds(self, start: Operand, stop: Operand) -> tuple[Operand, Operand]:
        e, step = self.low.scalars, self.loop.step
        return (
            e.plus(e.times(self.start, step), start),
            e.plus(e.times(self.stop, step), start),
        )

    # sums of others -----------------------------------------------------------------------------

    def complete(self, finals: list[Tile]) -> list[Tile]:
        """After the loop: leave the sums of a later work unit of a tile and skip what follows; or
        else add those of the others."""
        low, e = self.low, self.low.scalars
        cut = e.compare("ne", self.start, 0)
        self.skip = low.region(gpu.If(condition=cut, then=ir.Block(), other=ir.Block()))
        self._leave(finals)
        low.do(gpu.Yield())
        self.skip.following()
        return self._gather(finals)

    def _reserve(self, tiles: list[Tile]) -> None:
        """Memory and flags for the sums of all parts."""
        low = self.low
        slots = self.cut.left * self.cut.parts * low.multicast.blocks
        vectors = -(-sum(len(tile.layout.regs) for tile in tiles) // 4)
        low.needs.use_workspace(slots * vectors * 16 * 32 * low.warps)
        low.needs.flags[FLAGS] = slots * low.warps

    def _leave(self, tiles: list[Tile]) -> None:
        e = self.low.scalars
        self._reserve(tiles)
        past = e.minus(self.start, self.cut.first)
        part = e.compute("udiv", past, self.cut.length)
        self.low.do(gpu.LeaveSums(
            values=tuple(tiles), program=self.number, part=part, parts=self.cut.parts,
            neighbours=self.low.multicast.blocks, teams=self.low.producer.consumer_groups,
        ))  # fmt: skip

    def _gather(self, tiles: list[Tile]) -> list[Tile]:
        """Add the sums of the later parts, in the order of their iterations."""
        low, e = self.low, self.low.scalars
        is_cut = e.compare("ult", self.number, self.cut.left)
        # LLVM must not know how many: it would mix what is in the loop with what is after it
        parts = low.scalar_of(gpu.Opaque(value=self.cut.parts))
        stop = e.pick(is_cut, parts, 0)
        part = e.name_of()
        phis = [low.like(tile) for tile in tiles]
        loop = gpu.While(
            scalars=(part,), types=("i32",), firsts=(0,), params=tuple(phis), inits=tuple(tiles),
            head=ir.Block(), body=ir.Block(), results=tuple(low.like(tile) for tile in tiles),
        )  # fmt: skip
        region = low.region(loop)
        low.do(gpu.Condition(value=e.compare("ult", part, stop)))
        region.following()
        added = gpu.AddSums(
            values=tuple(phis), program=self.number, part=part, parts=self.cut.parts,
            neighbours=low.multicast.blocks, teams=low.producer.consumer_groups,
            results=tuple(low.like(tile) for tile in tiles),
        )  # fmt: skip
        low.do(added)
        following = e.compute("add", part, 1)
        low.do(gpu.Yield(scalars=(following,), values=added.results))
        region.following()
        low.do(gpu.Seam())
        return list(loop.results)
