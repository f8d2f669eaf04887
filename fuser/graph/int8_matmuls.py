"""Integer matmuls and convolutions of 8-bit numbers, in the form that dot instructions take.

    %a = sub(cast %x, %zero)              %a = sub(cast %x, 128)
    %y = dot_general %a, %w        =>     %p = dot_general %a, %w {operands = i8}
                                          %y = add(%p, mul(128 - %zero, sum of the columns of %w))
%x is u8 (or i8, which needs no 128), %zero one number, and %w constant. In int32 both sides are
equal whatever the numbers are, since sums wrap around. A convolution pads with what stands for the
zero point: its `fill`.
"""

from __future__ import annotations

import numpy as np

from fuser.dtypes import i8, i32, u8
from fuser.graph.copying import with_replaced
from fuser.graph.integer_matmuls import Codes, codes_of
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.families import CONTRACTIONS
from fuser.graph.ops.registry import build

SHIFT = 128
"""What makes an unsigned byte a signed one."""


def to_int8_matmuls(graph: Graph, ops: tuple[str, ...] = CONTRACTIONS) -> Graph:
    """A copy in which contractions of 8-bit numbers with constants multiply them as i8. ops: which
    contractions, dot_general and conv."""
    found = {
        node: parts
        for node in graph.nodes
        if node.op in ops and (parts := _parts(node)) is not None
    }
    return with_replaced(graph, found, _matmul)


def _parts(node: Node) -> Codes | None:
    """The 8-bit codes, less one zero point, that such a contraction has on its left."""
    if node.inputs[0].dtype is not i32 or node.attrs.get("rhs_batch"):
        return None
    if node.attrs.get("groups", 1) != 1 or "operands" in node.attrs:
        return None
    weights = node.inputs[1].constant
    if weights is None or not weights.size or weights.min() < -SHIFT or weights.max() >= SHIFT:
        return None
    left = codes_of(node.inputs[0])
    if left is None or left.scale is not None:
        return None
    pads = node.op == "conv" and any(map(any, node.attrs["padding"]))
    if pads and left.zero is not None and left.zero.constant is None:
        return None  # what the padding is would be known only when it runs
    return left


def _matmul(graph: Graph, node: Node, values: dict[Value, Value], codes: Codes) -> Value:
    origin, shift = node.origin, SHIFT if codes.codes.dtype is u8 else 0

    def spread(value: Value, shape: tuple[int, ...], axes: tuple[int, ...] = ()) -> Value:
        return build(graph, "broadcast", value, origin=origin, shape=shape, axes=axes)

    def number(n: int) -> Value:
        return graph.constant(np.asarray(n, np.int32))

    left = build(graph, "cast", values[codes.codes], origin=origin, dtype=i32)
    if shift:
        left = build(graph, "sub", left, spread(number(shift), left.shape), origin=origin)
    for move in reversed(codes.chain):
        left = build(graph, move.op, left, origin=move.origin, **move.attrs)
    weights = node.inputs[1].constant
    assert weights is not None
    attrs = {**node.attrs, "operands": i8.name}
    known = codes.zero.constant if codes.zero is not None else np.zeros((), np.int32)
    fill = int(known.reshape(())) - shift if known is not None else 0
    if node.op == "conv" and fill:
        attrs["fill"] = fill
    result = build(graph, node.op, left, values[node.inputs[1]], origin=origin, **attrs)
    if known is not None:
        if not fill:
            return result
    conv, rank = node.op == "conv", result.type.rank
    summed = range(1, weights.ndim) if conv else node.attrs["rhs_contract"]
    sums = weights.sum(axis=tuple(summed), dtype=np.int32)
    axes = (1,) if conv else tuple(range(rank - sums.ndim, rank))
    if known is not None:
        moved = spread(graph.constant(sums * np.int32(-fill)), result.shape, axes)
    else:
        assert codes.zero is not None
        zero = build(graph, "reshape", values[codes.zero], origin=origin, shape=())
        if zero.dtype is not i32:
            zero = build(graph, "cast", zero, origin=origin, dtype=i32)
        offset = build(graph, "sub", number(shift), zero, origin=origin)
        columns = spread(graph.constant(sums), result.shape, axes)
        moved = build(graph, "mul", columns, spread(offset, result.shape), origin=origin)
    return build(graph, "add", result, moved, origin=origin)
