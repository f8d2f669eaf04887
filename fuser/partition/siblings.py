"""Join map and reduce regions that do not read each other: one launch, shared inputs read once.

    region A: %c = cos %a                 one region with two outputs
    region B: %s = sin %a          =>
Both must iterate over the same space. Small regions join for the launch alone, large ones only
where they share an input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fuser.base.target import Target
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
    is_small: bool
    needs: Needs[Group | Node]

    @property
    def is_full(self) -> bool:
        """Whether nothing that writes a value can join."""
        return len(self.reads) + len(self.writes) >= MOST_VALUES

    def take(self, other: _Sibling, target: Target) -> None:
        """Have what the other has, whose group was absorbed."""
        self.reads |= other.reads
        self.writes |= other.writes
        self.largest = max(self.largest, other.largest)
        self.is_small = _is_small(target, self.reads, self.writes)


def join_siblings(grouping: Grouping, among: Sequence[Group] | None = None) -> None:
    """Join what may be joined, earlier regions first; among: of these groups only."""
    table: dict[tuple[object, ...], list[Group]] = {}
    for group in list(grouping.groups.values()) if among is None else among:
        if not group.is_elementwise and group.axes is None:
            continue
        base = b"" if group.base is None else group.base.tobytes()
        table.setdefault((group.space, group.axes, base), []).append(group)
    for groups in table.values():
        kept = _Kept(grouping)
        for group in groups if len(groups) > 1 else ():
            sibling = _sibling(grouping, group, kept.needs)
            if sibling.is_full and not grouping.is_pinned(group):
                continue
            partner = kept.partner(sibling)
            if partner is None:
                kept.add(sibling)
                continue
            grouping.absorb(partner.group, group)
            kept.needs.clear()
            partner.take(sibling, grouping.target)
            if partner.is_full and not grouping.is_pinned(partner.group):
                kept.siblings.remove(partner)


class _Kept:
    """Groups that found no partner, which later ones may join. needs: those of them that some of
    them need, of all that were there by then, while groups stay as they are: in a chain of equal
    layers each needs what the one before it does."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.siblings: deque[_Sibling] = deque()
        self.needs: dict[Group | Node, set[Group | Node]] = {}

    def partner(self, sibling: _Sibling) -> _Sibling | None:
        """The first that a sibling may join."""
        needed = sibling.needs.found
        for other in self.siblings:
            if other.group not in needed and _may_join(self.grouping, other, sibling):
                return other
        return None

    def add(self, sibling: _Sibling) -> None:
        order, group = self.grouping.order, sibling.group
        if any(order.is_before(group, other) for other in self.needs):
            self.needs.clear()  # one of them may need this one
        groups: set[Group | Node] = {other.group for other in self.siblings}
        if all(sibling.needs.is_complete(order.label(other)) for other in groups):
            self.needs[group] = groups & sibling.needs.found
        self.siblings.append(sibling)
        if len(self.siblings) > MOST_PARTNERS:
            self.needs.pop(self.siblings.popleft().group, None)


@by_example
def _sibling(
    grouping: Grouping, group: Group, known: Mapping[Group | Node, set[Group | Node]]
) -> _Sibling:
    largest = max(value.type.bytes for value in group.positions)
    reads, writes = _reads(grouping, group.nodes), set(grouping.outputs(set(group.nodes)))
    small = _is_small(grouping.target, reads, writes)
    needs = Needs(grouping.order, group, MOST_BETWEEN, known)
    return _Sibling(group, reads, writes, largest, small, needs)


@by_example
def _is_small(target: Target, reads: Collection[Value], writes: Collection[Value]) -> bool:
    return cost.traffic_seconds(target, (*reads, *writes)) < SMALL * target.launch_cost


@by_example
def _may_join(grouping: Grouping, one: _Sibling, other: _Sibling) -> bool:
    a, b = one.group, other.group
    if not (grouping.pinned(a.nodes, b.nodes) or _pays(one, other)):
        return False
    if grouping.forbidden(a.nodes, b.nodes) is not None:
        return False
    if grouping.order.is_before(a, b):
        return not other.needs.may_include(a)
    return not Needs(grouping.order, a, MOST_BETWEEN).may_include(b)


def _pays(one: _Sibling, other: _Sibling) -> bool:
    """Whether two regions that may join are better off together."""
    if len(one.reads | other.reads) + len(one.writes) + len(other.writes) > MOST_VALUES:
        return False
    if one.group.is_full(other.group.work) or other.group.closed:
        return False
    shared = sum(value.type.bytes for value in one.reads & other.reads)
    if shared * 4 >= max(one.largest, other.largest):
        return True
    return one.is_small and other.is_small


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
