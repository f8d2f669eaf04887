"""Reachability between groups of nodes, and the order of regions: the only user of networkx.

Ancestor sets are bit sets (Python ints) over node positions, kept up to date as groups merge, so
that a cycle check costs a few machine words instead of a graph search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import networkx as nx

from fuser.graph.ir import Graph, Node

K = TypeVar("K")


class Ancestors:
    """Which nodes each group depends on, the group's own nodes included.

    A group is named by an int. Bit i of a set stands for node i of the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.position: dict[Node, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.node_ancestors: list[int] = []
        for i, node in enumerate(graph.nodes):
            bits = 1 << i
            for value in node.inputs:
                if value.node is not None:
                    bits |= self.node_ancestors[self.position[value.node]]
            self.node_ancestors.append(bits)
        self.members: dict[int, int] = {}
        self.ancestors: dict[int, int] = {}
        self._needed = 0  # nodes that a group depends on or did, its own included
        self.placed = 0
        """The nodes of all groups."""
        self._owner: dict[Node, int] = {}
        self._merged: dict[int, int] = {}

    def add(self, group: int, nodes: Iterable[Node]) -> None:
        """A new group; it must not close a cycle (see `joins_cycle`)."""
        members = ancestors = 0
        own = list(nodes)
        for node in own:
            i = self.position[node]
            members |= 1 << i
            ancestors |= self.node_ancestors[i]
            self._owner[node] = group
        self.placed |= members
        ancestors |= self._in_front(own)
        self._settle(group, members, ancestors)

    def extend(self, group: int, node: Node) -> None:
        """A group takes a node that is in none."""
        i = self.position[node]
        ancestors = self.ancestors[group] | self.node_ancestors[i] | self._in_front([node])
        self._owner[node] = group
        self.placed |= 1 << i
        self._settle(group, self.members[group] | 1 << i, ancestors)

    def _in_front(self, nodes: list[Node]) -> int:
        """What the groups in front of nodes need, by way of nodes in no group too: all that is
        needed beside the nodes' own ancestors, as the sets of groups are closed."""
        ancestors = 0
        stack, seen = list(nodes), set(nodes)
        while stack:
            for value in stack.pop().inputs:
                if value.node is None or value.node in seen:
                    continue
                seen.add(value.node)
                owner = self._group_of(value.node)
                if owner is None:
                    stack.append(value.node)
                else:
                    ancestors |= self.ancestors[owner]
        return ancestors

    def _group_of(self, node: Node) -> int | None:
        group = self._owner.get(node)
        if group is None:
            return None
        while group in self._merged:
            group = self._merged[group]
        return group if group in self.members else None

    def is_last(self, members: int) -> bool:
        """Whether no node of another group comes behind the first of a bit set: none needs it."""
        first = (members & -members).bit_length() - 1
        return not (self.placed & ~members) >> first

    def merge(self, into: int, other: int) -> None:
        """`into` takes the nodes of `other`, which disappears."""
        members = self.members[into] | self.members.pop(other)
        ancestors = self.ancestors[into] | self.ancestors.pop(other)
        self._merged[other] = into
        self._settle(into, members, ancestors)

    def remove(self, group: int) -> None:
        """Forget a group whose nodes were copied into their consumers."""
        self.placed &= ~self.members.pop(group)
        del self.ancestors[group]

    def _settle(self, group: int, members: int, ancestors: int) -> None:
        """Close the ancestor sets: whoever needs a node of a group needs all the group needs."""
        is_needed = members & self._needed and not self.is_last(members)
        self.members[group] = members
        self.ancestors[group] = ancestors
        self._needed |= ancestors
        if is_needed:
            for other, bits in self.ancestors.items():
                if other != group and bits & members:
                    self.ancestors[other] = bits | ancestors

    def closure(self, members: int) -> int:
        """Everything that the nodes in a bit set depend on, by way of groups too."""
        bits, rest = 0, members
        while rest:
            low = rest & -rest
            bits |= self.node_ancestors[low.bit_length() - 1]
            rest ^= low
        for id, own in self.members.items():
            if own & bits:
                bits |= self.ancestors[id]
        return bits

    def depends(self, group: int, members: int) -> bool:
        """Whether a group needs one of the nodes in the bit set."""
        return bool(self.ancestors[group] & members)


def ordered(items: Sequence[K], before: Mapping[K, Iterable[K]], key: Mapping[K, int]) -> list[K]:
    """Items in an order where `before[x]` come ahead of x; ties go to the lesser key.

    Raises networkx.NetworkXUnfeasible if there is a cycle.
    """
    graph: nx.DiGraph[K] = nx.DiGraph()
    graph.add_nodes_from(items)
    graph.add_edges_from((source, item) for item, sources in before.items() for source in sources)
    return list(nx.lexicographical_topological_sort(graph, key=lambda item: key[item]))


def is_convex(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether no path between two of the nodes leaves the set."""
    inside = set(nodes)
    tainted: set[Node] = set()  # outside nodes that depend on an inside node
    for node in graph.nodes:
        sources = {value.node for value in node.inputs if value.node is not None}
        if node in inside:
            if sources & tainted:
                return False
        elif sources & inside or sources & tainted:
            tainted.add(node)
    return True
