"""Change a graph node by node: the frame of the passes that replace nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.primitive import Array

Rule: TypeAlias = "Callable[[Builder, Node, tuple[Value, ...]], Value | Sequence[Value] | None]"


def rewrite(graph: Graph, rule: Rule, ops: Container[str] | None = None) -> Graph:
    """The graph, changed in place, after `rule` may have replaced each node.

    rule(builder, node, operands) sees the node as it was and what its operands have become, and
    returns values, or None to keep the node: then the node itself stays, and reads these operands.
    Its values stay what they are, so that tables of values hold for what is kept. The origin of the
    node is set. ops: the primitives that the rule is asked about; all without it.
    """
    nodes, graph.nodes = graph.nodes, []
    replaced: dict[Value, Value] = {}
    builder = Builder(graph)
    for node in nodes:
        operands = node.inputs
        if replaced and not replaced.keys().isdisjoint(operands):
            operands = tuple([replaced.get(value, value) for value in operands])
        made = None
        if ops is None or node.op in ops:
            builder.origin = node.origin
            made = rule(builder, node, operands)
        if made is None:
            node.inputs = operands
            graph.nodes.append(node)
        else:
            outputs = (made,) if isinstance(made, Value) else made
            replaced.update(zip(node.outputs, outputs, strict=True))
    graph.outputs = [replaced.get(value, value) for value in graph.outputs]
    return graph


def join_origins(*nodes: Node | None) -> tuple[str, ...]:
    """The ONNX nodes that several nodes came from, each once."""
    return tuple(dict.fromkeys(name for node in nodes if node for name in node.origin))


def producer(value: Value, op: str) -> Node | None:
    """The node that makes value, if it is an `op`."""
    return value.node if value.node is not None and value.node.op == op else None


def stretched_constant(value: Value) -> tuple[Array, tuple[int, ...]] | None:
    """(array, axes) of a constant, or of one behind a broadcast; axes are where its axes went."""
    if value.constant is not None:
        return value.constant, tuple(range(value.constant.ndim))
    node = producer(value, "broadcast")
    if node is not None and node.inputs[0].constant is not None:
        return node.inputs[0].constant, tuple(node.attrs["axes"])
    return None


def uniform(value: Value) -> Array | None:
    """The rank-0 element of a constant whose elements are all the same, else None."""
    found = stretched_constant(value)
    if found is None or found[0].size == 0:
        return None
    flat = found[0].reshape(-1)
    first = flat[:1].tobytes()
    # Bytes, so that nan counts as equal to itself and 0.0 differs from -0.0.
    if flat.size > 1 and (flat[-1:].tobytes() != first or flat.tobytes() != first * flat.size):
        return None
    return np.asarray(flat[0])
