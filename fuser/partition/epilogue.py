"""Grow contractions, convolutions, attention and pooling forward over the maps behind them.

    %d = dot_general %x, %w                    one region: the matmul stays in registers
    %b = add %d, %bias            =>           through bias, activation and residual,
    %g = gelu %b                               and only %g is written
Every map that lines up with the anchor's output is tried; of all prefixes of the growth the one
that writes the fewest bytes wins, and of equal ones the longest.
"""

from __future__ import annotations

from fuser.graph.ir import Node, Value
from fuser.partition.grouping import Group, Grouping, Misfit
from fuser.partition.nodes import REDUCE, is_map
from fuser.partition.positions import Positions

LIMIT = 64
"""Most nodes in an epilogue: a bound on search, far above what models have."""


def grow_epilogue(grouping: Grouping, group: Group) -> None:
    """Take maps behind the group's values into it, as far as that saves bytes."""
    taken: list[tuple[Node, Positions]] = []
    members = set(group.nodes)
    best, best_bytes = 0, _output_bytes(grouping, members)
    refused: set[Node] = set()
    while len(taken) < LIMIT:
        step = _next(grouping, group, members, refused)
        if step is None:
            break
        node, positions = step
        group.positions[node.output] = positions
        members.add(node)
        taken.append((node, positions))
        written = _output_bytes(grouping, members)
        if written <= best_bytes or grouping.pinned(members - {node}, [node]):
            best, best_bytes = len(taken), written
    for node, _ in taken:
        del group.positions[node.output]
    for node, positions in taken[:best]:
        grouping.join(node, group, positions)
    kept = set(group.nodes)
    for node, _ in taken[best:]:
        for producer in _feeding(grouping, node, kept):
            grouping.refuse(
                producer, node,
                Misfit("more-outputs", "fusing would write another value without saving one"),
            )  # fmt: skip


def join_parts(grouping: Grouping, group: Group) -> None:
    """Let a group whose outputs are the parts of one concat write them where they belong."""
    outputs = grouping.outputs(set(group.nodes))
    readers = {user for value in outputs for user in grouping.consumers(value)}
    readers -= set(group.nodes)
    if len(outputs) < 2 or len(readers) != 1 or any(map(grouping.reaches_output, outputs)):
        return
    (node,) = readers
    if node.op == "concat" and node not in grouping.group_of and set(node.inputs) == set(outputs):
        lined_up = all(value in group.positions for value in outputs)
        if lined_up and grouping.forbidden(group.nodes, [node]) is None:
            grouping.close(node, group)


def append_maps(grouping: Grouping) -> None:
    """Let map regions that nobody inlined follow the anchor they read, as a further output.

    That saves a launch and reading the value back. It comes last, since a reader that inlines a map
    also saves writing it.
    """
    for group in list(grouping.groups.values()):
        if group.kind != "map":
            continue
        for owner in {o: None for node in group.nodes for o in grouping.producers(node)}:
            if owner.kind in ("contraction", "conv", "attention", "window", "kernel"):
                if _append(grouping, owner, group):
                    break


def _append(grouping: Grouping, owner: Group, group: Group) -> bool:
    nodes = sorted(group.nodes, key=grouping.position)
    if any(not is_map(node) for node in nodes):
        return False
    if owner.is_full(group.work) and not grouping.pinned(owner.nodes, nodes):
        return False
    if grouping.groups_close_cycle(owner, group):
        return False
    if grouping.forbidden(owner.nodes, nodes) is not None:
        return False
    found: dict[Value, Positions] = {}
    for node in nodes:
        positions = grouping.fit(node, owner)
        # a kernel of a user knows the places of what it stores, and of what is made of that
        follows = any(grouping.lead(value, owner) is not None for value in node.inputs)
        if isinstance(positions, Misfit) or (owner.kind == "kernel" and not follows):
            for value in found:
                del owner.positions[value]
            return False
        found[node.output] = owner.positions[node.output] = positions
    group.positions = found
    grouping.absorb(owner, group)
    return True


def _next(
    grouping: Grouping, group: Group, members: set[Node], refused: set[Node]
) -> tuple[Node, Positions] | None:
    """The first map in graph order that reads a member and fits."""
    frontier = {
        user
        for node in members
        for value in node.outputs
        if value in group.positions
        for user in grouping.consumers(value)
    }
    for node in sorted(frontier - members - refused, key=grouping.position):
        misfit = _misfit(grouping, group, node, members)
        if isinstance(misfit, Misfit):
            refused.add(node)
            for producer in _feeding(grouping, node, members):
                grouping.refuse(producer, node, misfit)
        else:
            return node, misfit
    return None


def _misfit(grouping: Grouping, group: Group, node: Node, members: set[Node]) -> Positions | Misfit:
    if node in grouping.group_of or not is_map(node):
        return behind_anchor(group, node)
    if misfit := grouping.forbidden(members, [node]):
        return misfit
    found = grouping.fit(node, group)
    more = members.difference(group.nodes)
    if not isinstance(found, Misfit) and grouping.closes_cycle(node, group, more):
        return Misfit("cycle", "it also needs a value that is computed from this one elsewhere")
    return found


def behind_anchor(group: Group, node: Node) -> Misfit:
    """Why a node that is not a free map cannot follow an anchor."""
    if node.op in REDUCE:
        return Misfit(
            "row-across-blocks", "the row it reduces is spread over blocks of the kernel before"
        )
    if node.op in ("dot_general", "conv", "reduce_window"):
        return Misfit("second-anchor", "it needs an iteration space of its own")
    return Misfit("placed", "it is already part of another region")


def _feeding(grouping: Grouping, node: Node, members: set[Node]) -> list[Node]:
    return [
        source.node
        for value in node.inputs
        for source in grouping.sources(value)
        if source.node in members and source.node is not None
    ]


def _output_bytes(grouping: Grouping, members: set[Node]) -> int:
    values: list[Value] = grouping.outputs(members)
    return sum(value.type.bytes for value in values)
