"""Copies of graphs, node by node, in which some nodes become others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from fuser.graph.ir import Attrs, Graph, Node, Value

Found = TypeVar("Found")


def begin_copy(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """(a graph with the same inputs and no nodes yet, the value in it for each of the graph's)."""
    copy = graph.like()
    copy.inputs, copy.output_names = list(graph.inputs), list(graph.output_names)
    copy.source = graph.source
    copy._names = graph._names
    return copy, {value: value for value in graph.inputs}


def clone_node(
    graph: Graph, node: Node, values: dict[Value, Value], attrs: Attrs | None = None
) -> Node:
    """Append a copy of a node with its operands looked up in `values`, which gains its results.
    attrs: those of the copy, if others."""
    operands = tuple(values[value] for value in node.inputs)
    clone = Node(node.op, operands, node.attrs if attrs is None else dict(attrs), (), node.origin)
    clone.outputs = tuple(Value(v.type, v.name, clone, v.index) for v in node.outputs)
    graph.nodes.append(clone)
    values.update(zip(node.outputs, clone.outputs, strict=True))
    return clone


def with_replaced(
    graph: Graph,
    found: Mapping[Node, Found],
    make: Callable[[Graph, Node, dict[Value, Value], Found], Value],
) -> Graph:
    """A copy in which `make` builds the result of each node in `found`; without any, the graph.

    make: takes the copy, the node, the values in the copy, and what was found of the node."""
    if not found:
        return graph
    copy, values = begin_copy(graph)
    for node in graph.nodes:
        if node in found:
            values[node.output] = make(copy, node, values, found[node])
        else:
            clone_node(copy, node, values)
    copy.outputs = [values[value] for value in graph.outputs]
    return copy
