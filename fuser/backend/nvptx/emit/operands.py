"""Operands of dots in shared memory: a swizzled tile, its addresses, tiles written to it and read.

A tile is cut along its contiguous axis into blocks of `span` bytes; a block is rows of `span` bytes
whose 16-byte chunks are permuted by the row number, so that eight rows at one column fall into
eight different bank groups. It is the hardware's own swizzle (32, 64 or 128 bytes), which ldmatrix
does not care about and which wgmma and TMA name in their descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fuser.backend.nvptx.emit.code import Code, Writes, shared_offset
from fuser.backend.nvptx.emit.memory import from_memory, pack, unpack
from fuser.backend.nvptx.emit.values import memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, SharedTile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.integers import Linear


class SharedAddress:
    """Byte offsets in a shared tile of the registers of a layout over it.

    The permuted chunk number is (chunk ^ f(row)); with the thread's bits and the register's bits of
    the column disjoint, only an xor with a constant depends on the register.
    """

    def __init__(self, code: Code, tile: SharedTile, layout: Layout) -> None:
        self.code, self.tile, self.layout = code, tile, layout
        size = tile.dtype.bytes
        self.row: Operand = 0
        if not tile.flat:
            self.row = code.emitter.thread_coordinate(layout.bits, 1 - tile.inner)
        steps = [basis[tile.inner] * size for basis in layout.bits]
        self.column = code.emitter.thread_offset(steps)
        mask = 0
        for step in steps:
            mask |= step
        self.column_mask = mask if mask == sum(steps) else None
        self._known: dict[tuple[int, ...], Operand] = {}

    def at(self, offset: Coordinates) -> Linear:
        """The byte offset in the slot of the element at a register's coordinates."""
        tile = self.tile
        column = offset[tile.inner] * tile.dtype.bytes
        if tile.flat:
            dynamic = self.code.emitter.plus(self.column, tile.stage)
            if isinstance(dynamic, int):
                return Linear(None, dynamic + column)
            return Linear(dynamic, column)
        row = offset[1 - tile.inner]
        if self.column_mask is None or self.column_mask & column:
            key = (1, row % 8, column)
            if key not in self._known:
                moved = self.code.emitter.plus(self.column, column)
                self._known[key] = self._place(moved, row % 8, 0)
            constant = (row - row % 8) * tile.span
        else:
            chunk = column % tile.span // 16
            key = (0, row % 8, chunk)
            if key not in self._known:
                self._known[key] = self._place(self.column, row % 8, chunk)
            block = column // tile.span * tile.block_bytes
            constant = (row - row % 8) * tile.span + column % 16 + block
        dynamic = self._known[key]
        if isinstance(dynamic, int):
            return Linear(None, dynamic + constant)
        return Linear(dynamic, constant)

    def _place(self, column: Operand, row_rest: int, chunk: int) -> Operand:
        """Offset of (thread row + row_rest, column bytes with chunk number ^ chunk)."""
        e, span = self.code.emitter, self.tile.span
        row = e.plus(self.row, row_rest)
        # rows per 128 bytes decide which row bits belong to the permutation
        shift = {128: 0, 64: 1, 32: 2}[span]
        twist = e.bitwise("and", e.shift("lshr", row, shift), span // 16 - 1)
        number = e.bitwise("and", e.shift("lshr", column, 4), span // 16 - 1)
        number = e.bitwise("xor", e.bitwise("xor", number, twist), chunk)
        total = e.plus(e.times(row, span), e.shift("shl", number, 4))
        total = e.plus(total, e.bitwise("and", column, 15))
        block = e.shift("lshr", column, span.bit_length() - 1)
        total = e.plus(total, e.times(block, self.tile.block_bytes))
        return e.plus(total, self.tile.stage)

    def pointer(self, offset: Coordinates) -> str:
        """A shared pointer to the element at a register's coordinates."""
        dynamic, constant = self.at(offset)
        if dynamic is None:
            return self.code.place(self.tile.slot, constant)
        return shared_offset(self.code, self.code.place(self.tile.slot, dynamic), constant)


def read_registers(
    code: Code, tile: SharedTile, layout: Layout, numbers: Iterable[int]
) -> dict[int, str]:
    """Load the given registers of a layout over a shared tile, in vectors where adjacent."""
    emitter, dtype = code.emitter, tile.dtype
    address = SharedAddress(code, tile, layout)
    width = min(layout.vector(tile.inner), 16 // dtype.bytes)
    wanted = set(numbers)
    found: dict[int, str] = {}
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    for offset, members in vectors(layout, tile.inner, width):
        if not wanted.intersection(members):
            continue
        pointer = address.pointer(offset)
        name = emitter.value(
            f"load {type}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}"
        )
        items = [from_memory(code, name, dtype)] if width == 1 else unpack(code, name, dtype, width)
        found.update(zip(members, items, strict=True))
    return found


def read_tile(code: Code, op: ops.ReadTile) -> None:
    """One load a vector."""
    layout = op.tile.layout
    found = read_registers(code, op.source, layout, range(len(layout.regs)))
    op.tile.assign(found[number] for number in range(len(layout.regs)))


def write_tile(code: Code, op: ops.WriteTile) -> None:
    """One store a vector."""
    emitter, source, target = code.emitter, op.x, op.target
    dtype, layout = source.dtype, source.layout
    address = SharedAddress(code, target, layout)
    indexer = code.indexer(layout)
    width = min(layout.vector(target.inner), 16 // dtype.bytes)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    for offset, members in vectors(layout, target.inner, width):
        condition = indexer.inside(target.shape, offset)
        if condition == 0:
            continue
        value = pack(code, [source.regs[m] for m in members], dtype)
        pointer = address.pointer(offset)
        text = f"store {type} {value}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}"
        if condition is None:
            emitter.do(text)
        else:
            with emitter.where(condition):
                emitter.do(text)


def pack_fragments(code: Code, op: ops.PackFragments) -> None:
    """A register a word."""
    op.tile.assign(packed_words(code, op.x.regs, op.x.type))


def packed_words(code: Writes, regs: list[str], type: str) -> list[str]:
    """Neighbouring registers of 8 or 16 bits as i32 words."""
    e, count = code.emitter, 4 if type == "i8" else 2
    words = []
    for start in range(0, len(regs), count):
        known = [e.sources.halves.get(reg) for reg in regs[start : start + count]]
        if known[0] is not None and known[1:] == [(known[0][0], 1)] and known[0][1] == 0:
            words.append(known[0][0])
            continue
        group = "poison"
        for place, reg in enumerate(regs[start : start + count]):
            group = e.value(f"insertelement <{count} x {type}> {group}, {type} {reg}, i32 {place}")
        words.append(e.value(f"bitcast <{count} x {type}> {group} to i32"))
    return words


def load_matrices(code: Writes, pointer: str, count: int, transpose: str) -> list[str]:
    """ldmatrix of 2 or 4 matrices of 8 rows of 16 bytes; lanes 8i..8i+7 address the rows of
    matrix i."""
    e = code.emitter
    type = "{" + ", ".join(["i32"] * count) + "}"
    name = f"@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{transpose}.b16.p3"
    result = e.value(f"call {type} {name}(ptr addrspace(3) {pointer})")
    return [e.value(f"extractvalue {type} {result}, {i}") for i in range(count)]


RULES: dict[type[Op], Callable[..., None]] = {
    ops.ReadTile: read_tile,
    ops.WriteTile: write_tile,
    ops.PackFragments: pack_fragments,
}
