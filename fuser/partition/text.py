"""Refusals and changes of a partition as plain text, one item a line, for `fuser explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fuser.graph.units import byte_size, counted, duration
from fuser.partition.explanation import Explanation, RefusalKind, refusal_kinds

MOST_EDGES = 3
"""Refusals of one kind that are listed, unless all are asked for."""


def refusal_lines(found: Explanation, width: int | None) -> Iterator[str]:
    """The refusals of a partition, those of one kind together. width: of the names of one item's
    nodes; None: all nodes, and every refusal."""
    count = counted(len(found.refusals), "fusion")
    yield f"{count} refused" + ("; what each would save:" if found.refusals else "")
    for kind in refusal_kinds(found.refusals):
        yield ""
        yield from _kind(kind, width)


def _kind(kind: RefusalKind, width: int | None) -> Iterator[str]:
    first = kind.rows[0]
    sums = f"{byte_size(kind.bytes)}, {duration(kind.seconds)}"
    times = f" ({len(kind.rows)} times, {sums})" if len(kind.rows) > 1 else ""
    yield f"{kind.code}, {kind.producer} -> {kind.consumer}: {first.reason}{times}"
    lifts = dict.fromkeys(row.lift for row in kind.rows)
    if len(lifts) == 1:
        yield f"    to lift it: {first.lift}"
    shown = kind.rows if width is None else kind.rows[:MOST_EDGES]
    for row in shown:
        ends = f"{names(row.sources, width)} -> {names(row.readers, width)}"
        yield (
            f"    {byte_size(row.bytes):>9} {duration(row.seconds):>9}  {ends}"
            f"  ({row.producer} -> {row.consumer})"
            + (f": {row.reason}" if row.reason != first.reason else "")
            + (f"; to lift it: {row.lift}" if len(lifts) > 1 else "")
        )
    if len(shown) < len(kind.rows):
        yield f"    ... {len(kind.rows) - len(shown)} more; -v lists all"


def change_text(changed: Mapping[str, Any]) -> str:
    """What `explanation.change` found, in a line."""
    pairs = [f"{wish} {' + '.join(pair)}" for wish in ("pin", "forbid") for pair in changed[wish]]
    kernels, moved, seconds = (changed[key] for key in ("kernels", "bytes", "seconds"))
    if kernels == moved == seconds:
        return f"{', '.join(pairs)}: nothing changed"
    return (
        f"{', '.join(pairs)}: {kernels['unforced']} -> {counted(kernels['forced'], 'kernel')},"
        f" {byte_size(moved['unforced'])} -> {byte_size(moved['forced'])},"
        f" {duration(seconds['unforced'])} -> {duration(seconds['forced'])} predicted"
    )


def names(nodes: tuple[str, ...], width: int | None = None) -> str:
    """The names, as many as fit with a word of how many more there are; at least one."""
    whole = ", ".join(nodes)
    if width is None or len(whole) <= width:
        return whole
    for count in range(len(nodes) - 1, 0, -1):
        text = f"{', '.join(nodes[:count])}, ... {len(nodes) - count} more (-v)"
        if len(text) <= width:
            break
    return text if nodes[1:] else whole
