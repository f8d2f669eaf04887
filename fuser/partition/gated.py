"""Parallel matmuls whose results meet elementwise: one region with several anchors.

    %g = dot_general %x, %w1
    %u = dot_general %x, %w2             one region reads %x once and keeps both matmuls on chip
    %y = mul(silu %g, %u)
This is the gate of SwiGLU, GeGLU and their kin, found by shape, not by name.
"""

from __future__ import annotations

from fuser.graph.ir import Graph, Node, Value
from fuser.partition.nodes import is_injective, is_map

DEPTH = 32
"""Most maps between a matmul and the place where it meets another."""


def find_gates(graph: Graph) -> list[tuple[Node, ...]]:
    """Matmuls on one operand, of one shape, all of whose readers lead to common maps."""
    uses = graph.uses()
    outputs = set(graph.outputs)
    found: list[tuple[Node, ...]] = []
    for siblings in parallel_products(graph):
        rest = list(siblings)
        while rest:
            first = rest.pop(0)
            reach = maps_behind(first, uses)
            for other in rest:
                if other.output.shape != first.output.shape:
                    continue
                meeting = reach & maps_behind(other, uses)
                if meeting and _meets_whole((first, other), meeting, uses, outputs):
                    found.append((first, other))
                    rest.remove(other)
                    break
    return found


def parallel_products(graph: Graph) -> list[list[Node]]:
    """Matmuls with the same left operand, contracted along the same axes, in graph order."""
    table: dict[tuple[Value, tuple[int, ...], tuple[int, ...]], list[Node]] = {}
    for node in graph.nodes:
        if node.op == "dot_general":
            attrs = node.attrs
            key = (node.inputs[0], tuple(attrs["lhs_contract"]), tuple(attrs["lhs_batch"]))
            table.setdefault(key, []).append(node)
    return [nodes for nodes in table.values() if len(nodes) > 1]


def maps_behind(node: Node, uses: dict[Value, list[Node]]) -> set[Node]:
    """The maps that follow a node through maps and injective movement."""
    found: set[Node] = set()
    stack = [node]
    while stack and len(found) < DEPTH:
        for user in uses.get(stack.pop().output, ()):
            if user not in found and (is_map(user) or is_injective(user)):
                found.add(user)
                stack.append(user)
    return {n for n in found if is_map(n)}


def _meets_whole(
    matmuls: tuple[Node, ...],
    meeting: set[Node],
    uses: dict[Value, list[Node]],
    outputs: set[Value],
) -> bool:
    """Whether nothing between the matmuls and the maps where they meet is read elsewhere."""
    between: set[Node] = set(meeting)
    stack: list[Node] = list(matmuls)
    while stack:
        node = stack.pop()
        if node in between:
            continue
        between.add(node)
        if len(between) > 4 * DEPTH or node.output in outputs:
            return False
        users = uses.get(node.output, [])
        if any(not (is_map(user) or is_injective(user)) for user in users):
            return False
        stack.extend(users)
    return True
