"""Split a matmul whose parts meet elementwise: a gate written as one matrix.

    %m = dot_general %x, %w                     %a = dot_general %x, %w[:, :n]
    %a = slice %m [:, :n]                =>     %b = dot_general %x, %w[:, n:]
    %b = slice %m [:, n:]
As one matmul, %a and %b lie in different blocks of the kernel and another kernel must join them.
As two, they are the anchors of one region (gated.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.partition.gated import maps_behind
from fuser.partition.passes.live import without_dead
from fuser.partition.passes.merge_matmuls import Branch, is_linear, matmul_with_bias


@dataclass(frozen=True)
class _Parts:
    """A matmul, its bias, and the slices of the result with where they start and end."""

    branch: Branch
    slices: tuple[tuple[Node, int, int], ...]


def split_matmuls(graph: Graph) -> Graph:
    """A graph where the parts of gates written as one matmul are matmuls of their own."""
    uses = graph.uses()
    outputs = set(graph.outputs)
    found: dict[Node, _Parts] = {}
    for node in graph.nodes:
        if node.op == "dot_general" and is_linear(node):
            parts = _parts(matmul_with_bias(node, uses, outputs), uses, outputs)
            if parts is not None:
                found[node] = parts
    if not found:
        return graph
    replaced = {node for parts in found.values() for node, _, _ in parts.slices}
    result, values = begin_copy(graph)
    for node in graph.nodes:
        if node in found:
            _emit(result, found[node], values)
        if node not in replaced:
            clone_node(result, node, values)
    result.outputs = [values[value] for value in graph.outputs]
    return without_dead(result)


def _parts(branch: Branch, uses: dict[Value, list[Node]], outputs: set[Value]) -> _Parts | None:
    """The slices of a matmul if nothing else reads it and they all meet in one map."""
    result = branch.result
    users = uses.get(result, [])
    if result in outputs or len(users) < 2:
        return None
    slices = []
    for user in users:
        bounds = _columns(user, result)
        if bounds is None or user.output in outputs:
            return None
        slices.append((user, *bounds))
    meeting = set.intersection(*(maps_behind(user, uses) for user in users))
    return _Parts(branch, tuple(slices)) if meeting else None


def _columns(node: Node, whole: Value) -> tuple[int, int] | None:
    """(start, limit) along the last axis of a slice that keeps all else."""
    if node.op != "slice" or any(stride != 1 for stride in node.attrs["strides"]):
        return None
    if node.output.shape[:-1] != whole.shape[:-1]:
        return None
    return int(node.attrs["starts"][-1]), int(node.attrs["limits"][-1])


def _emit(graph: Graph, parts: _Parts, values: dict[Value, Value]) -> None:
    matmul, bias = parts.branch.matmul, parts.branch.bias
    weights = matmul.inputs[1].constant
    assert weights is not None
    contract = matmul.attrs["rhs_contract"][0]
    for node, start, limit in parts.slices:
        columns = np.take(weights, range(start, limit), 1 - contract)
        rhs = graph.constant(columns)
        lhs = values[matmul.inputs[0]]
        out = build(graph, "dot_general", lhs, rhs, origin=matmul.origin, **matmul.attrs)
        if bias is not None:
            added = graph.constant(bias[start:limit])
            last = (out.type.rank - 1,)
            names = parts.branch.result.node.origin if parts.branch.result.node else ()
            wide = build(graph, "broadcast", added, shape=out.shape, axes=last, origin=names)
            out = build(graph, "add", out, wide, origin=names)
        values[node.output] = out
