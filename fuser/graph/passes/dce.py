"""Remove nodes whose results nothing reads. Graph inputs stay."""

from __future__ import annotations

from fuser.graph.ir import Graph


def remove_dead_nodes(graph: Graph) -> Graph:
    """The same graph without dead nodes (changed in place)."""
    needed = set(graph.outputs)
    live = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            live.append(node)
    graph.nodes = live[::-1]
    return graph
