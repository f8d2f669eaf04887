"""Storage of values that are not evaluated on demand: memory, registers, one element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fuser.backend.cpu.dots.records import Spacing
from fuser.backend.text import Reg
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Buffer
from fuser.tilegen.value import Value

_GIVEN = ("input", "constant")
"""Roles of buffers that may be arrays of the caller's or of a model file, used where they are."""
Point = tuple[Index, ...]
"""One coordinate a tile axis, over loop counters and the lane."""


@dataclass(frozen=True)
class Memory:
    """A tile in scratch. origin: the point of the tile that it starts with."""

    pointer: Reg
    strides: tuple[int, ...]
    spaced: Spacing | None = None
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


@dataclass(frozen=True)
class Filling:
    """A kept value that the nest around a point computes, and writes to memory on its way; None:
    that is only looked at, and not written."""

    memory: Memory | None


Local = Mapping[Value, Place | Filling]
"""Where a nest has values, in place of what is known outside of it."""
NOWHERE: Local = {}


def unwritten(local: Local) -> Local:
    """The same for points that no loop is at: nothing is written on the way."""
    return {
        value: Filling(None) if isinstance(place, Filling) else place
        for value, place in local.items()
    }


def alignment(buffer: Buffer) -> int:
    """Bytes that a buffer is aligned to."""
    if buffer.open:
        return max(buffer.align, buffer.dtype.bytes)
    return buffer.dtype.bytes if buffer.role in _GIVEN else 64


def zeros(value: Value) -> Point:
    """The first point of a tile, the only one of a tile of one element."""
    return tuple(Index(0) for _ in value.shape)
