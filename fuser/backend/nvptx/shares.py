"""Stream-K: blocks share the tiles that are left over behind whole waves, by steps of their loops.

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

from collections.abc import Callable

from fuser.backend.nvptx.assignment import accumulates, trips_of
from fuser.backend.nvptx.builder import Builder
from fuser.backend.nvptx.chain import find_chain
from fuser.backend.nvptx.emit.stream_k import FLAGS
from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.recorder import Region
from fuser.backend.nvptx.stream import Ring, Stream
from fuser.backend.nvptx.turns import each_turn
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.stream_k import Cut, cut_tiles

MOST_STEPS = 1 << 30
"""Iterations of all programs that are counted in 32 bits."""


def plan_shares(low: Builder) -> Shares | None:
    """The shares of a kernel's blocks, where its schedule asks for them (`stream_k` blocks of a
    multiprocessor); None where its only loop does not just add up, or no tile would be cut."""
    if not low.kernel.schedule.stream_k:
        return None
    found = _planned(low)
    if isinstance(found, str):
        low.decisions.refuse("stream-k", found)
        return None
    low.decisions.apply("stream-k", f"tiles left over are cut among {found.blocks} blocks")
    return found


def _planned(low: Builder) -> Shares | str:
    """The shares, or why there are none."""
    per_unit = _blocks_of_unit(low)
    programs = low.order.programs
    if low.cluster.blocks > 1:
        return "a cluster shares each program"
    if is_symbolic(programs):
        return "the number of programs is open"
    loop = _only_products(low)
    trips = trips_of(loop) if loop is not None else 0
    if loop is None or trips < 2:
        return "it is no single loop of two or more iterations that adds up matmuls from zero"
    before = low.kernel.body.ops[: low.kernel.body.ops.index(loop)]
    if any(isinstance(op, ops.Store | ops.AtomicAdd) for op in before):
        return "it stores before its loop"
    if any(plan.kind == "wide" for plan in low.assignment.dots.values()):
        return "float32 operands are split"
    for stream in low.streams.values():
        if not stream.quiet or stream.split or find_chain(low, stream):
            return "its loop does more than multiply what is brought"
    blocks = max(1, low.neighbours.at_once() * per_unit)
    cut = cut_tiles(programs % blocks, trips, blocks)
    if cut is None:
        return f"{programs} programs on {blocks} blocks leave nothing worth a cut"
    if (programs + 2 * blocks) * trips >= MOST_STEPS:
        return "its iterations are not counted in 32 bits"
    return Shares(low, loop, programs, blocks, cut, per_unit)


def _blocks_of_unit(low: Builder) -> int:
    """Blocks of a multiprocessor. Warps that hand registers to each other (roles.py) reckon with
    all of them: two such blocks would wait for registers for ever."""
    from fuser.backend.nvptx.roles import REGISTERS

    schedule = low.kernel.schedule
    warps = low.warps * int(schedule.extra.get("teams", 1))
    return min(schedule.stream_k, 1 if low.streams and warps in REGISTERS else schedule.stream_k)


def _only_products(low: Builder) -> ops.For | None:
    """The only loop of a kernel, where it does nothing but add up matmuls from zero."""
    plan = low.assignment
    loops = [op for op in low.kernel.walk() if isinstance(op, ops.For)]
    if len(loops) != 1 or loops[0] not in low.kernel.body.ops:
        return None
    loop = loops[0]
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    for init, end in zip(loop.inits, last.args, strict=True):
        dot, zero = plan.makers.get(end), plan.makers.get(init)
        if not isinstance(dot, ops.Dot) or not accumulates(dot, loop, plan):
            return None
        if not isinstance(zero, ops.Full) or zero.value != 0 or end.dtype.bits != 32:
            return None
    return loop


class Shares:
    """What `blocks` blocks, or clusters of neighbours, do of `tiles` programs with `trips`
    iterations each, `per_unit` of them on a multiprocessor. number, first, last: the program of the
    stretch that is being emitted, its first iteration and the one behind its last.

    Where a block is, is one number: program * iterations + iteration. The programs left over come
    first.
    """

    def __init__(
        self, low: Builder, loop: ops.For, tiles: int, blocks: int, cut: Cut, per_unit: int = 1
    ) -> None:
        self.low, self.loop = low, loop
        self.tiles, self.blocks, self.cut = tiles, blocks, cut
        self.per_unit = per_unit
        self.number: Operand = 0
        self.first: Operand = 0
        self.last: Operand = 0
        self.skip: Region | None = None

    def begin(self) -> None:
        """Launch the blocks."""
        self.low.order.persist(self.blocks)

    # what belongs to whom -----------------------------------------------------------------------

    def _read(self, name: str) -> str:
        """A number that the hardware knows, read anew: what is made of it and kept would take
        registers from the sums."""
        return self.low.scalar_of(gpu.ReadRegister(register=f"{name}.x"))

    def _whole(self, block: Operand) -> Operand:
        """Where a block's whole tiles begin."""
        e = self.low.scalars
        return e.times(e.plus(block, self.cut.left), self.cut.iterations)

    def _start(self) -> Operand:
        """Where this block begins."""
        e, cut = self.low.scalars, self.cut
        block = self._read(self.low.order.unit)
        part = e.value(f"udiv i32 {block}, {cut.lists}")
        number = e.times(e.minus(block, e.times(part, cut.lists)), cut.run)
        trip = e.plus(e.times(part, cut.length), cut.first)
        tail = e.plus(e.times(number, cut.iterations), trip)
        own = e.minus(block, cut.tails)
        is_tail = e.value(f"icmp ult i32 {block}, {cut.tails}")
        is_head = e.value(f"icmp ult i32 {own}, {cut.left}")
        head = e.pick(is_head, e.times(own, cut.iterations), self._whole(block))
        return e.pick(is_tail, tail, head)

    def stretch(self, at: Operand) -> tuple[Operand, Operand, Operand]:
        """(program, its first iteration, the one behind its last) of what a block does from `at`
        on."""
        e, cut = self.low.scalars, self.cut
        number = e.value(f"udiv i32 {at}, {cut.iterations}")
        first = e.minus(at, e.times(number, cut.iterations))
        is_head = e.value(f"icmp eq i32 {first}, 0")
        stop = e.pick(is_head, cut.first, e.plus(first, cut.length))
        stop = e.value(f"call i32 @llvm.umin.i32(i32 {stop}, i32 {cut.iterations})")
        is_left = e.value(f"icmp ult i32 {number}, {cut.left}")
        return number, first, e.pick(is_left, stop, cut.iterations)

    def after(self, at: Operand) -> Operand:
        """Where a block goes on after the stretch that begins at `at`."""
        e, cut = self.low.scalars, self.cut
        number, first, _ = self.stretch(at)
        following = e.value(f"add i32 {number}, 1")
        more = e.value(f"icmp ne i32 {first}, 0")
        more = e.value(f"and i1 {more}, {e.value(f'icmp ult i32 {following}, {cut.left}')}")
        in_list = e.value(f"icmp ne i32 {e.value(f'urem i32 {following}, {cut.run}')}, 0")
        more = e.value(f"and i1 {more}, {in_list}")
        whole = self._whole(self._read(self.low.order.unit))
        then = e.pick(more, e.plus(at, cut.iterations), whole)
        is_left = e.value(f"icmp ult i32 {number}, {cut.left}")
        return e.pick(is_left, then, e.plus(at, self.blocks * cut.iterations))

    def bounds(self, start: Operand) -> tuple[Operand, Operand]:
        """Start and stop of the loop in this stretch. start: of the whole loop."""
        e, step = self.low.scalars, self.loop.step
        return (
            e.plus(e.times(self.first, step), start),
            e.plus(e.times(self.last, step), start),
        )

    # one stretch after the other ----------------------------------------------------------------

    def each_stretch(
        self, teams: int, emit: Callable[[], None], last: Callable[[], None] | None = None
    ) -> None:
        """Emit a loop over what the block does: all of it, or every other stretch, for one of two
        warp groups. Where the ring of a stream then is follows from the iterations of both. last:
        emits what ends every stretch."""
        low, e = self.low, self.low.scalars
        streams = list(low.streams.values())
        start = self._start()
        starts: list[Ring] = [(0, 0) for _ in streams]
        if teams > 1:
            _, first, stop = self.stretch(start)
            count = e.minus(stop, first)
            second = e.value(f"icmp ne i32 {low.shared.team}, 0")
            starts = [
                (e.pick(second, stage, 0), e.pick(second, phase, 0))
                for stage, phase in (_moved(low, s, (0, 0), count) for s in streams)
            ]
            start = e.pick(second, self.after(start), start)

        def admit(at: str) -> str:
            return e.value(f"icmp ult i32 {at}, {self.tiles * self.cut.iterations}")

        def turn(at: str) -> tuple[Operand, list[Ring]]:
            self.number, self.first, self.last = self.stretch(at)
            low.order.choose(e, str(self.number))
            self.skip = None
            emit()
            if self.skip is not None:
                low.do(gpu.Yield())
                self.skip.following()
            if last is not None:
                last()
            ends = [stream.ring for stream in streams]
            following = self.after(at)
            if teams > 1:
                _, first, stop = self.stretch(following)
                other = e.minus(stop, first)
                ends = [_moved(low, s, ring, other) for s, ring in zip(streams, ends, strict=True)]
                following = self.after(following)
            return following, ends

        each_turn(low, teams, start, starts, admit, turn)

    # sums of others -----------------------------------------------------------------------------

    def complete(self, finals: list[Tile]) -> list[Tile]:
        """Behind the loop: leave the sums of a later stretch and skip what follows; or else add
        those of the other stretches."""
        low, e = self.low, self.low.scalars
        cut = e.value(f"icmp ne i32 {self.first}, 0")
        self.skip = low.region(gpu.If(condition=cut, then=ir.Block(), other=ir.Block()))
        self._leave(finals)
        low.do(gpu.Yield())
        self.skip.following()
        low.shared.forget()
        return self._gather(finals)

    def _reserve(self, tiles: list[Tile]) -> None:
        """Memory and flags for the sums of all parts."""
        low = self.low
        slots = self.cut.left * self.cut.parts * low.neighbours.blocks
        vectors = -(-sum(len(tile.layout.regs) for tile in tiles) // 4)
        low.needs.workspace_bytes = slots * vectors * 16 * 32 * low.warps
        kind = f"[{slots * low.warps} x i32]"
        low.needs.variables[FLAGS] = f"internal addrspace(1) global {kind} zeroinitializer"

    def _leave(self, tiles: list[Tile]) -> None:
        e = self.low.scalars
        self._reserve(tiles)
        behind = e.minus(self.first, self.cut.first)
        part = e.value(f"udiv i32 {behind}, {self.cut.length}")
        self.low.do(gpu.LeaveSums(
            values=tuple(tiles), program=self.number, part=part, parts=self.cut.parts,
            neighbours=self.low.neighbours.blocks, teams=self.low.feeding.teams,
        ))  # fmt: skip

    def _gather(self, tiles: list[Tile]) -> list[Tile]:
        """Add the sums of the later parts, in the order of their iterations."""
        low, e = self.low, self.low.scalars
        is_cut = e.value(f"icmp ult i32 {self.number}, {self.cut.left}")
        # LLVM must not know how many: it would mix what is in the loop with what is behind it
        parts = low.scalar_of(gpu.Opaque(value=self.cut.parts))
        stop = e.pick(is_cut, parts, 0)
        part = e.name_of()
        phis = [low.like(tile) for tile in tiles]
        loop = gpu.While(
            scalars=(part,), types=("i32",), firsts=(0,), params=tuple(phis), inits=tuple(tiles),
            head=ir.Block(), body=ir.Block(), results=tuple(low.like(tile) for tile in tiles),
        )  # fmt: skip
        region = low.region(loop)
        low.do(gpu.Condition(value=e.value(f"icmp ult i32 {part}, {stop}")))
        region.following()
        added = gpu.AddSums(
            values=tuple(phis), program=self.number, part=part, parts=self.cut.parts,
            neighbours=low.neighbours.blocks, teams=low.feeding.teams,
            results=tuple(low.like(tile) for tile in tiles),
        )  # fmt: skip
        low.do(added)
        following = e.value(f"add i32 {part}, 1")
        low.do(gpu.Yield(scalars=(following,), values=added.results))
        region.following()
        low.do(gpu.Seam())
        return list(loop.results)


def _moved(low: Builder, stream: Stream, ring: Ring, count: Operand) -> Ring:
    """(stage, phase) after this many iterations."""
    e = low.scalars
    stage, phase = ring
    moved = e.plus(stage, count)
    turns = e.value(f"udiv i32 {moved}, {stream.stages}")
    stage = e.minus(moved, e.times(turns, stream.stages))
    odd = e.value(f"and i32 {turns}, 1")
    return stage, odd if phase == 0 else e.value(f"xor i32 {phase}, {odd}")
