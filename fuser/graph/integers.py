"""Integer products of 8-bit numbers, in the form that instructions for them take.

    %a = sub(cast %x, %zero)              %a = sub(cast %x, 128)
    %y = dot_general %a, %w        =>     %p = dot_general %a, %w {operands = i8}
                                          %y = add(%p, mul(128 - %zero, sum of the columns of %w))
%x is u8 (or i8, which needs no 128), %zero one number, and %w constant. In int32 both sides are
equal whatever the numbers are, since sums wrap around.
"""

from __future__ import annotations

import numpy as np

from fuser.dtypes import i8, i32, u8
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build

SHIFT = 128
"""What makes an unsigned byte a signed one."""


def narrow_products(graph: Graph) -> Graph:
    """A copy in which products of 8-bit numbers with constants multiply them as i8."""
    found = {node: parts for node in graph.nodes if (parts := _parts(node)) is not None}
    if not found:
        return graph
    copy = Graph(graph.name, list(graph.inputs), [], [], list(graph.output_names), graph.source)
    copy._names = graph._names
    values: dict[Value, Value] = {value: value for value in graph.inputs}
    for node in graph.nodes:
        if node in found:
            codes, zero = found[node]
            values[node.output] = _product(copy, node, values, codes, zero)
            continue
        clone = Node(node.op, tuple(values[v] for v in node.inputs), node.attrs, (), node.origin)
        clone.outputs = tuple(Value(v.type, v.name, clone, v.index) for v in node.outputs)
        copy.nodes.append(clone)
        values.update(zip(node.outputs, clone.outputs, strict=True))
    copy.outputs = [values[value] for value in graph.outputs]
    return copy


def _parts(node: Node) -> tuple[Value, Value | None] | None:
    """(8-bit codes, their zero point if they have one) of the left operand of such a product."""
    if node.op != "dot_general" or node.inputs[0].dtype is not i32 or node.attrs["rhs_batch"]:
        return None
    weights = node.inputs[1].constant
    if weights is None or not weights.size or weights.min() < -SHIFT or weights.max() >= SHIFT:
        return None
    made, zero = node.inputs[0].node, None
    if made is not None and made.op == "sub":
        zero = _number(made.inputs[1])
        if zero is None:
            return None
        made = made.inputs[0].node
    if made is None or made.op != "cast" or made.inputs[0].dtype not in (i8, u8):
        return None
    return made.inputs[0], zero


def _number(value: Value) -> Value | None:
    """The one element that a tensor repeats."""
    while value.type.size != 1:
        node = value.node
        if node is None or node.op not in ("broadcast", "reshape"):
            return None
        value = node.inputs[0]
    return value


def _product(
    graph: Graph, node: Node, values: dict[Value, Value], codes: Value, zero: Value | None
) -> Value:
    origin, shift = node.origin, SHIFT if codes.dtype is u8 else 0

    def spread(value: Value, shape: tuple[int, ...], axes: tuple[int, ...] = ()) -> Value:
        return build(graph, "broadcast", value, origin=origin, shape=shape, axes=axes)

    def number(n: int) -> Value:
        return graph.constant(np.asarray(n, np.int32))

    left = build(graph, "cast", values[codes], origin=origin, dtype=i32)
    if shift:
        left = build(graph, "sub", left, spread(number(shift), left.shape), origin=origin)
    weights = node.inputs[1].constant
    assert weights is not None
    attrs = {**node.attrs, "operands": i8.name}
    product = build(graph, "dot_general", left, values[node.inputs[1]], origin=origin, **attrs)
    if not shift and zero is None:
        return product
    offset = number(shift)
    if zero is not None:
        flat = build(graph, "reshape", values[zero], origin=origin, shape=())
        offset = build(graph, "sub", offset, flat, origin=origin)
    sums = weights.sum(axis=tuple(node.attrs["rhs_contract"]), dtype=np.int32)
    rank = product.type.rank
    columns = spread(graph.constant(sums), product.shape, tuple(range(rank - sums.ndim, rank)))
    moved = build(graph, "mul", columns, spread(offset, product.shape), origin=origin)
    return build(graph, "add", product, moved, origin=origin)
