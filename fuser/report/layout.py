"""A layered layout of a directed acyclic graph: boxes in rows, edges downwards, few crossings.

    layout = place({"a": (60, 20), "b": (80, 20)}, [("a", "b")])
    layout.boxes["b"]            # Box(x=0, y=44, width=80, height=20)
    layout.routes[("a", "b")]    # [(40, 20), (40, 44)]

Sugiyama, Tagawa and Toda 1981: rows by longest paths, order in a row by the mean place of the
neighbours, then x coordinates. Edges of one box that go further than a row share a trunk. The same
arguments give the same layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
Cell = tuple[str, int]
"""A box (its name and row), or the place where the trunk of a box crosses a row further down."""

SWEEPS = 8
SMOOTHING = 24
"""How often rows are moved beneath each other."""
TRUNK, STEM, ASIDE, BOX = 6.0, 0.5, 0.01, 100.0
"""How much more than boxes in neighbouring rows the pieces of a trunk want to be in line, a trunk
with the boxes at its ends, and these with it; how much more than a trunk a box minds to be moved.
"""


@dataclass(frozen=True)
class Box:
    """The place of a node: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Where boxes are, and the points of each edge, from the bottom of a box to the top of one."""

    boxes: dict[str, Box]
    routes: dict[tuple[str, str], list[Point]]
    width: float
    height: float


def place(
    sizes: Mapping[str, tuple[float, float]], edges: Iterable[tuple[str, str]],
    *, gap: float = 14, row_gap: float = 24,
) -> Layout:  # fmt: skip
    """Lay out boxes of these (width, height). The order of `sizes` is topological: an edge against
    it is left out, and so is one whose end is no box. gap: between neighbours in a row; row_gap:
    between rows."""
    order = {name: number for number, name in enumerate(sizes)}
    kept = [
        (a, b) for a, b in dict.fromkeys(edges)
        if a in order and b in order and order[a] < order[b]
    ]  # fmt: skip
    row_of = _rows(order, kept)
    rows, links = _cells(order, kept, row_of)
    _order(rows, links)
    widths = {cell: sizes[cell[0]][0] if row_of[cell[0]] == cell[1] else 0.0
              for row in rows for cell in row}  # fmt: skip
    centers = _centers(rows, links, widths, gap)
    heights = [
        max((sizes[name][1] for name, level in row if row_of[name] == level), default=0.0)
        for row in rows
    ]
    tops, y = [], 0.0
    for height in heights:
        tops.append(y)
        y += height + row_gap
    left = min((centers[cell] - widths[cell] / 2 for cell in widths), default=0.0)
    right = max((centers[cell] + widths[cell] / 2 for cell in widths), default=0.0)
    boxes = {}
    for name, (width, height) in sizes.items():
        row = row_of[name]
        boxes[name] = Box(centers[(name, row)] - left - width / 2, tops[row], width, height)
    routes = {}
    for a, b in kept:
        points = [(centers[(a, row_of[a])] - left, boxes[a].y + boxes[a].height)]
        for level in range(row_of[a] + 1, row_of[b]):
            x = centers[(a, level)] - left
            points += [(x, tops[level]), (x, tops[level] + heights[level])]
        points.append((centers[(b, row_of[b])] - left, boxes[b].y))
        routes[(a, b)] = points
    return Layout(boxes, routes, right - left, max(y - row_gap, 0.0))


def _rows(order: Mapping[str, int], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The row of each box: one below the lowest box that it reads; what reads nothing is moved
    down to its first reader."""
    readers: dict[str, list[str]] = {name: [] for name in order}
    read: dict[str, list[str]] = {name: [] for name in order}
    for a, b in edges:
        readers[a].append(b)
        read[b].append(a)
    rows: dict[str, int] = {}
    for name in order:
        rows[name] = 1 + max((rows[other] for other in read[name]), default=-1)
    for name in order:
        if not read[name] and readers[name]:
            rows[name] = min(rows[other] for other in readers[name]) - 1
    return rows


def _cells(
    order: Mapping[str, int], edges: Sequence[tuple[str, str]], row_of: Mapping[str, int]
) -> tuple[list[list[Cell]], list[tuple[Cell, Cell]]]:
    """The rows with boxes and trunks in them, and the links between neighbouring rows."""
    rows: list[list[Cell]] = [[] for _ in range(1 + max(row_of.values(), default=-1))]
    for name in order:
        rows[row_of[name]].append((name, row_of[name]))
    ends = dict.fromkeys(order, -1)
    for a, b in edges:
        ends[a] = max(ends[a], row_of[b] - 1)
    links: list[tuple[Cell, Cell]] = []
    for name, end in ends.items():
        for level in range(row_of[name] + 1, end + 1):
            rows[level].append((name, level))
            links.append(((name, level - 1), (name, level)))
    links += [((a, row_of[b] - 1), (b, row_of[b])) for a, b in edges]
    return rows, links


def _neighbours(
    links: Iterable[tuple[Cell, Cell]],
) -> tuple[dict[Cell, list[Cell]], dict[Cell, list[Cell]]]:
    """What is linked to each cell in the row above, and in the row below."""
    above: dict[Cell, list[Cell]] = {}
    below: dict[Cell, list[Cell]] = {}
    for a, b in links:
        below.setdefault(a, []).append(b)
        above.setdefault(b, []).append(a)
    return above, below


def _order(rows: list[list[Cell]], links: list[tuple[Cell, Cell]]) -> None:
    """Sort the cells of each row by the mean place of their neighbours, and keep the best order."""
    above, below = _neighbours(links)
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        near = above if down else below
        for level in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            beside = rows[level - 1 if down else level + 1]
            at = {cell: float(place) for place, cell in enumerate(beside)}
            own = {cell: float(place) for place, cell in enumerate(rows[level])}
            rows[level].sort(key=lambda cell: _mean([at[c] for c in near.get(cell, ())], own[cell]))
        if (found := _crossings(rows, below)) < fewest:
            best, fewest = [list(row) for row in rows], found
    rows[:] = best


def _mean(numbers: Sequence[float], default: float) -> float:
    return sum(numbers) / len(numbers) if numbers else default


def _crossings(rows: Sequence[Sequence[Cell]], below: Mapping[Cell, Sequence[Cell]]) -> int:
    """How many links cross: inversions of the lower ends, in the order of the upper ones."""
    count = 0
    for upper, lower in itertools.pairwise(rows):
        at = {cell: place for place, cell in enumerate(lower)}
        ends = [end for cell in upper for end in sorted(at[c] for c in below.get(cell, ()))]
        tree = [0] * (len(lower) + 1)  # Fenwick: how many ends lie at or left of a place
        for seen, end in enumerate(ends):
            place, left = end + 1, 0
            while place:
                left += tree[place]
                place &= place - 1
            count += seen - left
            place = end + 1
            while place < len(tree):
                tree[place] += 1
                place += place & -place
    return count


def _centers(
    rows: Sequence[Sequence[Cell]], links: Sequence[tuple[Cell, Cell]],
    widths: Mapping[Cell, float], gap: float,
) -> dict[Cell, float]:  # fmt: skip
    """The x of the middle of each cell: near its neighbours, in the order of its row."""
    above, below = _neighbours(links)
    centers: dict[Cell, float] = {}
    for row in rows:
        x = 0.0
        for cell in row:
            centers[cell] = x + widths[cell] / 2
            x += widths[cell] + gap
    for sweep in range(SMOOTHING):
        near = (above, below)[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted, weights = [], []
            for cell in row:
                others = [(c, _pull(cell, c, widths)) for c in near.get(cell, ())]
                total = sum(weight for _, weight in others)
                mean = sum(centers[c] * weight for c, weight in others)
                wanted.append(mean / total if total else centers[cell])
                weights.append(BOX if widths[cell] else 1.0)
            apart = [(widths[a] + widths[b]) / 2 + gap for a, b in itertools.pairwise(row)]
            centers.update(zip(row, spread(wanted, weights, apart), strict=True))
    return centers


def _pull(cell: Cell, other: Cell, widths: Mapping[Cell, float]) -> float:
    """The weight of being in line with a neighbour."""
    if widths[cell]:
        return 1.0 if widths[other] else ASIDE
    return STEM if widths[other] else TRUNK


def spread(
    wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]
) -> list[float]:
    """The places nearest to the wanted ones, by weighted squares, of which each is at least
    `apart` after the one before it: an isotonic regression, by pooling neighbours."""
    offsets = [0.0]
    for distance in apart:
        offsets.append(offsets[-1] + distance)
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for goal, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, total, count = goal - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, more, others = pools.pop()
            mean = (mean * total + before * more) / (total + more)
            total, count = total + more, count + others
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]
