"""Rebuild a graph node by node: the frame of the passes that replace nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.primitive import Array

Rule: TypeAlias = "Callable[[Builder, Node, tuple[Value, ...]], Value | Sequence[Value] | None]"


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """A new graph in which `rule` may replace each node.

    rule(builder, node, operands) sees the node of the old graph and its operands in the new one,
    and returns values of the new graph, or None to keep the node. The origin of the node is set.
    """
    result = Graph(graph.name, source=graph.source)
    mapping: dict[Value, Value] = {
        value: result.add_input(value.name, value.type) for value in graph.inputs
    }
    builder = Builder(result)
    for node in graph.nodes:
        operands = tuple(mapping[value] for value in node.inputs)
        builder.origin = node.origin
        made = rule(builder, node, operands)
        if made is None:
            made = result.add(
                node.op, operands, [v.type for v in node.outputs], node.origin, **node.attrs
            ).outputs
        outputs = (made,) if isinstance(made, Value) else made
        mapping.update(zip(node.outputs, outputs, strict=True))
    result.outputs = [mapping[value] for value in graph.outputs]
    result.output_names = list(graph.output_names)
    return result


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
