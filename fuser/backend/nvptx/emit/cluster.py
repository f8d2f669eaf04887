"""What the blocks of a cluster tell each other.

Remote stores (st.async) complete on a barrier beside the slot, which knows how many bytes come:
nothing is fenced, no cache is invalidated, and a block waits for the parts only.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code, Writes
from fuser.backend.nvptx.emit.memory import from_memory, to_memory, unpack
from fuser.backend.nvptx.emit.values import memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of, row_major, vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.integers import first_block_bit
from fuser.dtypes import DType

SENT = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"


def arrive(code: Code, op: ops.ClusterArrive) -> None:
    """One instruction."""
    kind = ".relaxed" if op.relaxed else ""
    code.emitter.do(f"call void @llvm.nvvm.barrier.cluster.arrive{kind}.aligned()")


def wait(code: Code, op: ops.ClusterWait) -> None:
    """One instruction."""
    code.emitter.do("call void @llvm.nvvm.barrier.cluster.wait.aligned()")


def reread(code: Code, op: ops.Reread) -> None:
    """A clobber that LLVM sees."""
    code.emitter.do('call void asm sideeffect "", "~{memory}"()')


def expect_parts(code: Code, op: ops.ExpectParts) -> None:
    """By the first thread, before all else."""
    e = code.emitter
    e.entry.append(
        'call void asm sideeffect "{.reg .pred first; setp.eq.u32 first, $0, 0; '
        "@first mbarrier.init.shared::cta.b64 [$1], 1; "
        f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {op.bytes}; "
        '@first fence.mbarrier_init.release.cluster;}", "r,r,~{memory}"'
        f"(i32 {e.tid}, ptr addrspace(3) {code.place(op.barrier)})"
    )


def receivers(bits: int, inside: int, free_bits: list[int]) -> tuple[list[int], list[int]]:
    """By the free bits of a thread's number, which has `inside` bits in its block: (the block that
    it sends to, what is 0 in the one of the threads alike that sends), for `Emitter.thread_offset`.
    """
    target, rest = [0] * inside, [0] * inside
    for position, bit in enumerate(free_bits):
        if position < bits:
            target[bit] = 1 << position
        else:
            rest[bit] = 1 << bit
    return target, rest


def send_parts(code: Code, op: ops.SendParts) -> None:
    """One store an element, or two where values are neighbours, by one thread for each block."""
    e, like = code.emitter, op.values[0]
    layout, dtype = like.layout, like.dtype
    inside, bits = first_block_bit(code.warps, code.blocks), code.blocks.bit_length() - 1
    free_bits = [bit for bit in range(inside) if not any(layout.bits[bit])]
    size, steps = row_major(layout.shape, dtype.bytes * len(op.values))
    place = [offset_of(basis, steps) for basis in layout.bits]
    target, rest = receivers(bits, inside, free_bits)
    alone = e.value(f"icmp eq i32 {e.thread_offset(rest)}, 0")
    part = [0] * inside + [size << bit for bit in range(bits)]
    mine = code.place(op.slot, e.plus(e.thread_offset(place), e.thread_offset(part)))
    offsets = [offset_of(at, steps) for at in layout.regs]
    values = [value.regs for value in op.values]
    with e.where(alone):
        number = e.thread_offset(target)
        if op.barrier is not None:
            there = _address_in(code, mine, number)
            done = _address_in(code, code.place(op.barrier), number)
            for offset, few in zip(offsets, zip(*values, strict=True), strict=True):
                _send(code, there, offset, done, list(few), dtype)
            return
        remote = in_block(code, mine, number)
        type = memory_type(dtype)
        for which, regs in enumerate(values):
            for offset, reg in zip(offsets, regs, strict=True):
                at = offset + which * dtype.bytes
                pointer = e.value(f"getelementptr i8, ptr addrspace(7) {remote}, i32 {at}")
                item = to_memory(code, reg, dtype)
                e.do(f"store {type} {item}, ptr addrspace(7) {pointer}, align {dtype.bytes}")


def in_block(code: Writes, pointer: str, number: Operand) -> str:
    """The place in another block's shared memory."""
    return code.emitter.value(
        "call ptr addrspace(7) @llvm.nvvm.mapa.shared.cluster("
        f"ptr addrspace(3) {pointer}, i32 {number})"
    )


def read_blocks(code: Code, op: ops.ReadBlocks) -> None:
    """One load a vector, block by block."""
    e, like = code.emitter, op.results[0]
    layout, dtype = like.layout, like.dtype
    width = min(layout.vector(op.axis), 16 // dtype.bytes)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    base = code.place(op.slot)
    blocks = [in_block(code, base, number) for number in range(len(op.results))]
    thread = e.thread_offset([offset_of(basis, op.steps) for basis in layout.bits])
    for block, made in zip(blocks, op.results, strict=True):
        start = block
        if thread != 0:
            start = e.value(f"getelementptr i8, ptr addrspace(7) {block}, i32 {thread}")
        made.assign([""] * len(layout.regs))
        for offset, members in vectors(layout, op.axis, width):
            at = offset_of(offset, op.steps)
            place = e.value(f"getelementptr i8, ptr addrspace(7) {start}, i32 {at}")
            name = e.value(f"load {type}, ptr addrspace(7) {place}, align {width * dtype.bytes}")
            items = [from_memory(code, name, dtype)]
            if width > 1:
                items = unpack(code, name, dtype, width)
            for member, item in zip(members, items, strict=True):
                made.regs[member] = item


def _address_in(code: Code, pointer: str, number: Operand) -> str:
    """The address in the cluster's shared memory, 32 bits, of a place in another block's."""
    return code.emitter.value(
        'call i32 asm "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r"'
        f"(ptr addrspace(3) {pointer}, i32 {number})"
    )


def _send(code: Code, there: str, offset: int, done: str, regs: list[str], dtype: DType) -> None:
    """Store neighbours `offset` bytes after an address of the cluster's shared memory."""
    e, type = code.emitter, memory_type(dtype)
    kind, letter = (f"b{dtype.bits}", "r" if dtype.bits == 32 else "l")
    words = [to_memory(code, reg, dtype) for reg in regs]
    if dtype.is_float:
        words = [e.value(f"bitcast {type} {word} to i{dtype.bits}") for word in words]
    width = 2 if len(words) == 2 else 1
    for first in range(0, len(words), width):
        some = words[first : first + width]
        names = ", ".join(f"${2 + n}" for n in range(width))
        what = f"{{{names}}}" if width > 1 else names
        vector = f".v{width}" if width > 1 else ""
        at = e.plus(there, offset + first * dtype.bytes)
        operands = ", ".join(f"i{dtype.bits} {word}" for word in some)
        e.do(
            f'call void asm sideeffect "{SENT}{vector}.{kind} [$0], {what}, [$1];", '
            f'"r,r,{",".join(letter * width)},~{{memory}}"(i32 {at}, i32 {done}, {operands})'
        )


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Reread: reread,
    ops.ClusterArrive: arrive,
    ops.ClusterWait: wait,
    ops.SendParts: send_parts,
    ops.ReadBlocks: read_blocks,
    ops.ExpectParts: expect_parts,
}
