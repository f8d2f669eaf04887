"""Join map and reduce regions that do not read each other: one launch, shared inputs read once.

    region A: %c = cos %a                 one region with two outputs
    region B: %s = sin %a          =>
Both must iterate over the same space. Small regions join for the launch alone, large ones only
where they share an input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example
from fuser.partition import cost
from fuser.partition.dag import Needs
from fuser.partition.grouping import Group, Grouping
from fuser.partition.nodes import CREATE

SMALL = 4.0
"""A region is small if it is busy for less than this many launches."""

MOST_VALUES = 12
"""Most values read and written by a joined region: more would not stay in registers."""


MOST_BETWEEN = 4096
"""Regions behind which two are no longer compared."""

MOST_PARTNERS = 64
"""Regions that one is compared with, the latest ones: time must not grow with their square."""


@dataclass(eq=False)
class _Sibling:
    """A group, with what joining asks of it."""

    group: Group
    reads: set[Value]
    writes: set[Value]
    largest: int  # bytes of its largest value
    needs: Needs[Group | Node]

    @property
    def is_full(self) -> bool:
        """Whether nothing that writes a value can join."""
        return len(self.reads) + len(self.writes) >= MOST_VALUES

    def is_small(self, grouping: Grouping) -> bool:
        target = grouping.target
        seconds = cost.traffic_seconds(target, (*self.reads, *self.writes))
        return seconds < SMALL * target.launch_cost


def join_siblings(grouping: Grouping, among: Sequence[Group] | None = None) -> None:
    """Join what may be joined, earlier regions first; among: of these groups only."""
    table: dict[tuple[object, ...], list[Group]] = {}
    for group in list(grouping.groups.values()) if among is None else among:
        if not group.is_elementwise and group.axes is None:
            continue
        base = b"" if group.base is None else group.base.tobytes()
        table.setdefault((group.space, group.axes, base), []).append(group)
    for groups in table.values():
        kept: deque[_Sibling] = deque(maxlen=MOST_PARTNERS)
        for group in groups if len(groups) > 1 else ():
            sibling = _sibling(grouping, group)
            if sibling.is_full and not grouping.is_pinned(group):
                continue
            partner = next((other for other in kept if _may_join(grouping, other, sibling)), None)
            if partner is None:
                kept.append(sibling)
                continue
            grouping.absorb(partner.group, group)
            partner.reads |= sibling.reads
            partner.writes |= sibling.writes
            partner.largest = max(partner.largest, sibling.largest)
            if partner.is_full and not grouping.is_pinned(partner.group):
                kept.remove(partner)


@by_example
def _sibling(grouping: Grouping, group: Group) -> _Sibling:
    largest = max(value.type.bytes for value in group.positions)
    reads, writes = _reads(grouping, group.nodes), set(grouping.outputs(set(group.nodes)))
    return _Sibling(group, reads, writes, largest, Needs(grouping.order, group, MOST_BETWEEN))


@by_example
def _may_join(grouping: Grouping, one: _Sibling, other: _Sibling) -> bool:
    a, b = one.group, other.group
    if not (grouping.pinned(a.nodes, b.nodes) or _pays(grouping, one, other)):
        return False
    if grouping.forbidden(a.nodes, b.nodes) is not None:
        return False
    if grouping.order.is_before(a, b):
        return not other.needs.may_include(a)
    return not Needs(grouping.order, a, MOST_BETWEEN).may_include(b)


def _pays(grouping: Grouping, one: _Sibling, other: _Sibling) -> bool:
    """Whether two regions that may join are better off together."""
    if len(one.reads | other.reads) + len(one.writes) + len(other.writes) > MOST_VALUES:
        return False
    if one.group.is_full(other.group.work) or other.group.closed:
        return False
    shared = sum(value.type.bytes for value in one.reads & other.reads)
    if shared * 4 >= max(one.largest, other.largest):
        return True
    return one.is_small(grouping) and other.is_small(grouping)


def _reads(grouping: Grouping, nodes: list[Node]) -> set[Value]:
    """Values read from memory, scalars left out."""
    inside = set(nodes)
    return {
        source
        for node in nodes
        for value in node.inputs
        for source in grouping.sources(value)
        if source.node not in inside
        and source.type.size > 1
        and not (source.node is not None and source.node.op in CREATE and source.constant is None)
    }
