"""Sums of panels of columns: taken where these are computed, added up where rows are needed.

    region A: %x = dot_general ... {panel = 16}       region A: %x, and %p, a sum for 16 columns
    region B: %p = reduce_sum %x {panel = 16}   =>    region C: dot_general ..., reduce_sum %p
              %s = reduce_sum %p {panels}
    region C: dot_general ..., %s
passes/norms_in_epilogues.py makes them. A block of A has the columns of a panel; every block of C
reads the few numbers of its rows.
"""

from __future__ import annotations

from collections import deque

from fuser.graph.ir import Node
from fuser.partition.grouping import Group, Grouping
from fuser.partition.nodes import REDUCE, is_map

MOST = 64
"""Nodes between a matmul and its sums: a bound on search."""


def take_panels(grouping: Grouping, group: Group) -> None:
    """Put sums of panels, and what else is marked so, behind the matmul whose columns they are."""
    if not any("panel" in anchor.attrs for anchor in group.anchors):
        return
    taken = _wanted(grouping, _computed_of(grouping, group))
    if grouping.forbidden(group.nodes, taken) is not None:
        return
    for node in taken:
        grouping.close(node, group)
    group.anchors = [node for node in group.anchors if node.op not in REDUCE]


def _computed_of(grouping: Grouping, group: Group) -> set[Node]:
    """The maps and marked nodes, in no group yet, that need nothing but a group's values."""
    frontier = deque(value for node in group.nodes for value in node.outputs)
    members, found = set(group.nodes), set[Node]()
    while frontier and len(found) < MOST:
        for user in grouping.consumers(frontier.popleft()):
            if user in found or user in grouping.group_of:
                continue
            if (_is_marked(user) or is_map(user)) and _is_of(grouping, user, members | found):
                found.add(user)
                frontier.extend(user.outputs)
    return found


def _is_marked(node: Node) -> bool:
    return "panel" in node.attrs and node.op != "dot_general"


def _wanted(grouping: Grouping, nodes: set[Node]) -> list[Node]:
    """Those of some nodes that are marked, or that marked ones need, in graph order."""
    stack = [node for node in nodes if _is_marked(node)]
    found = set(stack)
    while stack:
        for value in stack.pop().inputs:
            for source in grouping.sources(value):
                if source.node in nodes and source.node not in found:
                    found.add(source.node)
                    stack.append(source.node)
    return sorted(found, key=grouping.position)


def _is_of(grouping: Grouping, node: Node, known: set[Node]) -> bool:
    """Whether a node needs nothing but constants and what known nodes give."""
    return all(
        source.constant is not None or (source.node is not None and source.node in known)
        for value in node.inputs for source in grouping.sources(value)
        if source.node is None or source.node not in grouping.virtual
    )  # fmt: skip


def inline_totals(grouping: Grouping) -> None:
    """Dissolve the sums over panels that only matmuls read: a few numbers a row."""
    for group in list(grouping.groups.values()):
        sums = [node for node in group.nodes if node.op in REDUCE]
        if group.kind != "reduce" or not all("panels" in node.attrs for node in sums):
            continue
        members = set(group.nodes)
        values = grouping.outputs(members)
        if any(grouping.reaches_output(value) for value in values):
            continue
        readers = {u for value in values for u in grouping.consumers(value)} - members
        owners = [grouping.group_of.get(user) for user in readers]
        if all(owner is not None and owner.kind == "contraction" for owner in owners):
            grouping.dissolve(group)


__all__ = ["inline_totals", "take_panels"]
