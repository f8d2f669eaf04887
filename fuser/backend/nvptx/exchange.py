"""What the blocks of a cluster tell each other of a reduction: a part each, to all of them.

Every block has a slot with a place for the parts of all. Remote stores (st.async) complete on a
barrier beside the slot, which knows how many bytes will come: nothing is fenced, no cache is
invalidated, and a block waits for the parts only, not for what else the others do. A slot and its
barrier serve one exchange, so nobody has to tell when they are free; a block that has all parts is
written to no more, and may end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.convert import offset_of, row_major
from fuser.backend.nvptx.layout import Layout
from fuser.backend.nvptx.memory import from_memory, to_memory
from fuser.backend.nvptx.shared import Slot
from fuser.backend.nvptx.stream import wait_barrier
from fuser.backend.nvptx.values import memory_type
from fuser.dtypes import DType

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

Parts = list[list[list[str]]]
"""For each part its values, of each the registers."""
SENT = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"


def can_send(dtype: DType) -> bool:
    """Whether remote stores that complete on a barrier have elements of this size."""
    return memory_type(dtype) == dtype.llvm and dtype.bits in (32, 64)


def exchange(
    low: Lowering, values: list[list[str]], dtype: DType, layout: Layout, spare: list[int]
) -> Parts:
    """The parts of all blocks, in order, of some tiles of one layout. spare: bits of the thread's
    number in its block that tiles do not depend on, enough to number the blocks.

    One thread sends a part to one block. The barrier is made when the block starts.
    """
    e, cluster = low.emitter, low.cluster
    size, steps = row_major(layout.shape, dtype.bytes * len(values))
    inside = cluster.first_bit
    place = [offset_of(basis, steps) for basis in layout.bits]
    slot, barrier = _slots(low, size * cluster.blocks)
    target, rest = receivers(cluster.bits, inside, spare)
    senders = 1 << (inside - len(spare))
    _expect(low, barrier, senders * len(layout.regs) * len(values) * dtype.bytes * cluster.blocks)
    alone = e.value(f"icmp eq i32 {e.thread_part(rest)}, 0")
    part = [0] * inside + [size << bit for bit in range(cluster.bits)]
    mine = low.shared.pointer(slot, e.plus(e.thread_part(place), e.thread_part(part)))
    offsets = [offset_of(at, steps) for at in layout.regs]
    cluster.wait_for_start()
    with e.where(alone):
        number = e.thread_part(target)
        there = cluster.address_in(mine, number)
        done = cluster.address_in(low.shared.pointer(barrier), number)
        for offset, regs in zip(offsets, zip(*values, strict=True), strict=True):
            _send(low, there, offset, done, list(regs), dtype)
    wait_barrier(low, low.shared.pointer(barrier), "0")
    e.do('call void asm sideeffect "", "~{memory}"()')
    type = memory_type(dtype)
    base = low.shared.pointer(slot, e.thread_part(place))

    def read(at: int) -> str:
        pointer = e.value(f"getelementptr i8, ptr addrspace(3) {base}, i32 {at}")
        name = e.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        return from_memory(low, name, dtype)

    return [
        [
            [read(number * size + offset + which * dtype.bytes) for offset in offsets]
            for which in range(len(values))
        ]
        for number in range(cluster.blocks)
    ]


def receivers(bits: int, inside: int, spare: list[int]) -> tuple[list[int], list[int]]:
    """By the spare bits of a thread's number, which has `inside` bits in its block: (the block that
    it sends to, what is 0 in the one of the threads alike that sends), for `Emitter.thread_part`.
    """
    target, rest = [0] * inside, [0] * inside
    for position, bit in enumerate(spare):
        if position < bits:
            target[bit] = 1 << position
        else:
            rest[bit] = 1 << bit
    return target, rest


def _slots(low: Lowering, size: int) -> tuple[Slot, Slot]:
    """(places for the parts, their barrier), for as long as the kernel runs."""
    slot, barrier = low.shared.allocate(size), low.shared.allocate(8, 8)
    slot.first = barrier.first = 0
    return slot, barrier


def _expect(low: Lowering, barrier: Slot, bytes_: int) -> None:
    """At the head of the kernel: make a barrier whose phase ends when so many bytes have come."""
    pointer = low.shared.pointer(barrier)
    low.emitter.entry.append(
        'call void asm sideeffect "{.reg .pred first; setp.eq.u32 first, $0, 0; '
        "@first mbarrier.init.shared::cta.b64 [$1], 1; "
        f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {bytes_}; "
        '@first fence.mbarrier_init.release.cluster;}", "r,r,~{memory}"'
        f"(i32 {low.emitter.tid}, ptr addrspace(3) {pointer})"
    )


def _send(low: Lowering, there: str, offset: int, done: str, regs: list[str], dtype: DType) -> None:
    """Store neighbours `offset` bytes behind an address of the cluster's shared memory."""
    e, type = low.emitter, memory_type(dtype)
    kind, letter = (f"b{dtype.bits}", "r" if dtype.bits == 32 else "l")
    words = [to_memory(low, reg, dtype) for reg in regs]
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
