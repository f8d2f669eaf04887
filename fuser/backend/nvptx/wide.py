"""float32 matmuls on Hopper's asynchronous tensor cores, at float32's accuracy.

x = big + small, two tf32 numbers that keep 21 bits of x; a product is small*big + big*small +
big*big. The left operand is split in registers, where the warp group that owns its rows holds it.
The right operand is split once for all of them: the copy engine brings it as it is in memory, the
warps write its two parts into shared memory with k innermost, as the unit wants 32-bit operands.
In every eight of k the order is 0 2 4 6 1 3 5 7: then the left fragments are neighbours, and a
matmul does not care as long as both sides agree.

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

from typing import TYPE_CHECKING

from fuser.backend.nvptx import persistent
from fuser.backend.nvptx.assignment import DotPlan
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir.values import SharedTile, Slot, Tile, tile_bytes
from fuser.backend.nvptx.layout import Coordinates, Layout, WarpGrid
from fuser.backend.nvptx.stage import fence_async
from fuser.backend.nvptx.stream import Stream, release, wait_barrier
from fuser.backend.nvptx.wgmma import Descriptor, commit, fence, tied, wait
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

GROUP = 8
"""k of one instruction."""


class SplitLoop:
    """Emits a loop that accumulates one float32 matmul."""

    def __init__(self, low: Lowering, stream: Stream, dot: ops.Dot) -> None:
        self.low, self.stream, self.dot = low, stream, dot
        self.plan: DotPlan = low.assignment.dots[dot]
        k, n = dot.b.shape
        self.part = tile_bytes((k, n), 0, dot.b.dtype)
        self.slot: Slot = low.shared.allocate(4 * self.part, 1024)

    def emit(self, sums: Tile) -> Tile:
        """The whole loop: sums plus its matmuls."""
        low, e, stream = self.low, self.low.emitter, self.stream
        low.shared.barrier()
        self._fill(0, "0", 0)
        self._meet()
        before, head, done = e.at, e.block("loop"), e.block("loop.end")
        e.jump(head)
        e.enter(head)
        mark = len(head.lines)
        trip, stage, phase, turn = (e.name_of() for _ in range(4))
        phi = Tile(sums.dtype, sums.shape, sums.layout, [e.name_of() for _ in sums.regs])
        more = e.value(f"add i32 {stage}, 1")
        wraps = e.value(f"icmp eq i32 {more}, {stream.stages}")
        after = e.value(f"select i1 {wraps}, i32 0, i32 {more}")
        turned = e.value(f"xor i32 {phase}, 1")
        flipped = e.value(f"select i1 {wraps}, i32 {turned}, i32 {phase}")
        other = e.value(f"xor i32 {turn}, 1")
        flying = self._issue(stage, turn)
        self._fill(after, flipped, other)
        self._meet()
        for channel in stream.channels:
            release(low, stream, channel, stage)
        total = self._add(phi, wait(low, flying, 0))
        low.shared.barrier()
        following = e.value(f"add i32 {trip}, 1")
        latch = e.at.label
        entries = [
            (trip, 0, following), (stage, 0, after), (phase, 0, flipped), (turn, 0, other),
        ]  # fmt: skip
        lines = [
            f"{name} = phi i32 [ {a}, %{before.label} ], [ {b}, %{latch} ]"
            for name, a, b in entries
        ]
        for name, a, b in zip(phi.regs, sums.regs, total.regs, strict=True):
            lines.append(f"{name} = phi float [ {a}, %{before.label} ], [ {b}, %{latch} ]")
        head.lines[mark:mark] = lines
        again = e.value(f"icmp slt i32 {following}, {persistent.trips(stream) - 1}")
        e.do(f"br i1 {again}, label %{head.label}, label %{done.label}, !llvm.loop !0")
        e.enter(done)
        result = self._add(total, wait(low, self._issue(after, other), 0))
        low.shared.free(self.slot)
        low.shared.forget()
        return result

    def _operands(self, stage: Operand) -> tuple[SharedTile, SharedTile]:
        """Both operands of an iteration, as the copy engine brings them."""
        low = self.low
        for channel in self.stream.channels:
            for load, tile in zip(channel.loads, channel.tiles, strict=True):
                low.env[load.result] = tile.at_stage(low.emitter.times(stage, tile.bytes))
        for op in self.stream.loop.body.ops:
            if isinstance(op, ops.Permute):
                low.op(op)
        left, right = low.env[self.dot.a], low.env[self.dot.b]
        assert isinstance(left, SharedTile) and isinstance(right, SharedTile)
        return left, right

    def _parts(self, turn: Operand) -> list[SharedTile]:
        """Big and small of the right operand in one of two buffers."""
        e = self.low.emitter
        at = e.times(turn, 2 * self.part)
        k, n = self.dot.b.shape
        return [
            SharedTile(self.dot.b.dtype, (k, n), 0, self.slot, e.plus(at, i * self.part))
            for i in range(2)
        ]

    def _fill(self, stage: Operand, phase: str, turn: Operand) -> None:
        """Wait for an iteration's operands and split the right one."""
        low = self.low
        for channel in self.stream.channels:
            wait_barrier(low, self.stream.full(low, channel, stage), phase)
        _split_right(low, self._operands(stage)[1], self._parts(turn), *self.dot.b.shape)

    def _meet(self) -> None:
        """All have written what the matmuls read, and read what is overwritten."""
        fence_async(self.low)
        self.low.shared.barrier()

    def _issue(self, stage: Operand, turn: Operand) -> list[str]:
        """The matmuls of an iteration, in flight."""
        low, grid = self.low, self.plan.grid
        assert grid is not None
        left = self._operands(stage)[0]
        big, small = (Descriptor(low, part, 0, grid) for part in self._parts(turn))
        k = self.dot.b.shape[0]
        fragments = grid.left_fragment32(k)
        sums = ["poison"] * (grid.columns // 2)
        for step in range(k // GROUP):
            # the fragments of a step are split while the matmuls of the one before it run
            numbers = list(range(4 * step, 4 * step + 4))
            found = low.shared_registers(left, fragments, numbers)
            big_a, small_a = _split(low, [found[number] for number in numbers])
            big_b, small_b = big.at(0, step), small.at(0, step)
            fence(low)
            for order, (a, b) in enumerate(((small_a, big_b), (big_a, small_b), (big_a, big_b))):
                sums = _issue(low, grid, sums, a, b, "true" if step or order else "false")
            commit(low)
            if step < k // GROUP - 1:
                sums = wait(low, sums, 1)
        return sums

    def _add(self, total: Tile, sums: list[str]) -> Tile:
        e = self.low.emitter
        regs = [e.value(f"fadd float {a}, {b}") for a, b in zip(total.regs, sums, strict=True)]
        return Tile(total.dtype, total.shape, total.layout, regs)


def _issue(
    low: Lowering, grid: WarpGrid, sums: list[str], a: list[str], b: str, keep: str
) -> list[str]:
    n = len(sums)
    outputs = "{" + ", ".join(f"${i}" for i in range(n)) + "}"
    left = "{" + ", ".join(f"${2 * n + i}" for i in range(4)) + "}"
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{grid.columns}k8.f32.tf32.tf32 {outputs}, {left}, "
        f"${2 * n + 4}, ${2 * n + 5}, 1, 1;"
    )
    operands = [f"float {item}" for item in sums] + [f"i32 {word}" for word in a]
    return tied(low, text, n, ["r"] * 4 + ["l", "b"], [*operands, f"i64 {b}", f"i1 {keep}"])


def _split(low: Lowering, regs: list[str]) -> tuple[list[str], list[str]]:
    """(big, small) words of float32 registers: big is rounded to tf32; the unit ignores what is
    beyond tf32 in small, which is at most 2**-22 of x."""
    e, big, small = low.emitter, [], []
    for reg in regs:
        bits = e.value(f"bitcast float {reg} to i32")
        word = e.value(f"and i32 {e.value(f'add i32 {bits}, 4096')}, -8192")
        rest = e.value(f"fsub float {reg}, {e.value(f'bitcast i32 {word} to float')}")
        big.append(word)
        small.append(e.value(f"bitcast float {rest} to i32"))
    return big, small


def _split_right(
    low: Lowering, source: SharedTile, parts: list[SharedTile], k: int, n: int
) -> None:
    """Write big and small of a [k, n] tile. A warp has one group of eight k, a lane a column."""
    e = low.emitter
    lanes: tuple[Coordinates, ...] = tuple((0, 1 << bit) for bit in range(5))
    warps: tuple[Coordinates, ...] = ((GROUP, 0), (2 * GROUP, 0))
    regs = tuple((row, column) for column in range(0, n, 32) for row in range(GROUP))
    layout = Layout((k, n), regs, lanes, warps)
    # 128 bytes a column of the tile; 16-byte chunks permuted by the column's number
    lane = e.hoisted(f"and i32 {e.tid}, 31")
    line = e.hoisted(f"shl i32 {lane}, 7")
    twist = e.hoisted(f"and i32 {lane}, 7")
    first = e.thread_part([0] * 5 + [2, 4])
    places = []
    for half in range(2):
        chunk = e.bitwise("xor", e.plus(first, half), twist)
        places.append(e.plus(line, e.shift("shl", chunk, 4)))
    for block in range(n // 32):
        found = low.shared_registers(source, layout, list(range(8 * block, 8 * block + 8)))
        for half, place in enumerate(places):
            numbers = [8 * block + 2 * i + half for i in range(4)]
            big, small = _split(low, [found[number] for number in numbers])
            for part, words in zip(parts, (big, small), strict=True):
                vector = "poison"
                for i, word in enumerate(words):
                    vector = e.value(f"insertelement <4 x i32> {vector}, i32 {word}, i32 {i}")
                at = e.plus(e.plus(place, part.stage), block * 32 * 128)
                pointer = low.shared.pointer(part.slot, at)
                e.do(f"store <4 x i32> {vector}, ptr addrspace(3) {pointer}, align 16")
