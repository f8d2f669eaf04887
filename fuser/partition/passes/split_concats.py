"""A concat of very many tensors is one of a few concats.

    %y = concat %x0, ..., %x299    =>    %a = concat %x0, ..., %x17;   ...;   %y = concat %a, ...
An element looks for its place in every operand of a concat, so that a kernel of 300 would compare
300 times for each; of 18 and 17, 35 times, for the price of writing everything once more.
"""

from __future__ import annotations

from math import isqrt

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build

MOST_OPERANDS = 64
"""Operands of one concat."""

FEWEST_OPERANDS = 12
"""Operands of a part: a kernel that looks for its place in fewer would not be written alone."""


def split_concats(graph: Graph) -> Graph:
    """A graph in which every concat has at most MOST_OPERANDS operands."""
    if not any(map(_is_long, graph.nodes)):
        return graph
    result, values = begin_copy(graph)
    for node in graph.nodes:
        if _is_long(node):
            values[node.output] = _parted(result, node, [values[v] for v in node.inputs])
        else:
            clone_node(result, node, values)
    result.outputs = [values[value] for value in graph.outputs]
    return result


def _is_long(node: Node) -> bool:
    return node.op == "concat" and len(node.inputs) > MOST_OPERANDS


def _parted(graph: Graph, node: Node, operands: list[Value]) -> Value:
    while len(operands) > 1:
        size = _part(len(operands))
        parts = [operands[i : i + size] for i in range(0, len(operands), size)]
        operands = [
            build(graph, "concat", *part, axis=node.attrs["axis"], origin=node.origin)
            if len(part) > 1
            else part[0]
            for part in parts
        ]
    return operands[0]


def _part(count: int) -> int:
    """How many operands make a part: as many as there are parts, if that is not too many."""
    if count <= MOST_OPERANDS:
        return count
    return min(MOST_OPERANDS, max(FEWEST_OPERANDS, isqrt(count - 1) + 1))
