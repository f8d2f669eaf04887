"""Kernels of a report as a table for people: equal ones in one row, under names of their own."""

from __future__ import annotations

import re

from fuser.graph.units import byte_size, counted, microseconds
from fuser.report.groups import groups
from fuser.report.record import Record
from fuser.runtime.terminal import paragraphs, table, width
from fuser.tilegen.schedule import settings

WIDE = 120
"""A terminal of at least so many columns shows nodes beside their kernel, not below it."""


def kernel_table(record: Record, *, verbose: bool = False, most: int | None = None) -> str:
    """A row for the kernels of equal code, those that take longest first, with what the numbers
    are below. verbose: a row for each kernel, with DRAM and schedule. most: rows."""
    found = groups(record, verbose)
    shown = found[:most]
    several, timed = any(len(group.launches) > 1 for group in shown), record.is_measured
    counters = [*dict.fromkeys(name for one in record.launches for name in one.counters)]
    head = [
        "kernel", *["x"] * several, *["time", "share"] * timed, "roofline", "memory",
        *["DRAM"] * verbose, *map(_heading, counters),
    ]  # fmt: skip
    rows, below = [], []
    for group in shown:
        count = str(len(group.launches)) if len(group.launches) > 1 else ""
        share = f"{100 * group.time / record.total:.1f} %" if record.total else ""
        rows.append([
            group.label, *[count] * several, *[microseconds(group.time), share] * timed,
            microseconds(group.roofline), byte_size(group.boundary),
            *[byte_size(group.dram)] * verbose,
            *(_number(name, group.counter(name)) for name in counters),
        ])  # fmt: skip
        schedule = settings(group.launches[0].schedule, record.device).items()
        chosen = " ".join(f"{name}={value}" for name, value in schedule)
        below.append([group.nodes, *[chosen] * verbose])
    if width() >= WIDE:
        head.append("nodes")
        rows = [[*row, nodes] for row, (nodes, *_) in zip(rows, below, strict=True)]
        below = [rest for _, *rest in below]
    text = {"kernel", "nodes"}
    numbers = [at for at, name in enumerate(head) if name not in text]
    lines = [table(rows, head, numbers=numbers, below=below, paint=True)]
    left = sum(len(group.launches) for group in found[len(shown) :])
    if left:
        lines.append(f"and {counted(left, 'kernel')} that take less (fuser profile lists them)")
    if several:
        lines.append("a row of x kernels of equal code has their sums; -v lists each")
    return "\n".join([*lines, *map(paragraphs, _notes(record))])


def _notes(record: Record) -> list[str]:
    """What the numbers are."""
    if not (profile := record.data.get("profile")):
        return []
    runs, total = counted(profile["iterations"], "run"), microseconds(profile["kernels_us"])
    lines = [f"kernels together {total}, in the median of {runs}"]
    if profile["counters"]:
        lines.append(f"counters by {profile['counters']}")
    moved = [
        one.counters["dram_read_bytes"] + one.counters["dram_written_bytes"]
        for one in record.launches
        if "dram_read_bytes" in one.counters
    ]
    if moved:
        predicted = sum(one.dram for one in record.launches)
        lines.append(
            f"DRAM read and written {byte_size(sum(moved))}, predicted {byte_size(predicted)}"
        )
    if profile["missing"]:
        lines.append(f"no counters: {profile['missing']}")
    return lines


def _heading(name: str) -> str:
    name = re.sub(r"_(bytes|us)$", "", name)
    return name.replace("_", " ").replace("dram", "DRAM").replace("l2", "L2")


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return byte_size(value)
    if name.endswith("_us"):
        return microseconds(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
