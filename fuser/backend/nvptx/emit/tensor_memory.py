"""Blackwell's matmuls: one thread issues them for the block, and their sums are in tensor memory.

An address there is a lane in the high half and a column in the low one. Operands have the
descriptors of wgmma, with the bits of another version; what is multiplied is in a word of its own.
How many groups were committed, and how many of them were waited for, every thread counts: the
number of a group says which barrier, and which of its phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.emit.code import Code, TensorState
from fuser.backend.nvptx.emit.mbarriers import wait_at
from fuser.backend.nvptx.emit.wgmma import Descriptor
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Slot
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.layouts.mma_units import UNITS
from fuser.backend.nvptx.layouts.tensor_grid import LANES

VERSION = 1 << 14
"""In the high word of a descriptor: bits 46 to 48 are 1."""
_DTYPES = {"f16": 0, "bf16": 1}
"""What an instruction descriptor calls the dtypes of operands."""
_MAX_TIMES = 128
"""Columns that one instruction reads or writes."""


def instruction_descriptor(unit: str, n: int, turned_a: int, turned_b: int) -> int:
    """The word that says what an instruction of 128 rows multiplies: sums in float32, the dtypes of
    the operands, which of them do not have k inner, the columns in eights and the rows in
    sixteens."""
    dtype = _DTYPES[unit]
    word = 1 << 4 | dtype << 7 | dtype << 10 | turned_a << 15 | turned_b << 16
    return word | n >> 3 << 17 | LANES >> 4 << 24


def _do(code: Code, text: str, operands: str = "", kinds: str = "") -> None:
    listed = f"{kinds},~{{memory}}" if kinds else "~{memory}"
    code.emitter.do(f'call void asm sideeffect "{text}", "{listed}"({operands}) #1')


def _warp(code: Code) -> Operand:
    return code.emitter.uniform(code.emitter.hoisted(f"lshr i32 {code.emitter.tid}, 5"))


@contextmanager
def _first_warp(code: Code) -> Iterator[None]:
    with code.emitter.where(code.emitter.value(f"icmp eq i32 {_warp(code)}, 0")):
        yield


@contextmanager
def _one_thread(code: Code) -> Iterator[None]:
    """The same thread each time. It is elected: ptxas then knows that it is one."""
    e = code.emitter
    with _first_warp(code):
        chosen = e.value("call {i32, i1} @llvm.nvvm.elect.sync(i32 -1)")
        with e.where(e.value(f"extractvalue {{i32, i1}} {chosen}, 1")):
            yield


def alloc(code: Code, op: ops.TensorAlloc) -> None:
    """Two instructions of a warp."""
    with _first_warp(code):
        name = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
        place = f"ptr addrspace(3) {code.place(op.slot)}, i32 {op.columns}"
        _do(code, f"{name} [$0], $1;", place, "r,r")
        _do(code, "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")


def address(code: Code, op: ops.TensorAddress) -> None:
    """A load."""
    e = code.emitter
    _do(code, "tcgen05.fence::after_thread_sync;")
    found = e.value(f"load i32, ptr addrspace(3) {code.place(op.slot)}, align 16")
    counts = [e.hoisted("alloca i32, align 4") for _ in range(2)]
    for count in counts:
        e.entry.append(f"store i32 0, ptr {count}, align 4")
    code.tensor_memory[op.slot] = TensorState(found, *counts)


def free(code: Code, op: ops.TensorFree) -> None:
    """An instruction of a warp."""
    with _first_warp(code):
        _do(code, "tcgen05.fence::after_thread_sync;")
        name = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
        state = code.tensor_memory[op.slot]
        _do(code, f"{name} $0, {op.columns};", f"i32 {state.address}", "r")


def mma(code: Code, op: ops.TensorMma) -> None:
    """An instruction for every 128 rows and 32 bytes of k, in one thread."""
    e, grid, unit = code.emitter, op.grid, UNITS[op.unit]
    start = code.tensor_memory[op.slot].address
    n, steps = grid.covered[1], op.k // unit.depth
    with _one_thread(code):
        b = Descriptor(code, op.b, 0, grid, VERSION)
        a = Descriptor(code, op.a, 1, grid, VERSION) if op.a is not None else None
        word = instruction_descriptor(op.unit, n, a.transposed if a else 0, b.transposed)
        _do(code, "tcgen05.fence::after_thread_sync;")
        pack = 4 // op.b.dtype.bytes
        for band in range(grid.m // LANES):
            sums = e.plus(start, op.sums + band * n)
            for step in range(steps):
                if a is not None:
                    left, kind, source = f"i64 {a.at(band, step)}", "l", "$1"
                else:
                    column = op.left + (band * op.k + step * unit.depth) // pack
                    left, kind, source = f"i32 {e.plus(start, column)}", "r", "[$1]"
                keeps = "true" if step or op.keeps == 1 else op.keeps or "false"
                _do(
                    code, f"tcgen05.mma.cta_group::1.kind::f16 [$0], {source}, $2, $3, $4;",
                    f"i32 {sums}, {left}, i64 {b.at(0, step)}, i32 {word}, i1 {keeps}",
                    f"r,{kind},l,r,b",
                )  # fmt: skip


def _barrier(code: Code, slot: Slot, number: str) -> str:
    """The barrier at which a group of matmuls ends."""
    e = code.emitter
    which = e.bitwise("and", number, ops.TENSOR_BARRIERS - 1)
    return code.place(slot, e.plus(e.shift("shl", which, 3), 8))


def commit(code: Code, op: ops.TensorCommit) -> None:
    """An instruction of one thread; all count."""
    e, state = code.emitter, code.tensor_memory[op.slot]
    number = e.value(f"load i32, ptr {state.committed}, align 4")
    with _one_thread(code):
        name = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
        pointer = _barrier(code, op.slot, number)
        _do(code, f"{name} [$0];", f"ptr addrspace(3) {pointer}", "r")
    e.do(f"store i32 {e.plus(number, 1)}, ptr {state.committed}, align 4")


def wait(code: Code, op: ops.TensorWait) -> None:
    """A wait for each group that has to have ended, in order: most often for one."""
    e, state = code.emitter, code.tensor_memory[op.slot]
    again, waits, done = e.block("groups"), e.block("group"), e.block("groups.end")
    e.jump(again)
    e.enter(again)
    number = e.value(f"load i32, ptr {state.waited}, align 4")
    last = e.value(f"load i32, ptr {state.committed}, align 4")
    flying = e.value(f"sub i32 {last}, {number}")
    e.branch(e.value(f"icmp sgt i32 {flying}, {op.pending}"), waits, done)
    e.enter(waits)
    round_ = e.shift("lshr", number, ops.TENSOR_BARRIERS.bit_length() - 1)
    wait_at(code, _barrier(code, op.slot, number), e.bitwise("and", round_, 1))
    e.do(f"store i32 {e.plus(number, 1)}, ptr {state.waited}, align 4")
    e.jump(again)
    e.enter(done)
    _do(code, "tcgen05.fence::after_thread_sync;")


def _warp_address(code: Code, slot: Slot, layout: Layout, column: int, pack: int) -> Operand:
    """Where a warp's part of a tile begins: its lanes, and the columns of its group."""
    e, warp = code.emitter, _warp(code)
    lanes = e.shift("shl", e.bitwise("and", warp, 3), 16 + 5)
    found = e.plus(e.plus(code.tensor_memory[slot].address, column), lanes)
    for bit, (row, first) in enumerate(layout.warps):
        step = (row // LANES * layout.shape[1] + first) // pack
        if step:
            is_set = e.bitwise("and", e.shift("lshr", warp, bit), 1)
            found = e.plus(found, e.times(is_set, step))
    return found


def _runs(layout: Layout, pack: int) -> Iterator[tuple[int, int, int]]:
    """(first register, its column, how many) of what one instruction moves."""
    width = len({column for _, column in layout.regs})
    for first in range(0, len(layout.regs), width):
        band, start = layout.regs[first]
        at = (band // LANES * layout.shape[1] + start) // pack
        done = 0
        while done < width:
            count = min(_MAX_TIMES, 1 << ((width - done).bit_length() - 1))
            yield first + done, at + done, count
            done += count


def load(code: Code, op: ops.TensorLoad) -> None:
    """Instructions of up to 128 columns, and one wait for all of them: what is read is used after
    it, so that both are one piece of assembly."""
    e, made = code.emitter, op.tile
    layout, count = made.layout, len(made.layout.regs)
    at = _warp_address(code, op.slot, layout, op.column, 1)
    lines = [
        f"tcgen05.ld.sync.aligned.32x32b.x{times}.b32 "
        f"{{{', '.join(f'${reg}' for reg in range(first, first + times))}}}, [${count} + {column}];"
        for first, column, times in _runs(layout, 1)
    ]
    lines += ["tcgen05.wait::ld.sync.aligned;", "tcgen05.fence::before_thread_sync;"]
    text, kinds = "\\0A\\09".join(lines), ",".join(["=r"] * count)
    pack = "{" + ", ".join(["i32"] * count) + "}"
    found = e.value(f'call {pack} asm sideeffect "{text}", "{kinds},r,~{{memory}}"(i32 {at}) #1')
    words = [e.value(f"extractvalue {pack} {found}, {number}") for number in range(count)]
    made.assign(e.value(f"bitcast i32 {word} to {made.type}") for word in words)


def store(code: Code, op: ops.TensorStore) -> None:
    """As `load`, of those warps alone whose elements no other has."""
    e, layout = code.emitter, op.x.layout
    at = _warp_address(code, op.slot, layout, op.column, op.pack)
    repeats = sum(1 << bit for bit, basis in enumerate(layout.warps) if not any(basis))
    alone = e.value(f"icmp eq i32 {e.bitwise('and', _warp(code), repeats)}, 0")
    with e.where(alone):
        words = [e.value(f"bitcast {op.x.type} {reg} to i32") for reg in op.x.regs]
        lines = [
            f"tcgen05.st.sync.aligned.32x32b.x{times}.b32 [$0 + {column}], "
            f"{{{', '.join(f'${1 + reg}' for reg in range(first, first + times))}}};"
            for first, column, times in _runs(layout, op.pack)
        ]
        lines += ["tcgen05.wait::st.sync.aligned;", "tcgen05.fence::before_thread_sync;"]
        operands = ", ".join([f"i32 {at}", *(f"i32 {word}" for word in words)])
        _do(code, "\\0A\\09".join(lines), operands, ",".join(["r"] * (1 + len(words))))


RULES: dict[type[Op], Callable[..., None]] = {
    ops.TensorAlloc: alloc,
    ops.TensorAddress: address,
    ops.TensorFree: free,
    ops.TensorMma: mma,
    ops.TensorCommit: commit,
    ops.TensorWait: wait,
    ops.TensorLoad: load,
    ops.TensorStore: store,
}
