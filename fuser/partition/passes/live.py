"""Copies of a graph without what no output needs."""

from __future__ import annotations

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value


def with_copied_inputs(graph: Graph) -> Graph:
    """The live part of a graph, where every output has a node that computes it.

    The nodes are new, the values of the inputs and the constants' arrays are shared.
    """
    copy = _copy(graph, _live(graph))
    copies: dict[Value, Value] = {}
    for index, value in enumerate(copy.outputs):
        if value.node is None or value.constant is not None:
            if value not in copies:
                moved = copy.add("reshape", (value,), value.type, shape=value.shape)
                copies[value] = moved.output
            copy.outputs[index] = copies[value]
    return copy


def without_dead(graph: Graph) -> Graph:
    """A copy without the nodes that no output needs; the graph itself if there are none."""
    live = _live(graph)
    return graph if len(live) == len(graph.nodes) else _copy(graph, live)


def _live(graph: Graph) -> set[Node]:
    """The nodes that outputs need."""
    needed = set(graph.outputs)
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            live.add(node)
            needed.update(node.inputs)
    return live


def _copy(graph: Graph, live: set[Node]) -> Graph:
    copy, values = begin_copy(graph)
    for node in graph.nodes:
        if node in live:
            clone_node(copy, node, values)
    copy.outputs = [values[value] for value in graph.outputs]
    return copy
