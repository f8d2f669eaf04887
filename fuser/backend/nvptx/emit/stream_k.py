"""Sums that blocks leave each other in memory, and the flags that say so.

Every warp has a flag and memory of its own: what a thread adds, the same thread of another block
has left.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.control import seam_code
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op

FLAGS = "@stream_k_flags"
WORKSPACE = "stream_k_sums"
GROUP = 64
"""Sums that are on their way from memory at a time."""


def _slot(code: Code, op: ops.LeaveSums | ops.AddSums) -> tuple[str, str, int]:
    """(the calling thread's memory for the sums of a part of the program, its warp's flag, bytes
    from one vector of it to the next)."""
    e, threads = code.emitter, 32 * code.warps
    count = sum(len(tile.layout.regs) for tile in op.values)
    thread = code.read_register("tid.x")
    if op.teams > 1:
        thread = e.value(f"and i32 {thread}, {threads - 1}")
    slot = e.plus(e.times(op.program, op.parts), op.part)
    if op.neighbours > 1:
        slot = e.plus(e.times(slot, op.neighbours), e.rank)
    vectors = -(-count // 4)
    wide = e.value(f"zext i32 {slot} to i64")
    offset = e.value(f"mul i64 {wide}, {vectors * 16 * threads}")
    base = e.value(f"getelementptr i8, ptr addrspace(1) %{WORKSPACE}, i64 {offset}")
    mine = e.value(f"shl i32 {thread}, 4")
    sums = e.value(f"getelementptr i8, ptr addrspace(1) {base}, i32 {mine}")
    warp = e.value(f"lshr i32 {thread}, 5")
    number = e.plus(e.times(slot, code.warps), warp)
    flag = e.value(f"getelementptr i32, ptr addrspace(1) {FLAGS}, i32 {number}")
    return sums, flag, 16 * threads


def _set(code: Code, flag: str, order: str, value: int) -> None:
    """Set a flag, by one thread of the warp, without a branch."""
    e = code.emitter
    lane = e.value(f"and i32 {code.read_register('tid.x')}, 31")
    chosen = e.value(f"icmp eq i32 {lane}, 0")
    e.do(
        f'call void asm sideeffect "@$1 st.{order}.gpu.global.u32 [$0], $2;", '
        f'"l,b,r,~{{memory}}"(ptr addrspace(1) {flag}, i1 {chosen}, i32 {value})'
    )


def leave_sums(code: Code, op: ops.LeaveSums) -> None:
    """Vectors of four, a barrier of the warp, the flag."""
    e, type = code.emitter, op.values[0].type
    regs = [reg for tile in op.values for reg in tile.regs]
    sums, flag, step = _slot(code, op)
    for vector, first in enumerate(range(0, len(regs), 4)):
        whole = "poison"
        for number, reg in enumerate(regs[first : first + 4]):
            whole = e.value(f"insertelement <4 x {type}> {whole}, {type} {reg}, i32 {number}")
        pointer = e.value(f"getelementptr i8, ptr addrspace(1) {sums}, i32 {vector * step}")
        e.do(f"store <4 x {type}> {whole}, ptr addrspace(1) {pointer}, align 16")
    e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
    _set(code, flag, "release", 1)


def add_sums(code: Code, op: ops.AddSums) -> None:
    """A loop around the flag, then vectors of four, some at a time."""
    e, type = code.emitter, op.values[0].type
    regs = [reg for tile in op.values for reg in tile.regs]
    sums, flag, step = _slot(code, op)
    again, ready = e.block("flag"), e.block("flag.up")
    e.jump(again)
    e.enter(again)
    raised = e.value(
        'call i32 asm sideeffect "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l,~{memory}"'
        f"(ptr addrspace(1) {flag})"
    )
    e.branch(e.value(f"icmp ne i32 {raised}, 0"), ready, again)
    e.enter(ready)
    totals: list[str] = []
    add = "fadd" if type == "float" else "add"
    for group in range(0, len(regs), GROUP):
        if group:
            seam_code(code)  # more of them at a time take registers that the sums need
        few = regs[group : group + GROUP]
        vectors = []
        for first in range(group, group + len(few), 4):
            at = first // 4 * step
            pointer = e.value(f"getelementptr i8, ptr addrspace(1) {sums}, i32 {at}")
            vectors.append(e.value(f"load <4 x {type}>, ptr addrspace(1) {pointer}, align 16"))
        for number, own in enumerate(few):
            vector = vectors[number // 4]
            other = e.value(f"extractelement <4 x {type}> {vector}, i32 {number % 4}")
            totals.append(e.value(f"{add} {type} {own}, {other}"))
    e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
    _set(code, flag, "relaxed", 0)
    rest = iter(totals)
    for tile in op.results:
        tile.assign(next(rest) for _ in tile.layout.regs)


RULES: dict[type[Op], Callable[..., None]] = {
    ops.LeaveSums: leave_sums,
    ops.AddSums: add_sums,
}
