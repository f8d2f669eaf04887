"""Kernels of a report in groups of equal code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from fuser.graph.units import counted
from fuser.report.record import Launch, Record


@dataclass(frozen=True)
class Group:
    """Launches of the same code, in order; times in microseconds and bytes are those of all."""

    name: str
    launches: tuple[Launch, ...]

    @property
    def time(self) -> float:
        return sum(one.shown_time for one in self.launches)

    @property
    def roofline(self) -> float:
        return sum(one.roofline for one in self.launches)

    @property
    def reached(self) -> float:
        """The least time as a share of the time, 1 at most."""
        return min(1.0, self.roofline / self.time) if self.time else 1.0

    @property
    def boundary(self) -> int:
        return sum(one.read + one.written for one in self.launches)

    @property
    def dram(self) -> int:
        return sum(one.dram for one in self.launches)

    @property
    def flops(self) -> int:
        return sum(one.flops for one in self.launches)

    @property
    def title(self) -> str:
        """The name of the first, its algorithm, and how many there are: "conv_4, winograd x 3"."""
        count = f" x {len(self.launches)}" if len(self.launches) > 1 else ""
        return self.label + count

    @property
    def label(self) -> str:
        """The name of the first, and the algorithm where it has one."""
        return ", ".join(filter(None, (self.name, self.launches[0].algorithm)))

    @property
    def nodes(self) -> str:
        """The first and the last node, of all launches at once, and how many each has."""
        ends = [one.nodes for one in self.launches if one.nodes]
        if not ends:
            return ""
        first = pattern([nodes[0] for nodes in ends])
        if len(ends[0]) == 1:
            return first
        last = pattern([nodes[-1] for nodes in ends])
        pairs = zip(first.split("/"), last.split("/"), strict=False)
        same = "/".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        last = last.removeprefix(f"{same}/") if same else last
        return f"{first} … {last} ({counted(len(ends[0]), 'node')})"

    def counter(self, name: str) -> float | None:
        found = [one.counters[name] for one in self.launches if name in one.counters]
        return sum(found) if found else None


def groups(record: Record, apart: bool = False) -> list[Group]:
    """The launches by their code, or each on its own; those that take longest first."""
    found: dict[tuple[str, str], list[Launch]] = {}
    for one in record.launches:
        # Kernels of one region share its symbol; each is equal to those at its place in others.
        key = (one.own, "") if apart else (one.name, one.own.removeprefix(one.label))
        found.setdefault(key, []).append(one)
    made = [Group(launches[0].own, tuple(launches)) for launches in found.values()]
    return sorted(made, key=lambda group: -group.time)


def pattern(names: Sequence[str]) -> str:
    """Names, those that differ in numbers only as one:

    ["/layer.0/Add", "/layer.1/Add", "/layer.2/Add"] -> "/layer.{0-2}/Add"
    """
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for name in dict.fromkeys(names):
        parts = re.split(r"(\d+)", name)
        alike.setdefault(tuple(parts[::2]), []).append(parts)
    return ", ".join(
        "".join(
            values[0] if len(set(values)) == 1 else "{" + _ranges(map(int, values)) + "}"
            for values in zip(*split, strict=True)
        )
        for split in alike.values()
    )


def _ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )
