"""Matmuls along an axis of one element are maps.

    %d = dot_general %x [m, 1], %y [1, n]    =>    %d = mul(broadcast %x, broadcast %y)
Rotary tables are written this way (positions times frequencies). As a map it fuses with anything.
"""

from __future__ import annotations

from math import prod

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.contraction import free_axes
from fuser.graph.ops.registry import build


def expand_outer_products(graph: Graph) -> Graph:
    """A graph in which every dot_general sums more than one term."""
    if not any(map(_is_outer, graph.nodes)):
        return graph
    result, values = begin_copy(graph)
    for node in graph.nodes:
        if _is_outer(node):
            values[node.output] = _expand(result, node, [values[v] for v in node.inputs])
        else:
            clone_node(result, node, values)
    result.outputs = [values[value] for value in graph.outputs]
    return result


def _is_outer(node: Node) -> bool:
    if node.op != "dot_general":
        return False
    terms: int = prod(node.inputs[0].shape[axis] for axis in node.attrs["lhs_contract"])
    return terms == 1


def _expand(graph: Graph, node: Node, operands: list[Value]) -> Value:
    shape = node.output.shape
    batch = len(node.attrs["lhs_batch"])
    sides = []
    first = batch
    for name, operand in zip(("lhs", "rhs"), operands, strict=True):
        batch_axes, contract = node.attrs[f"{name}_batch"], node.attrs[f"{name}_contract"]
        free = free_axes(operand.type.rank, batch_axes, contract)
        perm = (*batch_axes, *free, *contract)
        moved = build(graph, "transpose", operand, perm=perm, origin=node.origin)
        kept = moved.shape[: len(moved.shape) - len(contract)]
        flat = build(graph, "reshape", moved, shape=kept, origin=node.origin)
        axes = (*range(batch), *range(first, first + len(free)))
        sides.append(build(graph, "broadcast", flat, shape=shape, axes=axes, origin=node.origin))
        first += len(free)
    return build(graph, "mul", *sides, origin=node.origin)
