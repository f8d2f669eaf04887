"""A partition as text for people: its regions as a table, and the fusions it refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuser.graph.units import byte_size, counted, duration, operations
from fuser.partition.explanation import Explanation, RefusalGroup, explanation, folded
from fuser.partition.region import Partition
from fuser.runtime.terminal import INDENT, paragraphs, shortened, table, width, wrapped

MOST_EDGES = 3
"""Refusals of one code that are listed, unless all are asked for."""
ENDS = 20
"""Columns to the left of the nodes of a refusal."""


def explain(partition: Partition, verbose: bool = False, most: int | None = None) -> str:
    """The regions of a partition and the fusions it refused; see `text_of`."""
    return text_of(explanation(partition), verbose, most)


def text_of(found: Explanation, verbose: bool = False, most: int | None = None) -> str:
    """The regions and refusals, in lines of at most `most` columns (without it those of the
    terminal). verbose: all nodes of all regions, and every refusal."""
    room = width() if most is None else most
    rows = [
        (str(row.id), row.kind, byte_size(row.bytes), operations(row.flops), duration(row.seconds))
        for row in found.regions
    ]
    head = ("id", "kind", "bytes", "flops", "time")
    below = [_nodes(row.nodes, verbose, room) for row in found.regions]
    parts = [
        f"{counted(len(rows), 'region')}, {byte_size(found.bytes)},"
        f" {duration(found.seconds)} predicted",
        table(rows, head, numbers=(0, 2, 3, 4), below=below, most=room, paint=True),
    ]
    if found.packed_bytes:
        parts.append(f"{byte_size(found.packed_bytes)} less to read: weights stay packed")
    refused = "\n".join(_refusals(found, None if verbose else room - ENDS))
    return "\n\n".join([*parts, paragraphs(refused, room)]) + "\n"


def _nodes(nodes: tuple[str, ...], verbose: bool, room: int) -> list[str]:
    """The nodes of a region in lines under its row: in one, unless all are asked for."""
    room -= len(INDENT)
    if verbose:
        return wrapped(names(nodes), room)
    most = room - len("... 99 more (-v)") if nodes[1:] else room
    return [names(tuple(shortened(name, most) for name in nodes), room)]


def _refusals(found: Explanation, width: int | None) -> Iterator[str]:
    """width: of the names of one item's nodes; None: all nodes, and every refusal."""
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
        yield from (
            f"{'':{ENDS}}{line if width is None else shortened(line, width)}" for line in more
        )
        if len(lifts) > 1 and row.lift:
            yield f"{'':{ENDS}}to lift it: {row.lift}"  # whole: it is there to be copied
    if len(shown) < count:
        yield f"  ... {count - len(shown)} more; -v lists all"


def change_text(changed: Mapping[str, Any]) -> str:
    """What `forced_change` found, in a line."""
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
