"""Take tensors without elements out of a graph: no kernel has a space of nothing.

    %s = reduce_sum %x [3, 0] {axes = 1}      =>    %s = constant [0, 0, 0]
    %c = concat %x [0, 4], %y [2, 4]          =>    %c = concat %y
A node whose results are empty, or that reads nothing but empty tensors, is a constant. A scatter
without updates is its data.
"""

from __future__ import annotations

import numpy as np

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node
from fuser.graph.ops.registry import primitive
from fuser.partition.nodes import is_empty
from fuser.partition.passes.live import without_dead


def fold_empty(graph: Graph) -> Graph:
    """A graph in which empty tensors are constants, read only by what must see them."""
    if not any(is_empty(value) for value in graph.values()):
        return graph
    result, values = begin_copy(graph)
    for node in graph.nodes:
        if node.op == "constant" or not any(map(is_empty, (*node.inputs, *node.outputs))):
            clone_node(result, node, values)
        elif all(map(is_empty, node.outputs)) or _reads_nothing(node):
            for value, array in zip(node.outputs, _evaluate(node), strict=True):
                values[value] = result.constant(array, node.origin)
        elif node.op == "scatter":
            values[node.output] = values[node.inputs[0]]
        else:
            clone = clone_node(result, node, values)
            if node.op == "concat":
                clone.inputs = tuple(v for v in clone.inputs if not is_empty(v))
    result.outputs = [values[value] for value in graph.outputs]
    return without_dead(result)


def _reads_nothing(node: Node) -> bool:
    """Whether the results follow from the shapes: all operands empty, or a sum of no terms."""
    if node.op == "dot_general":
        return any(map(is_empty, node.inputs))
    return bool(node.inputs) and all(map(is_empty, node.inputs))


def _evaluate(node: Node) -> list[np.ndarray]:
    if all(map(is_empty, node.outputs)):
        return [np.zeros(value.shape, value.dtype.numpy) for value in node.outputs]
    operands = [np.zeros(value.shape, value.dtype.numpy) for value in node.inputs]
    return list(primitive(node.op).evaluate(operands, node.attrs))
