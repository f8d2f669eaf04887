"""16-bit tiles in accumulator layout, to and from memory in whole lines, without other warps.

An accumulator gives a thread two neighbours of a row, and four lanes 16 bytes: half of what memory
moves at a time. Here a warp turns strips of 16 rows and up to 64 columns over in a buffer of its
own (stmatrix and ldmatrix on one side, 16-byte accesses of eight lanes a row on the other), so a
warp group's epilogue waits for no other group. Chunks of 16 bytes are permuted by the row number:
no two of a quarter of a warp fall into one bank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuser.backend.nvptx.access import Access, step_of
from fuser.backend.nvptx.emit.memory import Guard, Pointers, halves
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layout import ROW_LANES, Coordinates, Layout
from fuser.backend.nvptx.masks import can_remake
from fuser.backend.nvptx.mma import load_matrices, packed_words
from fuser.backend.nvptx.persistent import BUFFER
from fuser.backend.nvptx.values import literal, memory_type
from fuser.graph.sizes import same

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

ROWS, PITCH = 16, 128
"""Rows of a strip, and bytes of a row in the buffer: BUFFER together."""


@dataclass(frozen=True)
class Strips:
    """bands: first rows of a warp's strips. start, columns: of a warp. width: columns of a strip
    (the last may stick out). lines: the layout in which memory is accessed, `vector` elements at
    once.
    """

    bands: tuple[int, ...]
    start: int
    columns: int
    width: int
    vector: int
    lines: Layout

    @property
    def end(self) -> int:
        return self.start + self.columns

    def groups(self) -> Iterator[tuple[int, int, list[Coordinates]]]:
        """(band, first column, offsets of its vectors) of every strip."""
        across = min(32 * self.vector, self.width)
        step = 32 * self.vector // across
        for band in self.bands:
            for first in range(self.start, self.end, self.width):
                offsets: list[Coordinates] = [
                    (band + row, first + column)
                    for row in range(0, ROWS, step)
                    for column in range(0, self.width, across)
                ]
                yield band, first, offsets


def strips_of(low: Lowering, access: Access, layout: Layout) -> Strips | None:
    """How warps turn a tile of this layout over; None where it is not in accumulator layout or
    memory does not run along its rows."""
    if low.target.sm < 90 or access.view.dtype.bits != 16 or len(access.shape) != 2:
        return None
    if low.cluster.blocks > 1:
        return None
    mask = access.mask
    if mask is not None and not can_remake(mask, low.assignment.makers, low.env.__contains__):
        return None
    if access.axis != 1 or not same(step_of(access.linear, 1, 1), 1) or layout.lanes != ROW_LANES:
        return None
    rows = sorted({row for row, _ in layout.regs})
    columns = sorted({column for _, column in layout.regs})
    bands = tuple(row for row in rows if row % 16 == 0)
    blocks = [column for column in columns if column % 8 == 0]
    if rows != [band + half for band in bands for half in (0, 8)]:
        return None
    start = columns[0]
    if columns != [start + 8 * i + pair for i in range(len(blocks)) for pair in (0, 1)]:
        return None
    extent = 8 * len(blocks)
    if extent < 32 or len(layout.regs) != len(rows) * len(columns):
        return None
    shared = any(basis[1] for basis in layout.warps)
    width = 64 if extent >= 64 and not (shared and extent % 64) else 32
    if shared and extent % width:
        return None
    vector = min(access.width, 8)
    lanes: list[Coordinates] = []
    at = vector
    while len(lanes) < 5 and at < width:
        lanes.append((0, at))
        at *= 2
    lanes += [(1 << bit, 0) for bit in range(5 - len(lanes))]
    strips = Strips(bands, start, extent, width, vector, layout)
    regs = tuple(
        (row, column + i)
        for _, _, offsets in strips.groups()
        for row, column in offsets
        for i in range(vector)
    )
    covered = (layout.shape[0], layout.shape[1] + -extent % width)
    lines = Layout(covered, regs, tuple(lanes), layout.warps)
    return Strips(bands, start, extent, width, vector, lines)


class _Buffer:
    """Addresses in the calling warp's buffer."""

    def __init__(self, low: Lowering, strips: Strips, slot: Slot) -> None:
        self.low, self.strips = low, strips
        e = low.emitter
        warps = [BUFFER << bit for bit in range(len(strips.lines.warps))]
        base = e.thread_part([0] * 5 + warps)
        lane = e.hoisted(f"and i32 {e.tid}, 31")
        # matrices: lane l points at row l % 16 and chunk l / 16 of its pair
        row = e.hoisted(f"and i32 {lane}, 15")
        twist = e.hoisted(f"and i32 {lane}, 7")
        half = e.hoisted(f"lshr i32 {lane}, 4")
        chunk = e.hoisted(f"xor i32 {half}, {twist}")
        self.matrix_chunk: Operand = e.hoisted(f"shl i32 {chunk}, 4")
        line = e.hoisted(f"shl i32 {row}, 7")
        self.matrix_base = low.shared.pointer(slot, e.plus(base, line))
        # lines: the lane's own row and bytes
        lanes = strips.lines.lanes
        row_part = e.thread_part([basis[0] for basis in lanes])
        bytes_ = e.thread_part([basis[1] * 2 for basis in lanes])
        rest: Operand = 0
        if strips.vector < 8:
            rest = e.bitwise("and", bytes_, 15)
        place = e.bitwise("xor", e.shift("lshr", bytes_, 4), e.bitwise("and", row_part, 7))
        self.line_chunk = e.shift("shl", place, 4)
        offset = e.plus(e.plus(base, e.shift("shl", row_part, 7)), rest)
        self.line_base = low.shared.pointer(slot, offset)
        self._known: dict[tuple[bool, int], str] = {}

    def matrix(self, column: int) -> str:
        """Where matrices of 16 columns from `column` of the strip are."""
        return self._at(True, column * 2, 0)

    def line(self, row: int, column: int) -> str:
        """Where the vector at the register offset (row, column) in the strip is."""
        return self._at(False, column * 2 ^ (row & 7) << 4, row * PITCH)

    def _at(self, matrix: bool, turn: int, more: int) -> str:
        e = self.low.emitter
        key = (matrix, turn)
        if key not in self._known:
            chunk, base = (
                (self.matrix_chunk, self.matrix_base)
                if matrix
                else (self.line_chunk, self.line_base)
            )
            moved = e.bitwise("xor", chunk, turn)
            self._known[key] = e.value(f"getelementptr i8, ptr addrspace(3) {base}, i32 {moved}")
        if not more:
            return self._known[key]
        return e.value(f"getelementptr i8, ptr addrspace(3) {self._known[key]}, i32 {more}")


@contextmanager
def own_buffers(low: Lowering) -> Iterator[None]:
    """Let the warps keep their buffers for a while, so that they wait for each other only once."""
    if low.warp_buffers is not None:
        yield
        return
    slot = low.shared.allocate(BUFFER * low.warps, 128)
    low.shared.before_write()
    low.warp_buffers = slot
    yield
    low.warp_buffers = None
    low.shared.note_read()
    low.shared.free(slot)


@contextmanager
def _buffer(low: Lowering, strips: Strips) -> Iterator[_Buffer]:
    """The warps' buffers: their own for the whole kernel, or a slot like any other."""
    with own_buffers(low):
        assert low.warp_buffers is not None
        yield _Buffer(low, strips, low.warp_buffers)


def _sync(low: Lowering) -> None:
    low.emitter.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")


def store_strips(low: Lowering, access: Access, tile: Tile, strips: Strips) -> None:
    """Write a tile; elements out of bounds are dropped."""
    e, layout, dtype, vector = low.emitter, tile.layout, tile.dtype, strips.vector
    indexer = low.indexer(strips.lines)
    at = low.place(access, strips.lines)
    pointers = Pointers(low.code, at, indexer)
    guard = Guard(low.code, at, strips.lines, indexer)
    element = memory_type(dtype)
    type = element if vector == 1 else f"<{vector} x {element}>"
    align = vector * dtype.bytes
    with _buffer(low, strips) as buffer:
        for band, first, offsets in strips.groups():
            for column in range(first, min(first + strips.width, strips.end), 16):
                wide = 2 if column + 16 <= strips.end else 1
                regs = [
                    tile.regs[layout.register_of[(band + half, column + 8 * block + pair)]]
                    for block in range(wide)
                    for half in (0, 8)
                    for pair in (0, 1)
                ]
                words = ", ".join(f"i32 {word}" for word in packed_words(low, regs, element))
                e.do(
                    f"call void @llvm.nvvm.stmatrix.sync.aligned.m8n8.x{2 * wide}.b16.p3("
                    f"ptr addrspace(3) {buffer.matrix(column - first)}, {words})"
                )
            _sync(low)
            for row, column in offsets:
                condition = guard.at((row, column))
                if condition == 0:
                    continue
                place = buffer.line(row - band, column - first)
                value = e.value(f"load {type}, ptr addrspace(3) {place}, align {align}")
                _store(low, type, align, pointers.at((row, column)), value, condition)
            _sync(low)


def _store(
    low: Lowering, type: str, bytes_: int, pointer: str, value: str, condition: Operand | None
) -> None:
    """Store a vector where the condition holds, without a branch: the code stays straight."""
    e = low.emitter
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


@dataclass(frozen=True, eq=False)
class Lines:
    """A tile on its way from memory: its vectors, in registers."""

    access: Access
    strips: Strips
    type: str
    vectors: dict[Coordinates, str]


def load_strips(
    low: Lowering, access: Access, layout: Layout, pad: float | int | None, strips: Strips
) -> Tile:
    """Read a tile into an accumulator layout, `pad` where out of bounds."""
    return land_lines(low, layout, issue_lines(low, access, pad, strips))


def issue_lines(low: Lowering, access: Access, pad: float | int | None, strips: Strips) -> Lines:
    """Read the vectors of a tile, `pad` where out of bounds."""
    element = memory_type(access.view.dtype)
    type = element if strips.vector == 1 else f"<{strips.vector} x {element}>"
    indexer = low.indexer(strips.lines)
    at = low.place(access, strips.lines)
    places = Guard(low.code, at, strips.lines, indexer), Pointers(low.code, at, indexer)
    offsets = [at for _, _, listed in strips.groups() for at in listed]
    align = strips.vector * access.view.dtype.bytes
    found = _load_lines(low, access, pad, places, offsets, type, align)
    return Lines(access, strips, type, found)


def land_lines(low: Lowering, layout: Layout, lines: Lines) -> Tile:
    """The tile in its accumulator layout."""
    e, strips, dtype = low.emitter, lines.strips, lines.access.view.dtype
    element = memory_type(dtype)
    align = strips.vector * dtype.bytes
    regs = [""] * len(layout.regs)
    with _buffer(low, strips) as buffer:
        for band, first, offsets in strips.groups():
            for at in offsets:
                place = buffer.line(at[0] - band, at[1] - first)
                value = lines.vectors[at]
                e.do(f"store {lines.type} {value}, ptr addrspace(3) {place}, align {align}")
            _sync(low)
            for column in range(first, min(first + strips.width, strips.end), 16):
                wide = 2 if column + 16 <= strips.end else 1
                words = load_matrices(low, buffer.matrix(column - first), 2 * wide, "")
                places = [(block, half) for block in range(wide) for half in (0, 8)]
                for word, (block, half) in zip(words, places, strict=True):
                    for i, part in enumerate(halves(low, word, element)):
                        number = layout.register_of[(band + half, column + 8 * block + i)]
                        regs[number] = part
            _sync(low)
    return Tile(dtype, lines.access.shape, layout, regs)


def _load_lines(
    low: Lowering,
    access: Access,
    pad: float | int | None,
    places: tuple[Guard, Pointers],
    offsets: list[Coordinates],
    type: str,
    align: int,
) -> dict[Coordinates, str]:
    """The vectors at these offsets, all of them under way before the first is used."""
    e, (guard, pointers) = low.emitter, places
    tail = ", !invariant.load !2" if low.is_constant(access.view.buffer) else ""
    fill = literal(pad or 0, access.view.dtype)
    element = memory_type(access.view.dtype)
    vector = align // access.view.dtype.bytes
    if vector > 1:
        fill = "<" + ", ".join([f"{element} {fill}"] * vector) + ">"
    found: dict[Coordinates, str] = {}
    guarded: dict[Operand, list[tuple[Coordinates, str]]] = {}
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
    return found
