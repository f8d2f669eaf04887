"""Products with rounded operands: what `precision=` asks for, as an attribute of the primitives.

A dot_general or conv whose attribute `operands` names a dtype rounds both operands to it (to
nearest, ties to even) and multiplies and adds as if nothing had been rounded: products of two
bfloat16 numbers are exact in float32, and sums stay float32. Evaluating such a graph
(graph/evaluate.py) is the definition of what a plan of that precision computes.
"""

from __future__ import annotations

from fuser.dtypes import BY_NAME, DType, f32
from fuser.graph.ir import Graph, Node, Value

PRODUCTS = ("dot_general", "conv")


def operand_dtype(node: Node) -> DType:
    """What a product multiplies: the dtype that its operands are rounded to, else their own."""
    asked = node.attrs.get("operands")
    return BY_NAME[asked] if asked else node.inputs[0].dtype


def _rounds(node: Node) -> bool:
    """Whether a node is a product worth rounding: grouped convolutions have too few channels."""
    return node.op in PRODUCTS and node.inputs[0].dtype is f32 and node.attrs.get("groups", 1) == 1


def round_operands(graph: Graph, dtype: DType) -> Graph:
    """A copy in which every float32 product rounds its operands to `dtype`; grouped convolutions
    do not."""
    copy = Graph(graph.name, list(graph.inputs), [], [], list(graph.output_names), graph.source)
    copy._names = graph._names
    values: dict[Value, Value] = {value: value for value in graph.inputs}
    for node in graph.nodes:
        attrs = node.attrs
        if _rounds(node):
            attrs = {**attrs, "operands": dtype.name}
        clone = Node(node.op, tuple(values[v] for v in node.inputs), attrs, (), node.origin)
        clone.outputs = tuple(Value(v.type, v.name, clone, v.index) for v in node.outputs)
        copy.nodes.append(clone)
        values.update(zip(node.outputs, clone.outputs, strict=True))
    copy.outputs = [values[value] for value in graph.outputs]
    return copy
