"""Integer matmuls and convolutions of bytes as float32 ones, where float32 holds every sum.

    %p = dot_general %a, %w    # i32          %f = dot_general (cast %a), %w {exact = true}   # f32
                                        =>    %p = cast %f
%a are bytes less a zero point, at most 255 away from it, and %w constants: where 255 times the sum
of their sizes is below 2**24 in every column, so is every partial sum, and whole numbers below that
are float32 numbers. For processors whose float32 multiply-adds are several times as fast as those
of 32-bit integers. `exact`: no algorithm may compute other sums on the way (Winograd's does).
"""

from __future__ import annotations

import numpy as np

from fuser.dtypes import DType, f32, i32
from fuser.graph.copying import with_replaced
from fuser.graph.integer_matmuls import codes_of
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.families import CONTRACTIONS
from fuser.graph.ops.registry import build

FURTHEST = 255
"""How far a byte may be from its zero point."""
HELD = 1 << 24
"""Below it float32 holds every whole number."""


def to_exact_float_matmuls(graph: Graph) -> Graph:
    """A copy in which integer contractions that float32 computes exactly are float32 ones."""
    found = {node: node.inputs[1].constant for node in graph.nodes if _is_held(node)}
    return with_replaced(graph, found, _matmul)


def _matmul(
    graph: Graph, node: Node, values: dict[Value, Value], weights: np.ndarray | None
) -> Value:
    assert weights is not None
    left = build(graph, "cast", values[node.inputs[0]], origin=node.origin, dtype=f32)
    operands = left, graph.constant(weights.astype(np.float32))
    attrs = {**node.attrs, "exact": True}
    result = build(graph, node.op, *operands, origin=node.origin, **attrs)
    return build(graph, "cast", result, origin=node.origin, dtype=i32)


def _is_held(node: Node) -> bool:
    if node.op not in CONTRACTIONS or node.inputs[0].dtype is not i32 or "operands" in node.attrs:
        return False
    weights = node.inputs[1].constant
    if weights is None or not weights.size or node.attrs.get("rhs_batch"):
        return False
    left = codes_of(node.inputs[0])
    if left is None or left.scale is not None:
        return False
    if left.zero is not None and not _is_code(left.zero, left.codes.dtype):
        return False
    summed = range(1, weights.ndim) if node.op == "conv" else node.attrs["rhs_contract"]
    sizes = np.abs(weights.astype(np.int64)).sum(axis=tuple(summed))
    return bool(sizes.max() * FURTHEST < HELD)


def _is_code(zero: Value, dtype: DType) -> bool:
    """Whether a zero point is one of the codes, so that it is no further from them than they are
    from each other: a constant, or a cast of bytes."""
    if zero.constant is not None:
        inside = (zero.constant >= dtype.lowest) & (zero.constant <= dtype.highest)
        return bool(inside.all())
    node = zero.node
    while node is not None and node.op in ("reshape", "broadcast"):
        node = node.inputs[0].node
    return node is not None and node.op == "cast" and node.inputs[0].dtype is dtype
