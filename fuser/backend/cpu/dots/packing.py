"""Packing: operands of dot units copied to scratch, left ones as rows, right ones as panels.

Left rows are padded with zeros along k, and so are right panels, since a zero times whatever lay
there before might be NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, costs
from fuser.backend.cpu.dots.operand_plan import PANEL, SIGN, TILE_BYTES
from fuser.backend.cpu.dots.records import OperandPlan
from fuser.backend.cpu.im2col.explicit import fill_im2col
from fuser.backend.cpu.im2col.implicit import fill_implicit_im2col
from fuser.backend.cpu.loops import register_transpose
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory
from fuser.backend.text import Reg
from fuser.base.target import DotUnit
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value


def fill_packed(low: Lowering, plan: OperandPlan, place: Memory) -> None:
    """Write a copy of an operand to scratch in the form that its unit reads."""
    value, source, unit = plan.value, plan.source, plan.unit
    assert source is not None and unit is not None
    if plan.window is not None:
        fill_implicit_im2col(low, source, plan.window, place)
        return
    if not plan.right:
        flips = SIGN if unit.unsigned_left else 0
        if not fill_im2col(low, source, place, flips):
            low.fill(value, place)
        _clear_rows(low, value, place)
        return
    along_n, along_k = (
        costs.lane_cost(low.known, source, costs.probe(value.shape, axis, PANEL), PANEL)
        for axis in (1, 0)
    )
    pack = _pack_transposed if along_k < along_n else _pack_rows
    pack(low, source, unit, place, plan.step // PANEL)


def _clear_rows(low: Lowering, value: Value, place: Memory) -> None:
    """Zeros after the last k of every row."""
    rows, depth = value.shape
    spare = place.strides[0] - depth
    if not spare:
        return
    zeros = text.zero(text.vector(f"i{value.dtype.bits}", spare))

    def clear(row: Index, _: int) -> None:
        at = low.index(row * place.strides[0] + depth)
        low.f.store(zeros, low.f.gep(place.pointer, at, value.dtype.llvm), value.dtype.bytes)

    low.cover(rows, 1, "clear", clear)


def _widened(low: Lowering, reg: Reg, lanes: int) -> Reg:
    """A vector with zeros after its last lane."""
    have = text.lanes(reg.type)
    if have == lanes:
        return reg
    scalar = text.element(reg.type)
    if have == 1:
        return low.f.insert(text.zero(text.vector(scalar, lanes)), reg, 0)
    order = [min(i, have) for i in range(lanes)]
    return low.f.shuffle(reg, text.zero(reg.type), order)


def _pack_rows(low: Lowering, source: Value, unit: DotUnit, place: Memory, extent: int) -> None:
    """Panels of `extent` rows from vectors along n: the rows of a group are interleaved."""
    f = low.f
    depth, columns = source.shape
    bits = f"i{source.dtype.bits}"  # LLVM has no code for some shuffles of bfloat

    def store(panel: Index, k: Index, regs: list[Reg]) -> None:
        regs = regs + [text.zero(regs[0].type)] * (unit.group - len(regs))
        while len(regs) > 1:  # elements of a group together
            half = len(regs) // 2
            count = text.lanes(regs[0].type)
            order = [i // 2 + i % 2 * count for i in range(2 * count)]
            regs = [f.shuffle(regs[i], regs[i + half], order) for i in range(half)]
        address = panel * (extent * PANEL) + k * PANEL
        pointer = f.gep(place.pointer, low.index(address), source.dtype.llvm)
        f.store(regs[0], pointer, TILE_BYTES)

    def panels(panel: Index, lanes: int) -> None:
        here = panel * PANEL + affine.lane(lanes)

        def groups(k: Index, count: int) -> None:
            regs = [low.vector_at(source, (k + i, here), lanes) for i in range(count)]
            plain = [f.convert("bitcast", reg, text.like(reg.type, bits)) for reg in regs]
            store(panel, k, [_widened(low, reg, PANEL) for reg in plain])

        low.cover(depth, unit.group, "groups", groups)
        for k in range(-(-depth // unit.group) * unit.group, extent, unit.group):
            zero = text.zero(text.vector(bits, PANEL))
            store(panel, Index(k), [zero])

    _over_panels(low, columns, panels)


def _over_panels(low: Lowering, columns: int, body: Callable[[Index, int], None]) -> None:
    """Call body(panel, columns of it) for the panels of a right operand."""
    low.cover(columns // PANEL, 1, "panels", lambda panel, _: body(panel, PANEL))
    if columns % PANEL:
        with low.scope():
            body(Index(columns // PANEL), columns % PANEL)


def _pack_transposed(
    low: Lowering, source: Value, unit: DotUnit, place: Memory, extent: int
) -> None:
    """Panels of `extent` rows from vectors along k, one a column: squares of 16 columns by 16
    groups are transposed."""
    f = low.f
    depth, columns = source.shape
    width = PANEL * unit.group
    words = text.vector("i32", PANEL)

    def panels(panel: Index, count: int) -> None:
        def squares(k: Index, lanes: int) -> None:
            lines = []
            for column in range(PANEL):
                if column < count:
                    point = (k + affine.lane(lanes), panel * PANEL + column)
                    reg = low.vector_at(source, point, lanes)
                    reg = f.convert("bitcast", reg, text.like(reg.type, f"i{source.dtype.bits}"))
                    reg = _widened(low, reg, width)
                    lines.append(f.convert("bitcast", reg, words))
                else:
                    lines.append(text.zero(words))
            start = low.index(panel * (extent * PANEL) + k * PANEL)
            pointer = f.gep(place.pointer, start, source.dtype.llvm)
            left = PANEL if lanes == width else (extent - depth + lanes) // unit.group
            for i, reg in enumerate(register_transpose.transpose(f, lines)[:left]):
                f.store(reg, f.gep(pointer, i * TILE_BYTES), TILE_BYTES)

        low.cover(depth, width, "squares", squares)

    _over_panels(low, columns, panels)
