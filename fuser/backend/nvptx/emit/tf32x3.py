"""float32 matmuls on Hopper's asynchronous tensor cores: x = big + small, two tf32 numbers that
keep 21 bits of x, and a product is small*big + big*small + big*big.

In every eight of k the order is 0 2 4 6 1 3 5 7: then the left fragments are neighbours, and a
matmul does not care as long as both sides agree.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.operands import read_registers
from fuser.backend.nvptx.emit.wgmma import Descriptor, tied, write_commit, write_fence, write_wait
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout

GROUP = 8
"""k of one instruction."""


def split_right(code: Code, op: ops.SplitRight) -> None:
    """Loads of columns, stores of vectors. A warp has one group of eight k, a lane a column."""
    e, (k, n) = code.emitter, op.big.shape
    lanes: tuple[Coordinates, ...] = tuple((0, 1 << bit) for bit in range(5))
    warps: tuple[Coordinates, ...] = ((GROUP, 0), (2 * GROUP, 0))
    regs = tuple((row, column) for column in range(0, n, 32) for row in range(GROUP))
    layout = Layout((k, n), regs, lanes, warps)
    # 128 bytes a column of the tile; 16-byte chunks permuted by the column's number
    lane = e.hoisted(f"and i32 {e.tid}, 31")
    line = e.hoisted(f"shl i32 {lane}, 7")
    twist = e.hoisted(f"and i32 {lane}, 7")
    first = e.thread_offset([0] * 5 + [2, 4])
    places = []
    for half in range(2):
        chunk = e.bitwise("xor", e.plus(first, half), twist)
        places.append(e.plus(line, e.shift("shl", chunk, 4)))
    for block in range(n // 32):
        found = read_registers(code, op.source, layout, range(8 * block, 8 * block + 8))
        for half, place in enumerate(places):
            numbers = [8 * block + 2 * i + half for i in range(4)]
            big, small = _split(code, [found[number] for number in numbers])
            for part, words in ((op.big, big), (op.small, small)):
                vector = "poison"
                for i, word in enumerate(words):
                    vector = e.value(f"insertelement <4 x i32> {vector}, i32 {word}, i32 {i}")
                at = e.plus(e.plus(place, part.stage), block * 32 * 128)
                pointer = code.place(part.slot, at)
                e.do(f"store <4 x i32> {vector}, ptr addrspace(3) {pointer}, align 16")


def wgmma_split(code: Code, op: ops.WgmmaSplit) -> None:
    """Three instructions and a group a step of k, of which the last is not waited for."""
    grid = op.grid
    big, small = (Descriptor(code, part, 0, grid) for part in (op.big, op.small))
    fragments = grid.left_fragment32(op.k)
    sums = ["poison"] * (grid.columns // 2)
    for step in range(op.k // GROUP):
        # the fragments of a step are split while the matmuls of the one before it run
        numbers = range(4 * step, 4 * step + 4)
        found = read_registers(code, op.a, fragments, numbers)
        big_a, small_a = _split(code, [found[number] for number in numbers])
        big_b, small_b = big.at(0, step), small.at(0, step)
        write_fence(code)
        for order, (a, b) in enumerate(((small_a, big_b), (big_a, small_b), (big_a, big_b))):
            sums = _issue(code, grid.columns, sums, a, b, "true" if step or order else "false")
        write_commit(code)
        if step < op.k // GROUP - 1:
            sums = write_wait(code, sums, 1)
    op.tile.assign(sums)


def _issue(code: Code, columns: int, sums: list[str], a: list[str], b: str, keep: str) -> list[str]:
    n = len(sums)
    outputs = "{" + ", ".join(f"${i}" for i in range(n)) + "}"
    left = "{" + ", ".join(f"${2 * n + i}" for i in range(4)) + "}"
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k8.f32.tf32.tf32 {outputs}, {left}, "
        f"${2 * n + 4}, ${2 * n + 5}, 1, 1;"
    )
    operands = [f"float {item}" for item in sums] + [f"i32 {word}" for word in a]
    return tied(code, text, n, ["r"] * 4 + ["l", "b"], [*operands, f"i64 {b}", f"i1 {keep}"])


def _split(code: Code, regs: list[str]) -> tuple[list[str], list[str]]:
    """(big, small) words of float32 registers: big is rounded to tf32; the unit ignores what is
    beyond tf32 in small, which is at most 2**-22 of x."""
    e, big, small = code.emitter, [], []
    for reg in regs:
        bits = e.value(f"bitcast float {reg} to i32")
        word = e.value(f"and i32 {e.value(f'add i32 {bits}, 4096')}, -8192")
        rest = e.value(f"fsub float {reg}, {e.value(f'bitcast i32 {word} to float')}")
        big.append(word)
        small.append(e.value(f"bitcast float {rest} to i32"))
    return big, small


RULES: dict[type[Op], Callable[..., None]] = {
    ops.SplitRight: split_right,
    ops.WgmmaSplit: wgmma_split,
}
