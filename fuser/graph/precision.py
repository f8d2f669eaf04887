"""Products with rounded operands or weights: what `precision=` asks for, in terms of the graph.

A dot_general or conv whose attribute `operands` names a dtype rounds both operands to it (to
nearest, ties to even) and multiplies and adds as if nothing had been rounded: products of two
bfloat16 numbers are exact in float32, and sums stay float32. Evaluating such a graph
(graph/evaluate.py) is the definition of what a plan of that precision computes.

Weights of 8 bits are a constant of whole numbers and a scale a column behind the product. The
attribute `stored` of the product says that its right operand fits a narrower dtype exactly, so that
kernels may read it as such; it does not change what the product means.
"""

from __future__ import annotations

import numpy as np

from fuser.dtypes import BY_NAME, DType, f32, i8
from fuser.graph.ir import Attrs, Graph, Node, Value
from fuser.graph.ops.registry import build

PRODUCTS = ("dot_general", "conv")


LEAST_WEIGHTS = 1 << 12
"""Elements below which weights stay as they are: nothing waits for so few."""


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
    copy, values = _copy_of(graph)
    for node in graph.nodes:
        attrs = {**node.attrs, "operands": dtype.name} if _rounds(node) else node.attrs
        _clone(copy, node, attrs, values)
    copy.outputs = [values[value] for value in graph.outputs]
    return copy


def quantise_weights(graph: Graph) -> Graph:
    """A copy in which products with constant matrices multiply by whole numbers of 8 bits, and
    scale each column of the result: symmetric, to nearest, the largest element of a column 127."""
    copy, values = _copy_of(graph)
    for node in graph.nodes:
        weights = node.inputs[1].constant if node.op == "dot_general" else None
        if weights is None or not _quantises(node):
            _clone(copy, node, node.attrs, values)
            continue
        numbers, scale = whole_numbers(weights, tuple(node.attrs["rhs_contract"]))
        attrs = {**node.attrs, "stored": i8.name}
        operands = (values[node.inputs[0]], copy.constant(numbers))
        product = build(copy, "dot_general", *operands, origin=node.origin, **attrs)
        rank = product.type.rank
        wide = build(
            copy, "broadcast", copy.constant(scale), origin=node.origin, shape=product.shape,
            axes=tuple(range(rank - scale.ndim, rank)),
        )  # fmt: skip
        values[node.output] = build(copy, "mul", product, wide, origin=node.origin)
    copy.outputs = [values[value] for value in graph.outputs]
    return copy


def whole_numbers(
    weights: np.ndarray, contract: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(whole numbers from -127 to 127, as float32; the scale of each column), weights being their
    product within half a scale. contract: the axes that a product sums over."""
    most = np.abs(weights).max(axis=contract, keepdims=True)
    scale = np.where(most > 0, most, 1).astype(np.float32) / np.float32(127)
    numbers = np.clip(np.rint(weights / scale), -127, 127).astype(np.float32)
    return numbers, scale.squeeze(contract)


def _quantises(node: Node) -> bool:
    weights = node.inputs[1]
    array = weights.constant
    return (
        weights.dtype is f32
        and not node.attrs["rhs_batch"]
        and weights.type.size >= LEAST_WEIGHTS
        and array is not None
        and bool(np.isfinite(array).all())
    )


def _copy_of(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    copy = Graph(graph.name, list(graph.inputs), [], [], list(graph.output_names), graph.source)
    copy._names = graph._names
    return copy, {value: value for value in graph.inputs}


def _clone(graph: Graph, node: Node, attrs: Attrs, values: dict[Value, Value]) -> None:
    clone = Node(node.op, tuple(values[v] for v in node.inputs), dict(attrs), (), node.origin)
    clone.outputs = tuple(Value(v.type, v.name, clone, v.index) for v in node.outputs)
    graph.nodes.append(clone)
    values.update(zip(node.outputs, clone.outputs, strict=True))
