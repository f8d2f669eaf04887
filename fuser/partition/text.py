"""A partition as plain text, one item a line, for `fuser explain`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuser.graph.units import byte_size, counted, duration, operations
from fuser.partition.explanation import Explanation, RefusalGroup, explanation, folded
from fuser.partition.region import Partition

MOST_EDGES = 3
"""Refusals of one code that are listed, unless all are asked for."""


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
    yield f"{count} refused" + ("; what each would save at most:" if found.refusals else "")
    shown, small = folded(found.groups, 0.0 if width is None else found.seconds)
    for group in shown:
        yield ""
        yield from _group(group, width)
    if small:
        together = duration(sum(group.seconds for group in small))
        yield ""
        yield f"{folded_text(small, bool(shown))}: {together} together; -v lists them"


def folded_text(small: Sequence[RefusalGroup], beside: bool) -> str:
    """How many refusals are not shown. beside: whether others are."""
    count = sum(len(group.rows) for group in small)
    return f"{'and ' if beside else ''}{count}{' more' if beside else ''} below 1 % of the run"


def _group(group: RefusalGroup, width: int | None) -> Iterator[str]:
    count, first = len(group.rows), group.rows[0]
    times = f"{count} times, " if count > 1 else ""
    yield f"{group.code}: {times}{duration(group.seconds)}, {byte_size(group.bytes)}"
    yield f"  {group.reason}"
    lifts = dict.fromkeys(row.lift for row in group.rows)
    if len(lifts) == 1 and first.lift:
        yield f"  to lift it: {first.lift}"
    shown = group.rows if width is None else group.rows[:MOST_EDGES]
    for row in shown:
        yield (
            f"  {duration(row.seconds):>8} {byte_size(row.bytes):>8}"
            f"  {row.producer} -> {row.consumer}"
        )
        ends = f"{names(row.sources, width)} -> {names(row.readers, width)}"
        more = [ends, *([row.reason] if row.reason != group.reason else [])]
        yield from (f"{'':20}{line if width is None else shortened(line, width)}" for line in more)
        if len(lifts) > 1 and row.lift:
            yield f"{'':20}to lift it: {row.lift}"  # whole: it is there to be copied
    if len(shown) < count:
        yield f"  ... {count - len(shown)} more; -v lists all"


def shortened(text: str, width: int) -> str:
    """A text of at most so many letters: what is too much is left out of its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


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
