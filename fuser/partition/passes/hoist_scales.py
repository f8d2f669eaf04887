"""Move scalar factors from the operands of a matmul behind it.

    %a = mul %q, 0.35
    %b = transpose(mul %k, 0.35)         %s = mul(dot_general(%q, transpose %k), 0.1225)
    %s = dot_general %a, %b        =>
Before the matmul a factor would be applied once per block that reads the operand, and would keep a
tensor core from reading memory as it is; after it, it is a free epilogue on the float32 sum. Of
float16 operands no sum in float32 overflows; of other types one might where the scaled one does
not, so those are left alone unless numerics are fast.
"""

from __future__ import annotations

import numpy as np

from fuser.dtypes import f16
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.partition.nodes import VIEW
from fuser.partition.passes.live import without_dead
from fuser.partition.softmax import behind


def hoist_scales(graph: Graph) -> Graph:
    """A graph in which no dot_general has a scalar multiple as an operand."""
    found = {
        node for node in graph.nodes
        if node.op == "dot_general" and any(map(_scaled, node.inputs)) and _may_hoist(graph, node)
    }  # fmt: skip
    if not found:
        return graph
    result, values = begin_copy(graph)
    for node in graph.nodes:
        if node in found:
            values[node.output] = _hoist(result, node, values)
        else:
            clone_node(result, node, values)
    result.outputs = [values[value] for value in graph.outputs]
    return without_dead(result)


def _may_hoist(graph: Graph, node: Node) -> bool:
    half = all(value.dtype is f16 for value in node.inputs)
    return graph.numerics.allows("order" if half else "fast")


def _hoist(graph: Graph, node: Node, values: dict[Value, Value]) -> Value:
    factor = 1.0
    operands: list[Value] = []
    origin = list(node.origin)
    for operand in node.inputs:
        found = _scaled(operand)
        if found is None:
            operands.append(values[operand])
            continue
        scaled, plain, scalar = found
        factor *= scalar
        origin += scaled.origin
        operands.append(_moved(graph, operand, scaled.output, values[plain]))
    dot = build(graph, "dot_general", *operands, origin=node.origin, **node.attrs)
    constant = graph.constant(np.asarray(factor, dot.dtype.numpy))
    names = tuple(dict.fromkeys(origin))
    if all(value.dtype is f16 for value in node.inputs):
        graph.note("hoist_half_scales", "order", names)
    else:
        graph.note("hoist_scales", "fast", names)
    wide = build(graph, "broadcast", constant, shape=dot.shape, axes=(), origin=names)
    return build(graph, "mul", dot, wide, origin=names)


def _scaled(value: Value) -> tuple[Node, Value, float] | None:
    """(the multiplication, its other operand, the factor) of a movement of x times a
    scalar constant."""
    node = behind(value, VIEW).node
    if node is None or node.op != "mul" or not node.output.dtype.is_float:
        return None
    for scale, plain in ((node.inputs[1], node.inputs[0]), (node.inputs[0], node.inputs[1])):
        array = behind(scale, VIEW).constant
        if array is not None and array.size == 1 and np.isfinite(np.float64(array.reshape(()))):
            return node, plain, float(array.reshape(()))
    return None


def _moved(graph: Graph, value: Value, start: Value, plain: Value) -> Value:
    """The chain of movement from `start` to `value`, applied to `plain` instead."""
    chain: list[Node] = []
    while value is not start:
        assert value.node is not None
        chain.append(value.node)
        value = value.node.inputs[0]
    table = {start: plain}
    for node in reversed(chain):
        clone_node(graph, node, table)
        table[node.output].name = graph.fresh()
    return table[chain[0].output] if chain else plain
