"""Where units read the operands of a dot, and how they cover its result."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.dots.operand_plan import PANEL, panels_in_place, rows_in_place
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Memory
from fuser.backend.text import Reg
from fuser.base.target import DotUnit
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

TILE_BYTES = 64
"""Of a row of a tile register, and of a line of memory."""


class Operand:
    """An operand in memory: rows of the left one, panels of the right one, `step` elements apart.

    address(i): elements from `base` to row or panel i, at k = 0.
    """

    def __init__(self, base: Reg, dtype: str, step: int, address: Callable[[Index], Index]) -> None:
        self.base, self.dtype, self.step, self.address = base, dtype, step, address

    def at(self, low: Lowering, position: Index) -> Reg:
        address = self.address(position)
        constant = address.constant
        start = low.f.gep(self.base, low.index(address - constant), self.dtype)
        return low.f.gep(start, constant, self.dtype)


def left_operand(low: Lowering, value: Value, unit: DotUnit) -> Operand:
    if value in low.known.packed:
        place = low.places[value]
        assert isinstance(place, Memory)
        step = place.strides[0]
        window = low.known.implicit_im2col.get(value)
        if window is not None:
            step = window.channels * window.strides[1]
        return Operand(place.pointer, value.dtype.llvm, step, lambda row: row * step)
    load = low.known.producers[value]
    assert isinstance(load, ops.Load)
    return Operand(
        low.buffers[load.view.buffer], load.view.dtype.llvm, rows_in_place(low.known, value, unit),
        lambda row: low.resolve(kernel_facts.address_of(low.known, load, (row, Index(0))), ()),
    )  # fmt: skip


def right_operand(low: Lowering, value: Value, unit: DotUnit) -> Operand:
    if value in low.known.packed:
        place = low.places[value]
        assert isinstance(place, Memory)
        step = low.known.extents[value][0] * PANEL
        return Operand(place.pointer, value.dtype.llvm, step, lambda panel: panel * step)
    load = low.known.producers[value]
    assert isinstance(load, ops.Load)
    return Operand(
        low.buffers[load.view.buffer], load.view.dtype.llvm,
        panels_in_place(low.known, value, unit),
        lambda panel: low.resolve(
            kernel_facts.address_of(low.known, load, (Index(0), panel * PANEL)), ()
        ),
    )  # fmt: skip


def cover(
    low: Lowering, extent: int, size: int, hint: str, body: Callable[[Index, int], None]
) -> None:
    """Call body(start, size) for whole blocks of an extent, in a loop, and for what is left."""
    whole = extent // size
    if whole == 1:
        body(Index(0), size)
    elif whole:

        def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                body(low.counter(i, 0, (whole - 1) * size, size), size)
            return []

        low.f.loop(0, whole * size, size, [], iteration, hint=hint)
    if extent % size:
        with low.scope():
            body(Index(whole * size), extent % size)
