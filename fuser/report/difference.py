"""Two reports beside each other: totals, and the kernels that do the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fuser.graph.units import byte_size, microseconds
from fuser.report import charts
from fuser.report.markup import escaped, table, tag
from fuser.report.record import Launch, Record
from fuser.runtime.terminal import table as columns

MOST_ROWS, MOST_LINES = 200, 12
"""Rows of the table on a page, and in a terminal."""
Text = Callable[[Any], str]
_Place = tuple[str, int]
"""A report and a region of it."""


@dataclass(frozen=True)
class Pair:
    """Kernels of two reports that do the same work, as far as nodes of the model tell."""

    before: tuple[Launch, ...]
    after: tuple[Launch, ...]

    @property
    def times(self) -> tuple[float, float]:
        """Microseconds of both sides."""
        return _time(self.before), _time(self.after)


def pairs(before: Record, after: Record) -> list[Pair]:
    """All kernels of both reports in groups: each region is with that of the other report which
    shares the greatest part of its nodes. Groups whose time changed most come first."""
    sides = {"before": before, "after": after}
    nodes = {(side, at): names for side, record in sides.items()
             for at, names in _nodes(record).items()}  # fmt: skip
    holders: dict[str, list[_Place]] = {}
    for place, names in nodes.items():
        for name in names:
            holders.setdefault(name, []).append(place)
    group_of = {place: {place} for place in nodes}
    for place, names in nodes.items():
        others = dict.fromkeys(
            other for name in names for other in holders[name] if other[0] != place[0]
        )
        if others:
            like = max(others, key=lambda other: _alike(names, nodes[other]))
            joined = group_of[place] | group_of[like]
            group_of |= dict.fromkeys(joined, joined)
    found = []
    for group in {id(group): group for group in group_of.values()}.values():
        kernels = [
            tuple(one for one in record.launches if (side, one.region) in group)
            for side, record in sides.items()
        ]
        found.append(Pair(*kernels))
    return sorted(found, key=lambda pair: -abs(pair.times[1] - pair.times[0]))


def _nodes(record: Record) -> dict[int, set[str]]:
    """The nodes that each region is home to; those that it has a part of, if to none."""
    found: dict[int, set[str]] = {}
    known = {node["name"] for node in record.nodes} or record.homes.keys()
    for name, home in record.homes.items():
        if name not in known:  # a constant
            continue
        found.setdefault(home, set()).add(name)
    return {one.region: found.get(one.region) or set(one.nodes) for one in record.launches}


def _alike(one: set[str], other: set[str]) -> float:
    """The share of the union that two sets have in common."""
    return len(one & other) / len(one | other)


def difference(before: Record, after: Record) -> str:
    """The part of the page that compares two reports."""
    names = (f"{before.title}, before", f"{after.title}, now")
    scale = max(before.total, after.total)
    parts = [_totals(before, after, names)]
    for name, record in zip(names, (before, after), strict=True):
        parts += [tag("h3", escaped(name)), charts.timeline(record, scale, here=record is after)]
    found = pairs(before, after)
    rows = [
        (
            _names(pair.before, False), _names(pair.after, True),
            microseconds(pair.times[0]), microseconds(pair.times[1]), _change(*pair.times),
            _bytes(pair.before), _bytes(pair.after),
        )
        for pair in found[:MOST_ROWS]
    ]  # fmt: skip
    head = ("before", "now", "time", "now", "change", "through memory", "now")
    parts.append(
        table(head, rows, numbers=(2, 3, 4, 5, 6),
              caption="Kernels that do the same work; what changed most comes first")
    )  # fmt: skip
    return "".join(parts)


def _totals(before: Record, after: Record, names: tuple[str, str]) -> str:
    rows = [
        (escaped(label), text(one), text(other), _change(one, other))
        for (label, one, text), (_, other, _) in zip(totals(before), totals(after), strict=True)
    ]
    note = ""
    if not (before.is_measured and after.is_measured):
        note = tag("p", "Times that were not measured are rooflines.", class_="note")
    head = ("", *(escaped(name) for name in names), "change")
    return note + table(head, rows, caption="Totals of a run", numbers=(1, 2, 3))


def totals(record: Record) -> list[tuple[str, float, Text]]:
    """What is worth comparing of a run: a name, a number, and how it is printed."""
    return [
        ("kernels", len(record.launches), "{:,}".format),
        ("kernels together", record.total, microseconds),
        ("roofline", record.total_roofline, microseconds),
        ("bytes through memory", record.boundary["after"], byte_size),
        ("bytes of DRAM, predicted", record.dram["after"], byte_size),
        ("memory", record.data["peak_memory_bytes"], byte_size),
    ]


def comparison(before: Record, after: Record, verbose: bool = False) -> str:
    """How two reports differ, for a terminal: totals, and the kernels whose time changed most.
    verbose: all kernels."""
    titles = [("before", before.title), ("now", after.title)]
    rows = [
        (label, text(one), text(other), change(one, other))
        for (label, one, text), (_, other, _) in zip(totals(before), totals(after), strict=True)
    ]
    kernels = [
        (_labels(pair.before), _labels(pair.after), *map(microseconds, pair.times),
         change(*pair.times))
        for pair in pairs(before, after)[: None if verbose else MOST_LINES]
    ]  # fmt: skip
    head = ("kernels before", "now", "time before", "now", "change")
    return "\n\n".join([
        columns(titles, labels=True, paint=True),
        columns(rows, ("", "before", "now", "change"), numbers=(1, 2, 3), paint=True),
        columns(kernels, head, numbers=(2, 3, 4), paint=True),
    ])  # fmt: skip


def _labels(kernels: Iterable[Launch]) -> str:
    return ", ".join(one.own for one in kernels) or "-"


def change(before: float, after: float) -> str:
    """How a number changed, in percent."""
    return f"{100 * (after / before - 1):+.1f} %" if before and after else "-"


def _change(before: float, after: float) -> str:
    ratio = after / before if before and after else 1.0
    kind = "better" if ratio < 0.995 else "worse" if ratio > 1.005 else None
    return tag("span", change(before, after), class_=kind)


def _time(kernels: Iterable[Launch]) -> float:
    return sum(one.shown_time for one in kernels)


def _bytes(kernels: Iterable[Launch]) -> str:
    return byte_size(sum(one.read + one.written for one in kernels))


def _names(kernels: Iterable[Launch], here: bool) -> str:
    names = [
        tag("a", escaped(one.own), href=f"#{one.id}") if here else escaped(one.own)
        for one in kernels
    ]
    return ", ".join(_few(names)) or "–"


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
