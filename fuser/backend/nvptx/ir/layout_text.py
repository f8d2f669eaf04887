"""Layouts as short text: registers as runs, lanes and warps as the basis of each bit.

    64x128 regs 4*(16, 0) 8*(0, 8) 2*(0, 1) lanes (0, 2) (0, 4) (1, 0) (2, 0) (4, 0) warps (16, 0)

Registers count through the runs like digits, the last one fastest: register 3 is (0, 8) + (0, 1).
`from` is where register 0 lies if not at the origin; what is no such product is listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.nvptx.layouts.layout import Coordinates, Layout

Run = tuple[int, Coordinates]
"""(how many registers, the step from one to the next)."""


def runs_of(offsets: Sequence[Coordinates]) -> list[Run] | None:
    """Runs, slowest first, whose sums are the offsets less the first; None if there are none."""
    found: list[Run] = []
    rest = list(offsets)
    while len(rest) > 1:
        step = _minus(rest[1], rest[0])
        count = 1
        while count < len(rest) and _minus(rest[count], rest[count - 1]) == step:
            count += 1
        while len(rest) % count:
            count -= 1
        if count == 1 or list(rest) != _spread(rest[::count], count, step):
            return None
        found.append((count, step))
        rest = rest[::count]
    return found[::-1]


def offsets_of(start: Coordinates, runs: Sequence[Run]) -> list[Coordinates]:
    """The offsets that runs stand for."""
    found = [start]
    for count, step in runs:
        found = _spread(found, count, step)
    return found


def layout_text(layout: Layout) -> str:
    """A layout on one line."""
    runs = runs_of(layout.regs)
    if runs is None:
        regs = " ".join(map(_at, layout.regs))
    else:
        regs = " ".join(f"{count}*{_at(step)}" for count, step in runs)
        if any(layout.regs[0]):
            regs += f" from {_at(layout.regs[0])}"
    parts = ["x".join(map(str, layout.shape)), "regs", regs, "lanes", *map(_at, layout.lanes)]
    return " ".join(filter(None, [*parts, "warps", *map(_at, layout.warps)]))


def _spread(starts: Sequence[Coordinates], count: int, step: Coordinates) -> list[Coordinates]:
    return [
        tuple(a + place * b for a, b in zip(start, step, strict=True))
        for start in starts
        for place in range(count)
    ]


def _minus(a: Coordinates, b: Coordinates) -> Coordinates:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _at(coordinates: Coordinates) -> str:
    return f"({', '.join(map(str, coordinates))})"
