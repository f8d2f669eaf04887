"""Registers that are one number in memory, such as codes of one word."""

from __future__ import annotations

from fuser.backend.nvptx.analysis.access import Access, step_of
from fuser.backend.nvptx.layouts.access_layout import repeat_of
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.graph.sizes import same


def alike_registers(access: Access, layout: Layout) -> list[int]:
    """For each register of an access the first one that is the same number in memory, touched in
    the same cases: where neighbours, from a multiple of their count on, are one."""
    count = len(layout.regs)
    if access.mask is not None or layout.shape != access.shape:
        return list(range(count))
    runs = _runs(access, layout)
    if all(run == 1 for run in runs):
        return list(range(count))
    firsts: dict[Coordinates, int] = {}
    for number, offset in enumerate(layout.regs):
        firsts.setdefault(_first(offset, runs), number)
    return [firsts[_first(offset, runs)] for offset in layout.regs]


def _first(offset: Coordinates, runs: list[int]) -> Coordinates:
    return tuple(at - at % run for at, run in zip(offset, runs, strict=True))


def _runs(access: Access, layout: Layout) -> list[int]:
    """By axis, so many neighbouring elements that a thread has and that are one in memory."""
    found = []
    for axis in range(len(access.shape)):
        run = 1 if axis == access.axis else repeat_of(access, axis)
        while run > 1 and (
            any(basis[axis] % run for basis in layout.bits)
            or not all(same(step_of(at, axis, run), 0) for at, _ in access.bounds)
        ):
            run //= 2
        found.append(run)
    return found


__all__ = ["alike_registers"]
