"""Contractions with rounded operands or weights: what `precision=` asks for, in terms of the graph.

A dot_general or conv whose attribute `operands` names a dtype rounds both operands to it (to
nearest, ties to even) and multiplies and adds as if nothing had been rounded: products of two
bfloat16 numbers are exact in float32, and sums stay float32. Evaluating such a graph
(graph/evaluate.py) is the definition of what a plan of that precision computes.

Weights of 8 bits are a constant of whole numbers and a scale a column behind the matmul. The
attribute `stored` of the matmul says that its right operand fits a narrower dtype exactly, so that
kernels may read it as such; it does not change what the matmul means.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fuser.dtypes import DType, f32, i8
from fuser.graph.copying import begin_copy, clone_node, with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.families import CONTRACTIONS
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic

Numbers = tuple[np.ndarray, np.ndarray]
"""Whole numbers, as float32, and the scale of each column."""


LEAST_WEIGHTS = 1 << 12
"""Elements below which weights stay as they are: nothing waits for so few."""


LEAST_SCALE = 1e-30
"""Below it, sums of whole numbers may overflow where those of weights would not."""


def _rounds(node: Node) -> bool:
    """Whether a node is a contraction to round: grouped convolutions have too few channels."""
    return (
        node.op in CONTRACTIONS and node.inputs[0].dtype is f32 and node.attrs.get("groups", 1) == 1
    )


def round_operands(graph: Graph, dtype: DType) -> Graph:
    """A copy in which every float32 contraction rounds its operands to `dtype`; grouped
    convolutions do not."""
    copy, values = begin_copy(graph)
    for node in graph.nodes:
        attrs = {**node.attrs, "operands": dtype.name} if _rounds(node) else node.attrs
        clone_node(copy, node, values, attrs)
    copy.outputs = [values[value] for value in graph.outputs]
    return copy


def quantise_weights(graph: Graph) -> Graph:
    """A copy in which matmuls with constant matrices multiply by whole numbers of 8 bits, and
    scale each column of the result: symmetric, to nearest, the largest element of a column 127."""

    def parts(node: Node, weights: np.ndarray, contract: tuple[int, ...]) -> Numbers | None:
        return whole_numbers(weights, contract) if np.isfinite(weights).all() else None

    return _with_numbers(graph, parts)


def store_grids(graph: Graph, most_rows: int) -> Graph:
    """A copy in which matmuls of at most `most_rows` rows read weights that lie on a grid, as
    dequantised ones do, as the whole numbers of 8 bits that they are multiples by. Their time is
    that of reading weights."""

    def parts(node: Node, weights: np.ndarray, contract: tuple[int, ...]) -> Numbers | None:
        free = (n for axis, n in enumerate(weights.shape) if axis not in contract)
        size = node.output.type.size
        few = not is_symbolic(size) and size <= most_rows * math.prod(free)
        return grid(weights, contract) if few else None

    return _with_numbers(graph, parts)


def _with_numbers(
    graph: Graph, parts: Callable[[Node, np.ndarray, tuple[int, ...]], Numbers | None]
) -> Graph:
    """A copy in which constant matrices are the numbers and scales that `parts` finds for them."""
    found: dict[Node, Numbers] = {}
    for node in graph.nodes:
        weights = node.inputs[1].constant if node.op == "dot_general" else None
        if weights is not None and _quantises(node):
            pair = parts(node, weights, tuple(node.attrs["rhs_contract"]))
            if pair is not None:
                found[node] = pair
    return with_replaced(graph, found, _scaled_matmul)


def _scaled_matmul(graph: Graph, node: Node, values: dict[Value, Value], found: Numbers) -> Value:
    numbers, scale = found
    attrs = {**node.attrs, "stored": i8.name}
    operands = (values[node.inputs[0]], graph.constant(numbers))
    result = build(graph, "dot_general", *operands, origin=node.origin, **attrs)
    rank = result.type.rank
    wide = build(
        graph, "broadcast", graph.constant(scale), origin=node.origin, shape=result.shape,
        axes=tuple(range(rank - scale.ndim, rank)),
    )  # fmt: skip
    return build(graph, "mul", result, wide, origin=node.origin)


def whole_numbers(weights: np.ndarray, contract: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(whole numbers from -127 to 127, as float32; the scale of each column), weights being their
    product within half a scale. contract: the axes that a matmul sums over."""
    most = np.abs(weights).max(axis=contract, keepdims=True)
    scale = np.where(most > 0, most, 1).astype(np.float32) / np.float32(127)
    numbers = np.clip(np.rint(weights / scale), -127, 127).astype(np.float32)
    return numbers, scale.squeeze(contract)


def grid(weights: np.ndarray, contract: tuple[int, ...]) -> Numbers | None:
    """Whole numbers from -127 to 127 and a scale a column whose float32 products are exactly the
    weights, if there are any with the least element of the matrix or of each column as scale."""
    column = tuple(slice(None) if a in contract else slice(0, 1) for a in range(weights.ndim))
    if np.unique(np.abs(weights[column])).size > 128:
        return None  # as of nearly every matrix, and known from one column
    if not np.isfinite(weights).all():
        return None
    sizes = np.abs(weights)
    origin = tuple(slice(0, 1) for _ in range(weights.ndim))
    for axes in (tuple(range(weights.ndim)), contract):
        scale = sizes.min(axis=axes, keepdims=True, where=sizes > 0, initial=np.inf)
        scale = np.where(np.isfinite(scale), scale, np.float32(1))
        if _multiples(weights[column], scale[origin]) is None:
            continue
        numbers = _multiples(weights, scale)
        if numbers is not None:
            kept = [n for axis, n in enumerate(weights.shape) if axis not in contract]
            return numbers, np.array(np.broadcast_to(scale.squeeze(contract), kept))
    return None


def _multiples(weights: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """Whole numbers of 8 bits that times the scale are the weights."""
    if scale.min() < LEAST_SCALE:
        return None
    numbers = weights / scale
    np.rint(numbers, out=numbers)
    if max(numbers.max(), -numbers.min()) > 127:
        return None
    return numbers if np.array_equal(numbers * scale, weights) else None


def _quantises(node: Node) -> bool:
    weights = node.inputs[1]
    array = weights.constant
    return (
        weights.dtype is f32
        and "stored" not in node.attrs
        and not node.attrs["rhs_batch"]
        and weights.type.size >= LEAST_WEIGHTS
        and array is not None
    )
