"""A partition as text for people: its regions as a table, and the fusions it refused."""

from __future__ import annotations

from fuser.graph.units import byte_size, counted, duration, operations
from fuser.partition.explanation import Explanation, explanation
from fuser.partition.region import Partition
from fuser.partition.text import names, refusal_lines
from fuser.runtime.terminal import INDENT, paragraphs, shortened, table, width, wrapped


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
    refused = "\n".join(refusal_lines(found, None if verbose else max(room // 2, 24)))
    return "\n\n".join([*parts, paragraphs(refused, room)]) + "\n"


def _nodes(nodes: tuple[str, ...], verbose: bool, room: int) -> list[str]:
    """The nodes of a region in lines under its row: in one, unless all are asked for."""
    room -= len(INDENT)
    if verbose:
        return wrapped(names(nodes), room)
    most = room - len("... 99 more (-v)") if nodes[1:] else room
    return [names(tuple(shortened(name, most) for name in nodes), room)]
