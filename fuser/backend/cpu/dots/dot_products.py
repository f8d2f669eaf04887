"""Dots by dot units: vectors that add up groups of neighbours along k, or tile registers (amx.py).

The result is a tile in scratch, padded to whole rows of tiles and panels; what lies in the padding
is never read.
"""

from __future__ import annotations

from fuser.backend import text
from fuser.backend.cpu.dots.amx import tile_dot
from fuser.backend.cpu.dots.operand_plan import PANEL, is_zero
from fuser.backend.cpu.dots.operands import start_of
from fuser.backend.cpu.dots.records import DotPlan
from fuser.backend.cpu.dots.register_tile import register_tile
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory
from fuser.backend.text import Reg, integer
from fuser.base.target import DotUnit
from fuser.tilegen import ops
from fuser.tilegen.index import Index

_INSTRUCTIONS = {
    "avx512_bf16": "llvm.x86.avx512bf16.dpbf16ps.512",
    "avx512_vnni": "llvm.x86.avx512.vpdpbusd.512",
    "avx_vnni": "llvm.x86.avx512.vpdpbusd.256",
    "neon_bf16": "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    "neon_dotprod": "llvm.aarch64.neon.sdot.v4i32.v16i8",
}


def lower_unit_dot(low: Lowering, op: ops.Dot, plan: DotPlan, place: Memory) -> None:
    """Compute a dot into scratch."""
    zero = is_zero(low.known, op.acc)
    if not zero and low.places.get(op.acc) != place:
        low.fill(op.acc, place)
    if plan.unit is not None and plan.unit.name == "amx":
        tile_dot(low, op, plan, place)
    else:
        _vectors(low, op, plan, place, zero)


def _vectors(low: Lowering, op: ops.Dot, plan: DotPlan, place: Memory, zero: bool) -> None:
    """A register tile of accumulators; a step loads panels and broadcasts a group of each row.

    x86's instruction for bytes takes the left ones as unsigned: 128 was added to them, and 128
    times the sum of every column is taken off: before all rows, or, where one register tile
    has them all, after it, as panels may be long and come from memory.
    """
    f, unit = low.f, plan.unit
    assert unit is not None
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
        lines = [start_of(low, plan.a, row + i) for i in range(high)]
        sources = [start_of(low, plan.b, panel + j) for j in range(wide)]
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
            sources = [start_of(low, plan.b, panel + j) for j in range(wide)]
            shifts = f.loop(
                0, steps, 1, [text.zero(type)] * wide * len(parts),
                lambda k, sums: summed(sums, loaded(sources, k)), hint="sums",
            )  # fmt: skip
        low.cover(rows, high, "rows", lambda row, count: block(panel, wide, row, count, shifts))

    low.cover(panels, wide, "panels", across)


def _vector_tile(low: Lowering, unit: DotUnit, rows: int, panels: int) -> tuple[int, int, bool]:
    """(rows, panels) of the register tile, and whether sums of columns are made before all rows. A
    panel of several vectors stands alone."""
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
