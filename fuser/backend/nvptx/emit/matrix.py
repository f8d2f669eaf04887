"""Matmuls that a thread waits for: mma.sync of 16 rows by 8 columns, and multiply-adds; partial
sums added up."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from fuser.backend.nvptx.emit.cluster import in_block
from fuser.backend.nvptx.emit.code import Code, shared_offset
from fuser.backend.nvptx.emit.elementwise import cast
from fuser.backend.nvptx.emit.memory import from_memory, pack
from fuser.backend.nvptx.emit.operands import (
    SharedAddress,
    load_matrices,
    packed_words,
    read_registers,
)
from fuser.backend.nvptx.emit.values import memory_type
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import offset_of, vectors
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.layouts.mma_units import UNITS, Unit
from fuser.dtypes import DType

# operands of 8 or 16 bits -------------------------------------------------------------------------


def mma(code: Code, op: ops.Mma) -> None:
    """An instruction for every 16 rows, 8 columns and 32 bytes of k; fragments by ldmatrix, or
    what threads have."""
    grid, unit = op.grid, UNITS[op.unit]
    steps, blocks = -(-op.k // unit.depth), grid.columns // 8
    regs = list(op.acc.regs)
    lefts: _LeftFragments | _LeftWords = _LeftFragments(code, op)
    rights: _RightFragments | _RightWords
    each = range(0, steps, grid.warps_k)
    if isinstance(op.b, Tile):
        lefts, rights = _LeftWords(code, op), _RightWords(code, op.b, blocks)
        each = range(steps // grid.warps_k)
    else:
        rights = _RightFragments(code, op, op.b)
    for step in each:
        b = rights.step(step)
        for band in range(grid.bands):
            a = lefts.fragment(band, step)
            for block in range(blocks):
                at = (band * blocks + block) * 4
                sums = regs[at : at + 4]
                if op.whole:
                    regs[at : at + 4] = _product(code, unit, [*a, *b[block]], sums)
                else:
                    regs[at : at + 4] = _in_parts(code, unit, a, b[block], sums)
    op.tile.assign(regs)


def _in_parts(code: Code, unit: Unit, a: list[str], b: list[str], sums: list[str]) -> list[str]:
    """The same by instructions of 16 bytes of k: of 16 rows, or of 8 where elements have 8 bits.
    Words of A are rows, then rows 8 further down, each of the first and then the second half."""
    e, type = code.emitter, unit.llvm_sum
    count = 2 if unit.is_integer else 4
    name = f"m8n8k16.row.col.{unit.name}" if unit.is_integer else "m16n8k8.row.col.f32.f32"
    pack = "{" + ", ".join([type] * count) + "}"
    kind = "i32" if unit.is_integer else "<2 x half>"
    found = list(sums)
    for half in range(2):
        rows = a[2 * half : 2 * half + 2]
        for first, words in enumerate([[word] for word in rows] if unit.is_integer else [rows]):
            at = slice(2 * first, 2 * first + count)
            items = [f"{kind} {_as(code, word, kind)}" for word in (*words, b[half])]
            items += [f"{type} {item}" for item in found[at]]
            made = e.value(f"call {pack} @llvm.nvvm.mma.{name}({', '.join(items)})")
            found[at] = [e.value(f"extractvalue {pack} {made}, {i}") for i in range(count)]
    return found


def _product(code: Code, unit: Unit, words: list[str], sums: list[str]) -> list[str]:
    """One instruction: four words of A, two of B, four sums."""
    e, type = code.emitter, unit.llvm_sum
    pack = "{" + ", ".join([type] * 4) + "}"
    added = ", ".join(f"{type} {item}" for item in sums)
    if unit.depth == 32 and not unit.is_integer:  # LLVM has no intrinsic of these
        text = (
            f"mma.sync.aligned.m16n8k32.row.col.f32.{unit.name}.{unit.name}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        listed = ", ".join(f"i32 {word}" for word in words)
        result = e.value(
            f'call {pack} asm sideeffect "{text}", "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"'
            f"({listed}, {added}) #1"
        )
    else:
        kind = "<2 x half>" if unit.name == "f16" else "i32"
        name = "f32.f32" if unit.name == "f16" else unit.name
        listed = ", ".join(f"{kind} {_as(code, word, kind)}" for word in words)
        result = e.value(
            f"call {pack} @llvm.nvvm.mma.m16n8k{unit.depth}.row.col.{name}({listed}, {added})"
        )
    return [e.value(f"extractvalue {pack} {result}, {i}") for i in range(4)]


def _as(code: Code, word: str, type: str) -> str:
    return word if type == "i32" else code.emitter.value(f"bitcast i32 {word} to {type}")


class _LeftFragments:
    """Fragments of an A operand: four words for 16 rows and 32 bytes of k."""

    def __init__(self, code: Code, op: ops.Mma) -> None:
        self.code, self.source = code, op.a
        self.depth = op.grid.depth
        self.steps = -(-op.k // self.depth)
        if isinstance(op.a, SharedTile):
            k_inner = op.a.inner == 1
            lanes: tuple[Coordinates, ...] = (
                (1, 0), (2, 0), (4, 0), (8, 0), (0, self.depth // 2)
            )  # fmt: skip
            if not k_inner:
                lanes = ((0, 1), (0, 2), (0, 4), (8, 0), (0, 8))
            layout = Layout(op.a.shape, ((0, 0),), lanes, op.grid.warp_bits(True, False, 1))
            self.address = SharedAddress(code, op.a, layout)
            self.transpose = "" if k_inner else ".trans"
        self._known: dict[tuple[int, int], list[str]] = {}

    def fragment(self, band: int, step: int) -> list[str]:
        key = (band, step)
        if key not in self._known:
            if isinstance(self.source, SharedTile):
                pointer = self.address.pointer((band * 16, step * self.depth))
                self._known[key] = load_matrices(self.code, pointer, 4, self.transpose)
            else:
                count = self.depth // 2
                at = (band * self.steps + step) * count
                regs = self.source.regs[at : at + count]
                self._known[key] = packed_words(self.code, regs, self.source.type)
        return self._known[key]


class _RightFragments:
    """Fragments of a B operand in shared memory: two words for 32 bytes of k and 8 columns."""

    def __init__(self, code: Code, op: ops.Mma, source: SharedTile) -> None:
        self.code, self.grid = code, op.grid
        self.depth = op.grid.depth
        k_inner = source.inner == 0
        self.transpose = "" if k_inner else ".trans"
        bits = self.grid.warp_bits(False, True, 0)
        lanes: tuple[Coordinates, ...] = ((0, 1), (0, 2), (0, 4), (self.depth // 2, 0), (0, 8))
        if not k_inner:
            lanes = ((1, 0), (2, 0), (4, 0), (8, 0), (0, 8))
        self.two = SharedAddress(code, source, Layout(source.shape, ((0, 0),), lanes, bits))
        lanes = (*lanes[:4], (0, 0))
        self.one = SharedAddress(code, source, Layout(source.shape, ((0, 0),), lanes, bits))

    def step(self, step: int) -> list[list[str]]:
        """Words of every 8-column block of the warp at a step of an instruction along k."""
        found: list[list[str]] = []
        blocks = self.grid.columns // 8
        for block in range(0, blocks - 1, 2):
            pointer = self.two.pointer((step * self.depth, block * 8))
            words = load_matrices(self.code, pointer, 4, self.transpose)
            found += [words[:2], words[2:]]
        if blocks % 2:
            pointer = self.one.pointer((step * self.depth, (blocks - 1) * 8))
            found.append(load_matrices(self.code, pointer, 2, self.transpose))
        return found


class _LeftWords:
    """Fragments of an A operand where k is numbered as the lanes have B: a run of k is read at
    once."""

    def __init__(self, code: Code, op: ops.Mma) -> None:
        layout = op.grid.left_fragment(op.k)
        if isinstance(op.a, Tile):
            regs = op.a.regs
        else:
            found = read_registers(code, op.a, layout, range(len(layout.regs)))
            regs = [found[number] for number in range(len(layout.regs))]
        self.words = packed_words(code, regs, op.a.dtype.llvm)
        self.count = 2 if op.grid.lower_half else 4
        # Rows that nobody looks at may be anything: a register that nothing was written to, which
        # costs no move, as a zero next to the others would.
        self.any = code.emitter.value('call i32 asm "", "=r"()') if self.count == 2 else ""
        self.steps = len(self.words) // (self.count * op.grid.bands)

    def fragment(self, band: int, step: int) -> list[str]:
        at = (band * self.steps + step) * self.count
        words = self.words[at : at + self.count]
        return words if self.count == 4 else [words[0], self.any, words[1], self.any]


class _RightWords:
    """Fragments of a B operand in registers."""

    def __init__(self, code: Code, source: Tile, blocks: int) -> None:
        self.code, self.source, self.blocks = code, source, blocks

    def step(self, step: int) -> list[list[str]]:
        """Words of every 8-column block of the warp at one of its steps along k."""
        first = step * self.blocks * 4
        regs = self.source.regs[first : first + self.blocks * 4]
        words = packed_words(self.code, regs, self.source.type)
        return [words[at : at + 2] for at in range(0, len(words), 2)]


# float32 as tf32 ----------------------------------------------------------------------------------


def mma_tf32(code: Code, op: ops.MmaTf32) -> None:
    """An instruction for every 16 rows, 8 columns and 8 of k; three where operands are split."""
    grid = op.grid
    steps, blocks = -(-op.k // 8), grid.columns // 8
    left_layout, right_layout = grid.left_fragment32(op.k), grid.right_fragment32(op.k)
    regs = list(op.acc.regs)
    for step in range(steps):
        b = _step_registers(
            code, op.b, right_layout, [(step * blocks + i) * 2 for i in range(blocks)], 2
        )
        parts_b = [_split(code, words, op.split) for words in b]
        starts = [(band * steps + step) * 4 for band in range(grid.bands)]
        a = _step_registers(code, op.a, left_layout, starts, 4)
        for band in range(grid.bands):
            big_a, small_a = _split(code, a[band], op.split)
            for block in range(blocks):
                big_b, small_b = parts_b[block]
                at = (band * blocks + block) * 4
                sums = regs[at : at + 4]
                if op.split:
                    sums = _tf32_product(code, small_a, big_b, sums)
                    sums = _tf32_product(code, big_a, small_b, sums)
                regs[at : at + 4] = _tf32_product(code, big_a, big_b, sums)
    op.tile.assign(regs)


def _step_registers(
    code: Code, source: SharedTile | Tile, layout: Layout, starts: list[int], count: int
) -> list[list[str]]:
    """Registers [start, start + count) of a fragment layout, for each start."""
    if isinstance(source, Tile):
        return [source.regs[start : start + count] for start in starts]
    found = read_registers(code, source, layout, [s + i for s in starts for i in range(count)])
    return [[found[start + i] for i in range(count)] for start in starts]


def _split(code: Code, regs: list[str], split: bool) -> tuple[list[str], list[str]]:
    """(big, small) tf32 words of float32 registers."""
    e = code.emitter
    big = [e.value(f"call i32 @llvm.nvvm.f2tf32.rna(float {reg})") for reg in regs]
    if not split:
        return big, []
    small = []
    for reg, word in zip(regs, big, strict=True):
        rounded = e.value(f"bitcast i32 {word} to float")
        rest = e.value(f"fsub float {reg}, {rounded}")
        small.append(e.value(f"call i32 @llvm.nvvm.f2tf32.rna(float {rest})"))
    return big, small


def _tf32_product(code: Code, a: list[str], b: list[str], sums: list[str]) -> list[str]:
    e = code.emitter
    words = ", ".join(f"i32 {word}" for word in (*a, *b))
    floats = ", ".join(f"float {item}" for item in sums)
    result = e.value(
        "call {float, float, float, float} "
        f"@llvm.nvvm.mma.m16n8k8.row.col.tf32({words}, {floats})"
    )
    return [e.value(f"extractvalue {{float, float, float, float}} {result}, {i}") for i in range(4)]


# no tensor core -----------------------------------------------------------------------------------


def fma_dot(code: Code, op: ops.FmaDot) -> None:
    """A loop over k: a column of a and a row of b, a multiply-add an element."""
    e, acc, layout, dtype = code.emitter, op.acc, op.acc.layout, op.acc.dtype
    type = dtype.llvm
    before, head, done = e.at, e.block("k"), e.block("k.end")
    e.jump(head)
    e.enter(head)
    position = e.name_of()
    names = [e.name_of() for _ in layout.regs]
    mark = len(e.at.lines)
    rows = _line(code, op, op.a, op.a_steps, 0, position)
    columns = _line(code, op, op.b, op.b_steps, 1, position)
    sums = []
    for name, offset in zip(names, layout.regs, strict=True):
        a, b = rows[offset[0]], columns[offset[1]]
        if dtype.is_float:
            suffix = "f64" if type == "double" else "f32"
            sums.append(
                e.value(f"call {type} @llvm.fma.{suffix}({type} {a}, {type} {b}, {type} {name})")
            )
        else:
            sums.append(e.value(f"add {type} {name}, {e.value(f'mul {type} {a}, {b}')}"))
    following = e.value(f"add i32 {position}, 1")
    more = e.value(f"icmp ult i32 {following}, {op.k}")
    latch = e.at
    phis = [f"{position} = phi i32 [ 0, %{before.label} ], [ {following}, %{latch.label} ]"]
    for name, start, total in zip(names, acc.regs, sums, strict=True):
        phis.append(
            f"{name} = phi {type} [ {start}, %{before.label} ], [ {total}, %{latch.label} ]"
        )
    head.lines[mark:mark] = phis
    e.branch(more, head, done)
    e.enter(done)
    op.tile.assign(sums)


def _line(
    code: Code, op: ops.FmaDot, slot: Slot, steps: tuple[int, ...], axis: int, k: str
) -> dict[int, str]:
    """An operand's elements at one k, by the register's place along the axis that is not k."""
    e, layout = code.emitter, op.acc.layout
    memory, size = memory_type(op.dtype), op.dtype.bytes
    thread = e.thread_offset([basis[axis] * steps[axis] for basis in layout.bits])
    base = code.place(slot, e.plus(thread, e.times(k, steps[1 - axis])))
    found: dict[int, str] = {}
    for offset in layout.regs:
        at = offset[axis]
        if at not in found:
            pointer = shared_offset(code, base, at * steps[axis])
            raw = e.value(f"load {memory}, ptr addrspace(3) {pointer}, align {size}")
            found[at] = cast(e, from_memory(code, raw, op.dtype), op.dtype, op.acc.dtype)
    return found


# sums ---------------------------------------------------------------------------------------------


def accumulate(code: Code, op: ops.Accumulate) -> None:
    """An addition a register."""
    pairs = zip(op.acc.regs, op.x.regs, strict=True)
    op.tile.assign(_added(code, op.acc.dtype, a, b) for a, b in pairs)


def _added(code: Code, dtype: DType, a: str, b: str) -> str:
    verb = "fadd" if dtype.is_float else "add"
    return code.emitter.value(f"{verb} {dtype.llvm} {a}, {b}")


def write_partials(code: Code, op: ops.WritePartials) -> None:
    """A store for every vector of neighbours of an accumulator."""
    e, x = code.emitter, op.x
    threads = e.thread_offset([offset_of(basis, op.steps) for basis in x.layout.bits])
    base = code.place(op.slot, e.plus(threads, e.thread_offset(op.parts)))
    width = min(4, x.layout.vector(1))
    type = f"<{width} x {x.type}>" if width > 1 else x.type
    for offset, members in vectors(x.layout, 1, width):
        value = pack(code, [x.regs[member] for member in members], x.dtype)
        pointer = shared_offset(code, base, offset_of(offset, op.steps))
        e.do(f"store {type} {value}, ptr addrspace(3) {pointer}, align {4 * width}")


def add_partials(code: Code, op: ops.AddPartials) -> None:
    """A load a vector of every part, an addition a register."""
    e, acc, layout = code.emitter, op.acc, op.acc.layout
    base = code.place(
        op.slot, e.thread_offset([offset_of(basis, op.steps) for basis in layout.bits])
    )
    bases, space = [base], 3
    if op.cluster > 1:
        bases, space = [in_block(code, base, number) for number in range(op.cluster)], 7
    regs = list(acc.regs)
    width = min(4, layout.vector(1))
    type = f"<{width} x {acc.type}>"
    for at, part in itertools.product(bases, op.offsets):
        for offset, members in vectors(layout, 1, width):
            place = part + offset_of(offset, op.steps)
            pointer = e.value(f"getelementptr i8, ptr addrspace({space}) {at}, i32 {place}")
            read = f"load {type}, ptr addrspace({space}) {pointer}, align {4 * width}"
            sums = e.value(read)
            for i, number in enumerate(members):
                item = e.value(f"extractelement {type} {sums}, i32 {i}")
                regs[number] = _added(code, acc.dtype, regs[number], item)
    op.tile.assign(regs)


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Mma: mma,
    ops.MmaTf32: mma_tf32,
    ops.FmaDot: fma_dot,
    ops.Accumulate: accumulate,
    ops.WritePartials: write_partials,
    ops.AddPartials: add_partials,
}
