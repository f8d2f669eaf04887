"""Transposes in registers: loop nests that read along one axis and write along another.

Where a tile is read consecutively along one axis and written consecutively along another, either
side would be a gather. Squares of `width` vectors are transposed in registers instead: one shuffle
an element would be 16 loads a vector otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, costs
from fuser.backend.cpu.lowering.values import Values
from fuser.backend.cpu.memory.storage import Point
from fuser.backend.function import Function
from fuser.backend.text import Reg
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

LEAST_GAIN = 2.0
"""Memory instructions without a square over those with one, its shuffles counted as such."""


def transpose(f: Function, rows: Sequence[Reg]) -> list[Reg]:
    """Vector j of the result has element j of every row; a square with a power of two rows."""
    regs, size = list(rows), len(rows)
    bit = 1
    while bit < size:
        for i in range(size):
            if i & bit:
                continue
            a, b = regs[i], regs[i | bit]
            low = [size + p - bit if p & bit else p for p in range(size)]
            high = [size + p if p & bit else p + bit for p in range(size)]
            regs[i], regs[i | bit] = f.shuffle(a, b, low), f.shuffle(a, b, high)
        bit *= 2
    return regs


def source_axis(
    low: Values, value: Value, shape: Sequence[int], across: int, width: int, written: float
) -> int:
    """The axis to read along when writing along `across`; -1 if there is nothing to gain.

    written: memory instructions of the write with its lanes along `across` (1 if consecutive).
    """
    if written > 1 or shape[across] < width // 2 or value.dtype.kind == "bool":
        return -1
    now = costs.lane_cost(low.known, value, costs.probe(shape, across, width), width, defined=True)
    if now < width:
        return -1
    for axis in reversed(range(len(shape))):
        if axis == across or shape[axis] < width // 2:
            continue
        coords = costs.probe(shape, axis, width)
        loads = costs.lane_cost(low.known, value, coords, width, defined=True)
        if LEAST_GAIN * (loads + math.log2(width)) <= now:
            return axis
    return -1


def transposed_nest(
    low: Values,
    shape: tuple[int, ...],
    along: int,
    across: int,
    width: int,
    read: Callable[[Point], Reg],
    write: Callable[[Point, Reg, int], None],
) -> None:
    """read(point) with lanes along `along` for all of `shape`; write(point, vector, lanes) with
    lanes along `across`."""
    f = low.f
    coords: list[Index] = [Index(0)] * len(shape)

    def square(start: Index, other: Index, lanes: int, rows: int) -> None:
        regs = []
        for i in range(rows):
            coords[along], coords[across] = start + affine.lane(lanes), other + i
            reg = read(tuple(coords))
            if text.lanes(reg.type) == 1:
                reg = f.splat(reg, lanes)
            if text.lanes(reg.type) == 1:
                reg = f.insert(text.poison(text.vector(reg.type, width)), reg, 0)
            elif lanes < width:
                reg = f.shuffle(reg, None, [p if p < lanes else -1 for p in range(width)])
            regs.append(reg)
        regs += [text.poison(regs[0].type)] * (width - rows)
        for j, reg in enumerate(transpose(f, regs)[:lanes]):
            coords[along], coords[across] = start + j, other + affine.lane(rows)
            if rows == 1:
                reg = f.extract(reg, 0)
            elif rows < width:
                reg = f.shuffle(reg, None, range(rows))
            write(tuple(coords), reg, rows)

    def level(axes: list[int]) -> None:
        if not axes:
            low.cover(
                shape[across], width, "turns",
                lambda other, rows: low.cover(
                    shape[along], width, "turn",
                    lambda start, lanes: square(start, other, lanes, rows),
                ),
            )  # fmt: skip
            return

        def row(i: Index, _: int) -> None:
            coords[axes[0]] = i
            level(axes[1:])

        low.cover(shape[axes[0]], 1, "rows", row)

    level([a for a, extent in enumerate(shape) if a not in (along, across) and extent > 1])
