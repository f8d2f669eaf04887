"""16-bit tiles in accumulator layout, to and from memory in whole lines.

A warp transposes a strip in its buffer by stmatrix and ldmatrix on one side, 16-byte accesses of
eight lanes a row on the other. Chunks of 16 bytes are permuted by the row number: no two of a
quarter of a warp fall into one bank.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.memory import Guard, Pointers, halves
from fuser.backend.nvptx.emit.operands import load_matrices, packed_words
from fuser.backend.nvptx.emit.values import literal, memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Slot
from fuser.backend.nvptx.ir.warp_transpose import BUFFER, PITCH, WarpTranspose, warp_transpose_in
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.dtypes import DType


class _Buffer:
    """Addresses in the calling warp's buffer."""

    def __init__(self, code: Code, transpose: WarpTranspose, slot: Slot) -> None:
        self.code = code
        e = code.emitter
        warps = [BUFFER << bit for bit in range(len(transpose.memory_layout.warps))]
        base = e.thread_offset([0] * 5 + warps)
        lane = e.hoisted(f"and i32 {e.tid}, 31")
        # matrices: lane l points at row l % 16 and chunk l / 16 of its pair
        row = e.hoisted(f"and i32 {lane}, 15")
        twist = e.hoisted(f"and i32 {lane}, 7")
        half = e.hoisted(f"lshr i32 {lane}, 4")
        chunk = e.hoisted(f"xor i32 {half}, {twist}")
        self.matrix_chunk: Operand = e.hoisted(f"shl i32 {chunk}, 4")
        line = e.hoisted(f"shl i32 {row}, 7")
        self.matrix_base = code.place(slot, e.plus(base, line))
        # lines: the lane's own row and bytes
        lanes = transpose.memory_layout.lanes
        row_part = e.thread_offset([basis[0] for basis in lanes])
        bytes_ = e.thread_offset([basis[1] * 2 for basis in lanes])
        rest: Operand = 0
        if transpose.vector < 8:
            rest = e.bitwise("and", bytes_, 15)
        place = e.bitwise("xor", e.shift("lshr", bytes_, 4), e.bitwise("and", row_part, 7))
        self.line_chunk = e.shift("shl", place, 4)
        offset = e.plus(e.plus(base, e.shift("shl", row_part, 7)), rest)
        self.line_base = code.place(slot, offset)
        self._known: dict[tuple[bool, int], str] = {}

    def matrix(self, column: int) -> str:
        """Where matrices of 16 columns from `column` of the strip are."""
        return self._at(True, column * 2, 0)

    def line(self, row: int, column: int) -> str:
        """Where the vector at the register offset (row, column) in the strip is."""
        return self._at(False, column * 2 ^ (row & 7) << 4, row * PITCH)

    def _at(self, matrix: bool, swizzle: int, more: int) -> str:
        e = self.code.emitter
        key = (matrix, swizzle)
        if key not in self._known:
            chunk, base = (
                (self.matrix_chunk, self.matrix_base)
                if matrix
                else (self.line_chunk, self.line_base)
            )
            moved = e.bitwise("xor", chunk, swizzle)
            self._known[key] = e.value(f"getelementptr i8, ptr addrspace(3) {base}, i32 {moved}")
        if not more:
            return self._known[key]
        return e.value(f"getelementptr i8, ptr addrspace(3) {self._known[key]}, i32 {more}")


def _sync(code: Code) -> None:
    code.emitter.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")


def _transpose_of(layout: Layout, width: int, vector: int) -> WarpTranspose:
    found = warp_transpose_in(layout, width, vector)
    assert found is not None
    return found


def _vector_type(dtype: DType, vector: int) -> str:
    element = memory_type(dtype)
    return element if vector == 1 else f"<{vector} x {element}>"


def store_lines(code: Code, op: ops.StoreLines) -> None:
    """Of every strip: matrices into the buffer, then vectors out of it."""
    e, x, at = code.emitter, op.value, op.at
    transpose = _transpose_of(x.layout, op.width, op.vector)
    indexer = code.indexer(transpose.memory_layout, at.scope)
    pointers = Pointers(code, at, indexer)
    guard = Guard(code, at, transpose.memory_layout, indexer)
    element, type = memory_type(x.dtype), _vector_type(x.dtype, op.vector)
    align = op.vector * x.dtype.bytes
    buffer = _Buffer(code, transpose, op.slot)
    for band, first, offsets in transpose.groups():
        for column, wide in transpose.blocks(first):
            regs = [
                x.regs[x.layout.register_of[(band + half, column + 8 * block + pair)]]
                for block in range(wide)
                for half in (0, 8)
                for pair in (0, 1)
            ]
            words = ", ".join(f"i32 {word}" for word in packed_words(code, regs, element))
            e.do(
                f"call void @llvm.nvvm.stmatrix.sync.aligned.m8n8.x{2 * wide}.b16.p3("
                f"ptr addrspace(3) {buffer.matrix(column - first)}, {words})"
            )
        _sync(code)
        for row, column in offsets:
            condition = guard.at((row, column))
            if condition == 0:
                continue
            place = buffer.line(row - band, column - first)
            value = e.value(f"load {type}, ptr addrspace(3) {place}, align {align}")
            _store(code, type, align, pointers.at((row, column)), value, condition)
        _sync(code)


def _store(
    code: Code, type: str, bytes_: int, pointer: str, value: str, condition: Operand | None
) -> None:
    """Store a vector where the condition holds, without a branch: the code stays straight."""
    e = code.emitter
    if condition is None:
        e.do(f"store {type} {value}, ptr addrspace(1) {pointer}, align {bytes_}")
        return
    words = max(1, bytes_ // 4)
    unit = "i32" if bytes_ >= 4 else "i16"
    whole = unit if words == 1 else f"<{words} x {unit}>"
    bits = e.value(f"bitcast {type} {value} to {whole}")
    items = [bits]
    if words > 1:
        items = [e.value(f"extractelement {whole} {bits}, i32 {i}") for i in range(words)]
    listed = ", ".join(f"${i + 2}" for i in range(words))
    kind = f"v{words}.b32" if words > 1 else "b32" if bytes_ >= 4 else "b16"
    text = f"@$1 st.global.{kind} [$0], " + (f"{{{listed}}};" if words > 1 else f"{listed};")
    marks = ",".join(["l", "b", *(["r" if bytes_ >= 4 else "h"] * words), "~{memory}"])
    operands = ", ".join(f"{unit} {item}" for item in items)
    e.do(
        f'call void asm sideeffect "{text}", "{marks}"(ptr addrspace(1) {pointer}, '
        f"i1 {condition}, {operands})"
    )


def load_lines(code: Code, op: ops.LoadLines) -> None:
    """One load a vector, all of them under way before the first is used; one branch for all that
    have one condition. A register for each vector."""
    e, layout, dtype = code.emitter, op.tile.layout, op.at.access.view.dtype
    indexer = code.indexer(layout, op.at.scope)
    guard = Guard(code, op.at, layout, indexer)
    pointers = Pointers(code, op.at, indexer)
    type, align = _vector_type(dtype, op.vector), op.vector * dtype.bytes
    tail = ", !invariant.load !2" if op.constant else ""
    fill = literal(op.pad or 0, dtype)
    if op.vector > 1:
        fill = "<" + ", ".join([f"{memory_type(dtype)} {fill}"] * op.vector) + ">"
    found: dict[Coordinates, str] = {}
    guarded: dict[Operand, list[tuple[Coordinates, str]]] = {}
    offsets = layout.regs[:: op.vector]
    for at in offsets:
        condition = guard.at(at)
        if condition == 0:
            found[at] = fill
            continue
        pointer = pointers.at(at)
        if condition is None:
            found[at] = e.value(f"load {type}, ptr addrspace(1) {pointer}, align {align}{tail}")
        else:
            guarded.setdefault(condition, []).append((at, pointer))
    for condition, group in guarded.items():
        before = e.at
        then, done = e.block("load"), e.block("loaded")
        e.branch(condition, then, done)
        e.enter(then)
        read = [
            (at, e.value(f"load {type}, ptr addrspace(1) {pointer}, align {align}{tail}"))
            for at, pointer in group
        ]
        e.jump(done)
        e.enter(done)
        for at, name in read:
            found[at] = e.value(
                f"phi {type} [ {name}, %{then.label} ], [ {fill}, %{before.label} ]"
            )
    op.tile.assign(found[at] for at in offsets)


def turn_lines(code: Code, op: ops.TurnLines) -> None:
    """Of every strip: vectors into the buffer, then matrices out of it."""
    e, made = code.emitter, op.tile
    layout, element = made.layout, memory_type(made.dtype)
    transpose = _transpose_of(layout, op.width, op.vector)
    type, align = _vector_type(made.dtype, op.vector), op.vector * made.dtype.bytes
    vectors = iter(op.x.regs)
    made.assign([""] * len(layout.regs))
    buffer = _Buffer(code, transpose, op.slot)
    for band, first, offsets in transpose.groups():
        for at in offsets:
            place = buffer.line(at[0] - band, at[1] - first)
            e.do(f"store {type} {next(vectors)}, ptr addrspace(3) {place}, align {align}")
        _sync(code)
        for column, wide in transpose.blocks(first):
            words = load_matrices(code, buffer.matrix(column - first), 2 * wide, "")
            places = [(block, half) for block in range(wide) for half in (0, 8)]
            for word, (block, half) in zip(words, places, strict=True):
                for i, part in enumerate(halves(code, word, element)):
                    number = layout.register_of[(band + half, column + 8 * block + i)]
                    made.regs[number] = part
        _sync(code)


RULES: dict[type[Op], Callable[..., None]] = {
    ops.StoreLines: store_lines,
    ops.LoadLines: load_lines,
    ops.TurnLines: turn_lines,
}
