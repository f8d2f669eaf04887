"""A partition as plain text, one item a line, for `fuser explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fuser.graph.units import byte_size, counted, duration, operations
from fuser.partition.explanation import Explanation, RefusalKind, explanation, refusal_kinds
from fuser.partition.region import Partition

MOST_EDGES = 3
"""Refusals of one kind that are listed, unless all are asked for."""


def explain(partition: Partition, width: int | None = 60) -> str:
    """The regions of a partition and the fusions it refused; see `text_of`."""
    return text_of(explanation(partition), width)


def text_of(found: Explanation, width: int | None = 60) -> str:
    """The regions and refusals. width: of the names of one item's nodes; None: all nodes of all
    regions, and every refusal."""
    return "\n".join([*_regions(found, width), "", *_refusals(found, width)]) + "\n"


def _regions(found: Explanation, width: int | None) -> Iterator[str]:
    yield (
        f"{counted(len(found.regions), 'region')}, {byte_size(found.bytes)},"
        f" {duration(found.seconds)} predicted"
    )
    yield ""
    yield f"{'id':>4}  {'kind':<12} {'bytes':>9} {'flops':>9} {'time':>9}  nodes"
    for row in found.regions:
        yield (
            f"{row.id:>4}  {row.kind:<12} {byte_size(row.bytes):>9} {operations(row.flops):>9}"
            f" {duration(row.seconds):>9}  {names(row.nodes, width)}"
        )
    if found.packed_bytes:
        yield ""
        yield f"{byte_size(found.packed_bytes)} less to read: weights stay packed"


def _refusals(found: Explanation, width: int | None) -> Iterator[str]:
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
    """The names as far as they fit, and how many more there are."""
    text = ""
    for i, name in enumerate(nodes):
        more = f"{text}, {name}" if text else name
        if width is not None and text and len(more) > width:
            return f"{text}, ... {len(nodes) - i} more (-v)"
        text = more
    return text
