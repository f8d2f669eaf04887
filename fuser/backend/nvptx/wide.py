"""float32 products on Hopper's asynchronous tensor cores, at float32's accuracy.

x = big + small, two tf32 numbers that keep 21 bits of x; a product is small*big + big*small +
big*big. The left operand is split in registers, where the warp group that owns its rows holds it.
The right operand is split once for all of them: the copy engine brings it as it is in memory, the
warps write its two parts into shared memory with k innermost, as the unit wants 32-bit operands.
In every eight of k the order is 0 2 4 6 1 3 5 7: then the left fragments are neighbours, and a
product does not care as long as both sides agree.

The unit truncates its sums: those of a trip start afresh and are added in float32. Two blocks share
a multiprocessor, so that one multiplies while the other splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.assign import DotPlan
from fuser.backend.nvptx.layout import Coordinates, Layout, WarpGrid
from fuser.backend.nvptx.stage import SharedTile, fence_async, tile_bytes
from fuser.backend.nvptx.values import Tile
from fuser.backend.nvptx.wgmma import Descriptor, commit, fence, tied, wait
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

GROUP = 8
"""k of one instruction."""


def wide_dot(
    low: Lowering, op: ops.Dot, plan: DotPlan, left: SharedTile, right: SharedTile, acc: Tile
) -> Tile:
    """acc + left @ right, for one warp group and 32 of k."""
    e, grid = low.emitter, plan.grid
    assert grid is not None
    k, n = op.b.shape
    slots = [low.shared.allocate(tile_bytes((k, n), 0, op.b.dtype), 1024) for _ in range(2)]
    parts = [SharedTile(op.b.dtype, (k, n), 0, slot) for slot in slots]
    low.shared.before_write()  # the products of the trip before have read them
    _split_right(low, right, parts, k, n)
    fence_async(low)
    low.shared.before_read()
    descriptors = [Descriptor(low, part, 0, grid) for part in parts]
    fragments = grid.left_fragment32(k)
    sums = ["poison"] * (grid.columns // 2)
    keep = "false"
    steps = k // GROUP
    for step in range(steps):
        # the fragments of a step are split while the products of the one before it run
        numbers = list(range(4 * step, 4 * step + 4))
        found = low.shared_registers(left, fragments, numbers)
        big_a, small_a = _split(low, [found[number] for number in numbers])
        big_b, small_b = (d.at(0, step) for d in descriptors)
        fence(low)
        for a, b in ((small_a, big_b), (big_a, small_b), (big_a, big_b)):
            sums = _issue(low, grid, sums, a, b, keep)
            keep = "true"
        commit(low)
        sums = wait(low, sums, 0 if step == steps - 1 else 1)
    for slot in slots:
        low.shared.free(slot)
    regs = [e.value(f"fadd float {a}, {b}") for a, b in zip(acc.regs, sums, strict=True)]
    return Tile(acc.dtype, acc.shape, acc.layout, regs)


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
                pointer = low.shared.pointer(part.slot, e.plus(place, block * 32 * 128))
                e.do(f"store <4 x i32> {vector}, ptr addrspace(3) {pointer}, align 16")
