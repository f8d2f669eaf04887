"""Dots by tile registers (AMX) and by dot-product vectors, on operands that unit_plan.py laid out.

The result is a tile in scratch, padded to whole rows of tiles and panels; what lies in the padding
is never read. Left rows are padded with zeros along k, and so are right panels, since a zero times
whatever lay there before might be NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend import text
from fuser.backend.cpu import affine, costs, register_transpose
from fuser.backend.cpu.dot_plan import register_tile
from fuser.backend.cpu.im2col import fill_im2col
from fuser.backend.cpu.implicit_im2col import fill_implicit_im2col
from fuser.backend.cpu.kernel_facts import Packed
from fuser.backend.cpu.lower import Lowering
from fuser.backend.cpu.storage import Memory
from fuser.backend.cpu.tile_dot import tile_dot
from fuser.backend.cpu.unit_operands import TILE_BYTES, Operand, cover, left_operand, right_operand
from fuser.backend.cpu.unit_plan import PANEL, SIGN, is_zero
from fuser.backend.text import Reg, integer
from fuser.base.target import DotUnit
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

_INSTRUCTIONS = {
    "avx512_bf16": "llvm.x86.avx512bf16.dpbf16ps.512",
    "avx512_vnni": "llvm.x86.avx512.vpdpbusd.512",
    "avx_vnni": "llvm.x86.avx512.vpdpbusd.256",
    "neon_bf16": "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    "neon_dotprod": "llvm.aarch64.neon.sdot.v4i32.v16i8",
}


def lower_unit_dot(low: Lowering, op: ops.Dot, unit: DotUnit) -> None:
    """Compute a dot into scratch."""
    place = low.in_place.get(op) or low.allocate(op.result)
    zero = is_zero(low.known, op.acc)
    if not zero and low.places.get(op.acc) != place:
        low.fill(op.acc, place)
    plan = low.known.dots[op]
    if unit.name == "amx":
        low.uses_tiles = True
        tile_dot(low, op, unit, place)
    else:
        left, right = left_operand(low, plan.a, unit), right_operand(low, plan.b, unit)
        _vectors(low, op, unit, left, right, place, zero)
    low.places[op.result] = place


# vectors ------------------------------------------------------------------------------------------


def _vectors(
    low: Lowering, op: ops.Dot, unit: DotUnit, left: Operand, right: Operand, place: Memory,
    zero: bool,
) -> None:  # fmt: skip
    """A register tile of accumulators; a step loads panels and broadcasts a group of each row.

    x86's instruction for bytes takes the left ones as unsigned: 128 was added to them, and 128
    times the sum of every column is taken off: in front of all rows, or, where one register tile
    has them all, behind it, as panels may be long and come from memory.
    """
    f = low.f
    rows, columns = op.result.shape
    panels = -(-columns // PANEL)
    steps = -(-op.a.shape[1] // unit.depth)
    lanes = unit.bits // 32
    high, wide, ahead = _vector_tile(low, unit, rows, panels)
    along = unit.unsigned_left and not ahead
    whole = unit.dtype == "i8"
    type = text.vector("i32" if whole else "float", lanes)
    group = text.vector("i8" if whole else "bfloat", lanes * unit.group)
    name = _INSTRUCTIONS[unit.name]
    words = text.vector("i32", lanes)
    parts = range(0, PANEL, lanes)
    ones = f.convert("bitcast", f.splat(integer(0x80808080, "i32"), lanes), group)

    def loaded(sources: list[Reg], k: Reg) -> list[Reg]:
        """The vectors of panels at a step."""
        at = f.mul(k, PANEL * 4)
        vectors = []
        for source in sources:
            here = f.gep(source, at)
            for part in parts:
                # A constant starts at any element, as where a plan's file is mapped.
                reg = f.load(words, f.gep(here, part * 4), op.b.dtype.bytes)
                vectors.append(f.convert("bitcast", reg, group))
        return vectors

    def summed(sums: list[Reg], vectors: list[Reg]) -> list[Reg]:
        return [f.call(type, name, s, ones, v) for s, v in zip(sums, vectors, strict=True)]

    def block(panel: Index, wide: int, row: Index, high: int, shifts: list[Reg]) -> None:
        cells = []
        for i in range(high):
            for j in range(wide):
                address = low.memory_address(place, (row + i, (panel + j) * PANEL))
                start = f.gep(place.pointer, low.index(address), "float")
                cells += [f.gep(start, part, "float") for part in parts]
        starts = [text.zero(type) if zero else f.load(type, cell, 4) for cell in cells]
        lines = [left.at(low, row + i) for i in range(high)]
        sources = [right.at(low, panel + j) for j in range(wide)]
        across = wide * len(parts)

        def iteration(k: Reg, carried: list[Reg]) -> list[Reg]:
            vectors = loaded(sources, k)
            out: list[Reg] = []
            for line in lines:
                item = f.load("i32", f.gep(line, f.mul(k, 4)), op.a.dtype.bytes)
                wide_item = f.convert("bitcast", f.splat(item, lanes), group)
                for vector in vectors:
                    out.append(f.call(type, name, carried[len(out)], wide_item, vector))
            return out + summed(carried[len(out) :], vectors) if along else out

        if shifts:
            starts = [f.binary("sub", start, shifts[i % across]) for i, start in enumerate(starts)]
        if along:
            starts += [text.zero(type)] * across
        done = f.loop(0, steps, 1, starts, iteration, hint="k")
        sums = done[len(cells) :]
        for number, cell in enumerate(cells):
            acc = done[number]
            f.store(f.binary("sub", acc, sums[number % across]) if along else acc, cell, 4)

    def across(panel: Index, wide: int) -> None:
        shifts: list[Reg] = []
        if ahead:
            sources = [right.at(low, panel + j) for j in range(wide)]
            shifts = f.loop(
                0, steps, 1, [text.zero(type)] * wide * len(parts),
                lambda k, sums: summed(sums, loaded(sources, k)), hint="sums",
            )  # fmt: skip
        cover(low, rows, high, "rows", lambda row, count: block(panel, wide, row, count, shifts))

    cover(low, panels, wide, "panels", across)


def _vector_tile(low: Lowering, unit: DotUnit, rows: int, panels: int) -> tuple[int, int, bool]:
    """(rows, panels) of the register tile, and whether sums of columns are made in front of all
    rows. A panel of several vectors stands alone."""
    parts = PANEL * 32 // unit.bits
    high, wide = register_tile(low.target, rows, panels) if parts == 1 else (rows, 1)
    # What is encoded without AVX-512 reaches 16 registers.
    registers = min(low.target.vector_registers, 16 if unit.bits == 256 else 32)
    vectors = wide * parts
    # Beside the sums there are the panels and a broadcast.
    most = max(1, min(high, (registers - 2 - vectors) // vectors))
    if not unit.unsigned_left:
        return most, wide, False
    # Or the sums of columns and their factor as well.
    alone = max(1, min(high, (registers - 2 - 2 * vectors) // vectors))
    return (most, wide, True) if rows > alone else (alone, wide, False)


# copies -------------------------------------------------------------------------------------------


def fill_packed(low: Lowering, value: Value, place: Memory, packed: Packed) -> None:
    """Write an operand to scratch in the form that its unit reads."""
    source = low.known.producers[value].operands()[0]
    if packed.window is not None:
        fill_implicit_im2col(low, value, source, place)
        return
    if not packed.right:
        flips = SIGN if packed.unit.unsigned_left else 0
        if not fill_im2col(low, value, source, place, flips):
            low.fill(value, place)
        _clear_rows(low, value, place)
        return
    along_n = costs.lane_cost(low.known, source, costs.probe(value.shape, 1, PANEL), PANEL)
    along_k = costs.lane_cost(low.known, source, costs.probe(value.shape, 0, PANEL), PANEL)
    if along_k < along_n:
        _fill_transposed(low, value, source, place, packed.unit)
    else:
        _fill_panels(low, value, source, place, packed.unit)


def _clear_rows(low: Lowering, value: Value, place: Memory) -> None:
    """Zeros behind the last k of every row."""
    rows, depth = value.shape
    spare = place.strides[0] - depth
    if not spare:
        return
    size = value.dtype.bytes

    def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
        at = low.f.gep(place.pointer, low.f.add(low.f.mul(i, place.strides[0]), depth),
                       value.dtype.llvm)  # fmt: skip
        low.f.store(text.zero(text.vector(f"i{value.dtype.bits}", spare)), at, size)
        return []

    low.f.loop(0, rows, 1, [], iteration, hint="clear")


def _widened(low: Lowering, reg: Reg, lanes: int) -> Reg:
    """A vector with zeros behind its last lane."""
    have = text.lanes(reg.type)
    if have == lanes:
        return reg
    scalar = text.element(reg.type)
    if have == 1:
        return low.f.insert(text.zero(text.vector(scalar, lanes)), reg, 0)
    order = [min(i, have) for i in range(lanes)]
    return low.f.shuffle(reg, text.zero(reg.type), order)


def _fill_panels(low: Lowering, value: Value, source: Value, place: Memory, unit: DotUnit) -> None:
    """From vectors along n: the rows of a group are interleaved."""
    f = low.f
    depth, columns = value.shape
    extent = low.known.extents[value][0]
    bits = f"i{value.dtype.bits}"  # LLVM has no code for some shuffles of bfloat

    def store(panel: Index, k: Index, regs: list[Reg]) -> None:
        regs = regs + [text.zero(regs[0].type)] * (unit.group - len(regs))
        while len(regs) > 1:  # elements of a group together
            half = len(regs) // 2
            count = text.lanes(regs[0].type)
            order = [i // 2 + i % 2 * count for i in range(2 * count)]
            regs = [f.shuffle(regs[i], regs[i + half], order) for i in range(half)]
        address = panel * (extent * PANEL) + k * PANEL
        pointer = f.gep(place.pointer, low.index(address), value.dtype.llvm)
        f.store(regs[0], pointer, TILE_BYTES)

    def panels(panel: Index, lanes: int) -> None:
        here = panel * PANEL + affine.lane(lanes)

        def groups(k: Index, count: int) -> None:
            regs = [low.vector_at(source, (k + i, here), lanes) for i in range(count)]
            plain = [f.convert("bitcast", reg, text.like(reg.type, bits)) for reg in regs]
            store(panel, k, [_widened(low, reg, PANEL) for reg in plain])

        cover(low, depth, unit.group, "groups", groups)
        for k in range(-(-depth // unit.group) * unit.group, extent, unit.group):
            zero = text.zero(text.vector(bits, PANEL))
            store(panel, Index(k), [zero])

    _over_panels(low, columns, panels)


def _over_panels(low: Lowering, columns: int, body: Callable[[Index, int], None]) -> None:
    """Call body(panel, columns of it) for the panels of a right operand."""
    cover(low, columns // PANEL, 1, "panels", lambda panel, _: body(panel, PANEL))
    if columns % PANEL:
        with low.scope():
            body(Index(columns // PANEL), columns % PANEL)


def _fill_transposed(
    low: Lowering, value: Value, source: Value, place: Memory, unit: DotUnit
) -> None:
    """From vectors along k, one a column: squares of 16 columns by 16 groups are transposed."""
    f = low.f
    depth, columns = value.shape
    extent = low.known.extents[value][0]
    width = PANEL * unit.group
    words = text.vector("i32", PANEL)

    def panels(panel: Index, count: int) -> None:
        def squares(k: Index, lanes: int) -> None:
            lines = []
            for column in range(PANEL):
                if column < count:
                    point = (k + affine.lane(lanes), panel * PANEL + column)
                    reg = low.vector_at(source, point, lanes)
                    reg = f.convert("bitcast", reg, text.like(reg.type, f"i{value.dtype.bits}"))
                    reg = _widened(low, reg, width)
                    lines.append(f.convert("bitcast", reg, words))
                else:
                    lines.append(text.zero(words))
            start = low.index(panel * (extent * PANEL) + k * PANEL)
            pointer = f.gep(place.pointer, start, value.dtype.llvm)
            left = PANEL if lanes == width else (extent - depth + lanes) // unit.group
            for i, reg in enumerate(register_transpose.transpose(f, lines)[:left]):
                f.store(reg, f.gep(pointer, i * TILE_BYTES), TILE_BYTES)

        cover(low, depth, width, "squares", squares)

    _over_panels(low, columns, panels)
