"""Variances of rows by sums that need no mean first: a loop can take them beside its matmul.

    %s = reduce_sum(%x)                       %p = the first element of each row of %x
    %m = mul(%s, 1 / k)                 =>    %e = sub(%x, broadcast %p)
    %d = sub(%x, broadcast %m)                %t = reduce_sum(%e);  %s = add(%t, mul(%p, k))
    %v = reduce_sum(mul(%d, %d))              %v = max(sub(reduce_sum(mul(%e, %e)), %t * %t / k), 0)
Sums of squares about an element of the row lose little: no element is further from the mean than
sqrt(k) deviations, so that both terms are at most k + 1 times the variance, and float32 leaves
k * 2^-24 of it at worst.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import same, same_shape
from fuser.partition.nodes import VIEW, reduce_axes
from fuser.partition.softmax import behind


@dataclass(frozen=True)
class Variance:
    """x: float32 [..., k]. total: the sum of its rows. squares: that of squares about the mean."""

    x: Value
    total: Node
    squares: Node


def match_variance(squares: Node) -> Variance | None:
    """The variance that a sum of squares is, if it is one along the last axis."""
    product = squares.inputs[0].node
    if product is None or product.op != "mul" or product.inputs[0] is not product.inputs[1]:
        return None
    centred = product.inputs[0].node
    if centred is None or centred.op != "sub":
        return None
    x, mean = centred.inputs
    scaled = behind(mean, VIEW).node
    if scaled is None or scaled.op not in ("mul", "div"):
        return None
    for row, factor in (scaled.inputs, scaled.inputs[::-1]):
        total, number = behind(row, VIEW).node, behind(factor, VIEW).constant
        if total is None or total.op != "reduce_sum" or total.inputs[0] is not x:
            continue
        last = (x.type.rank - 1,)
        if reduce_axes(total) != last or reduce_axes(squares) != last or number is None:
            continue
        if number.size != 1 or (scaled.op == "div" and row is not scaled.inputs[0]):
            continue
        count = float(number.reshape(())) ** (-1 if scaled.op == "mul" else 1)
        if not np.isclose(count, float(x.shape[-1]), rtol=1e-6) or not _stands_for_rows(mean, x):
            continue
        return Variance(x, total, squares)
    return None


def _stands_for_rows(mean: Value, x: Value) -> bool:
    """Whether a value is one number a row of x, along all of the row."""
    node = mean.node
    if node is None or node.op != "broadcast" or not same_shape(mean.shape, x.shape):
        return False
    source, last = node.inputs[0], x.type.rank - 1
    ends = dict(zip(node.attrs["axes"], source.shape, strict=True))
    leading = all(same(ends.get(axis, 1), x.shape[axis]) for axis in range(last))
    return leading and same(ends.get(last, 1), 1)


def sums_about_first(
    graph: Graph, variance: Variance, values: dict[Value, Value]
) -> tuple[Value, Value]:
    """(the sum of each row, the sum of squares about its mean), built in a copy of the graph."""
    x, names = values[variance.x], variance.squares.origin
    shape, k = x.shape, float(x.shape[-1])
    rows = shape[:-1]
    axes = tuple(range(len(rows)))

    def number(value: float) -> Value:
        constant = graph.constant(np.asarray(value, x.dtype.numpy))
        return build(graph, "broadcast", constant, origin=names, shape=rows, axes=())

    def op(name: str, *operands: Value) -> Value:
        return build(graph, name, *operands, origin=names)

    first = build(
        graph, "slice", x, origin=names, starts=(0,) * len(shape), limits=(*rows, 1),
        strides=(1,) * len(shape),
    )  # fmt: skip
    first = build(graph, "reshape", first, origin=names, shape=rows)
    wide = build(graph, "broadcast", first, origin=names, shape=shape, axes=axes)
    off = op("sub", x, wide)
    part = build(graph, "reduce_sum", off, origin=names, axes=(len(rows),))
    squares = build(graph, "reduce_sum", op("mul", off, off), origin=names, axes=(len(rows),))
    total = op("add", part, op("mul", first, number(k)))
    about = op("sub", squares, op("mul", op("mul", part, part), number(1 / k)))
    return total, op("max", about, number(0.0))
