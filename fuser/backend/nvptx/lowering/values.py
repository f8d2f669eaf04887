"""What an SSA value of the Tile IR is while a kernel is lowered."""

from __future__ import annotations

from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.text import integer, real
from fuser.dtypes import DType

INT_MEMORY = {"i1": "i8"}


def memory_type(dtype: DType) -> str:
    """LLVM's type of an element in memory: a bool is one byte."""
    return INT_MEMORY.get(dtype.llvm, dtype.llvm)


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant of an element type, as LLVM spells it."""
    if dtype.is_float:
        return real(float(value), dtype.llvm).ref
    if dtype.kind == "bool":
        return "true" if value else "false"
    return integer(int(value), dtype.llvm).ref


def vectors(layout: Layout, axis: int, width: int) -> list[tuple[Coordinates, list[int]]]:
    """(offset of the first element, register numbers) of every vector of `width` along `axis`."""
    if width == 1:
        return [(offset, [number]) for number, offset in enumerate(layout.regs)]
    found = []
    for offset in layout.regs:
        if offset[axis] % width:
            continue
        members = [
            layout.register_of[(*offset[:axis], offset[axis] + step, *offset[axis + 1 :])]
            for step in range(width)
        ]
        found.append((offset, members))
    return found
