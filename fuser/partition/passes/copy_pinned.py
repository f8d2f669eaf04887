"""Compute maps once more for the node that they are pinned to, where others read them, too.

    %a = relu %x                       %a = relu %x      (written, for %c)
    %b = dot_general %a, %w     =>     %a' = relu %x
    %c = sort %a                       %b = dot_general %a', %w
A map that is an output of the model, or that a sort reads, is written to memory; its copy may be a
part of the region of the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.partition.forced import IDLE
from fuser.partition.nodes import VIEW, is_map
from fuser.partition.options import Pair
from fuser.partition.passes.live import without_dead


def copy_pinned(graph: Graph, pairs: Iterable[Pair]) -> Graph:
    """A copy in which the readers of each pair have maps of the other node for themselves."""
    for one, other in pairs:
        for source, reader in ((one, other), (other, one)):
            graph = _copied(graph, source, reader)
    return without_dead(graph)


def _copied(graph: Graph, source: str, reader: str) -> Graph:
    """A copy in which nodes of `reader` read what maps of `source` compute from copies."""
    copy, values = begin_copy(graph)
    own: dict[Value, Value] = {}  # what the readers see
    for node in graph.nodes:
        if reader in node.origin and node.op not in IDLE and source not in node.origin:
            for mapped in _maps_behind(graph, node, source):
                if mapped.output not in own:
                    clone = _clone(copy, mapped, own, values).output
                    clone.name = copy.fresh()
                    own[mapped.output] = clone
            values.update(zip(node.outputs, _clone(copy, node, own, values).outputs, strict=True))
        else:
            clone_node(copy, node, values)
    copy.outputs = [values[value] for value in graph.outputs]
    return copy


def _clone(
    graph: Graph, node: Node, own: Mapping[Value, Value], values: Mapping[Value, Value]
) -> Node:
    return clone_node(graph, node, {v: own[v] if v in own else values[v] for v in node.inputs})


def _maps_behind(graph: Graph, reader: Node, source: str) -> list[Node]:
    """The maps of `source` that a node reads by way of maps and movement, and those, in order."""
    behind: set[Node] = set()
    stack = [reader]
    while stack:
        for value in stack.pop().inputs:
            node = value.node
            if node is not None and node not in behind and (is_map(node) or node.op in VIEW):
                behind.add(node)
                stack.append(node)
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if node in behind:
            computes = source in node.origin and node.op not in IDLE
            if computes or any(value.node in found for value in node.inputs):
                found[node] = None
    return list(found)
