"""Sums of panels of columns: taken where these are computed, added up where rows are needed.

    region A: %x = dot_general ... {panel = 16}       region A: %x, and %p, a sum for 16 columns
    region B: %p = reduce_sum %x {panel = 16}   =>    region C: dot_general ..., reduce_sum %p
              %s = reduce_sum %p {panels}
    region C: dot_general ..., %s
passes/norms_in_epilogues.py makes them. A block of A has one panel, or several whole ones; every
block of C reads the few numbers of its rows.
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
    for marked in _marked(grouping, group):
        needed = _needed(grouping, marked)
        if needed is None or grouping.forbidden(group.nodes, needed) is not None:
            continue
        if any(grouping.closes_cycle(node, group, needed) for node in needed):
            continue
        for node in sorted(needed, key=grouping.position):
            grouping.close(node, group)
    group.anchors = [node for node in group.anchors if node.op not in REDUCE]


def _marked(grouping: Grouping, group: Group) -> list[Node]:
    """The marked nodes that are computed of a group's values alone, by maps, in graph order."""
    frontier = deque(value for node in group.nodes for value in node.outputs)
    seen, found = set(group.nodes), set[Node]()
    while frontier and len(seen) <= len(group.nodes) + MOST:
        for user in grouping.consumers(frontier.popleft()):
            if user in seen or user in grouping.group_of or not _is_of(grouping, user, seen):
                continue
            if "panel" in user.attrs and user.op != "dot_general":
                found.add(user)
            elif not is_map(user):
                continue
            seen.add(user)
            frontier.extend(user.outputs)
    return sorted(found, key=grouping.position)


def _is_of(grouping: Grouping, node: Node, known: set[Node]) -> bool:
    """Whether a node needs nothing but constants and what known nodes give."""
    return all(
        source.constant is not None or (source.node is not None and source.node in known)
        for value in node.inputs for source in grouping.sources(value)
        if source.node is None or source.node not in grouping.virtual
    )  # fmt: skip


def _needed(grouping: Grouping, marked: Node) -> set[Node] | None:
    """A node with the maps that are in no group yet and that it needs; None if it needs more."""
    needed, stack = {marked}, [marked]
    while stack:
        for value in stack.pop().inputs:
            for source in grouping.sources(value):
                node = source.node
                if node is None or node in grouping.group_of or node in grouping.virtual:
                    continue
                if not is_map(node) or len(needed) > MOST:
                    return None
                if node not in needed:
                    needed.add(node)
                    stack.append(node)
    return needed


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
