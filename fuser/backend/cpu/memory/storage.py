"""Storage of values that are not evaluated on demand: memory, registers, one element."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.text import Reg
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

Point = tuple[Index, ...]
"""One coordinate a tile axis, over loop counters and the lane."""


@dataclass(frozen=True)
class Memory:
    """A tile in scratch. spaced: (rows of the tile, rows of memory that they take), where some of
    these belong to no row. origin: the point of the tile that it starts with."""

    pointer: Reg
    strides: tuple[int, ...]
    spaced: tuple[int, int] | None = None
    origin: tuple[Index, ...] = ()


@dataclass(frozen=True)
class Cells:
    """A tile in registers: one SSA value a point of its fixed grid of points."""

    regs: dict[Point, Reg]


@dataclass(frozen=True)
class One:
    """A tile of one element."""

    reg: Reg


Place = Memory | Cells | One


def zeros(value: Value) -> Point:
    """The first point of a tile, the only one of a tile of one element."""
    return tuple(Index(0) for _ in value.shape)
