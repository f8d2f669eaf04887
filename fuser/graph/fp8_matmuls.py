"""Matmuls of 8-bit floats by their codes, for GPUs whose tensor cores multiply those.

    %x = cast(mul(gather(table, cast %a), %s))
    %w = dequantize(codes, t) {f8e4m3fn}          %p = dot_general %a, codes {codes = f8e4m3fn}
    %y = dot_general %x, %w : f16          =>     %y = cast(mul(mul(%p, %s), t)) : f16
where s and t are one number each. Only matmuls with weights whose result has 16 bits: roundings of
the scaled operands are left out, and what the unit loses of a sum
(fuser/backend/nvptx/layouts/mma_units.py) is below the rounding of the result; float32 matmuls stay
as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuser.dtypes import BY_NAME, f32, u8
from fuser.graph.copying import with_replaced
from fuser.graph.integer_matmuls import number_of
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build

CODES = ("f8e4m3fn", "f8e5m2")
MOVES = ("reshape", "transpose", "slice")
RESULTS = ("f16", "bf16")


@dataclass(frozen=True)
class Decoded:
    """What an operand is: codes of a dtype, moved by `chain` (last first), times `factors`, values
    of one element."""

    codes: Value
    dtype: str
    factors: tuple[Value, ...]
    chain: tuple[Node, ...]


def to_fp8_matmuls(graph: Graph) -> Graph:
    """A copy in which matmuls of decoded 8-bit floats with such weights multiply the codes."""
    found: dict[Node, tuple[Decoded, Decoded]] = {}
    for node in graph.nodes:
        if node.op == "dot_general" and node.output.dtype.name in RESULTS:
            left, right = (_decoded(value) for value in node.inputs)
            if left is None or right is None or left.dtype != right.dtype:
                continue
            if left.codes.constant is not None or right.codes.constant is not None:
                found[node] = left, right
    return with_replaced(graph, found, _matmul)


def _decoded(value: Value) -> Decoded | None:
    """How a value is made of codes, if it is."""
    chain: list[Node] = []
    factors: list[Value] = []
    while (node := value.node) is not None:
        if node.op in MOVES:
            chain.append(node)
        elif node.op == "mul":
            single = [number_of(operand) for operand in node.inputs]
            side = 1 if single[1] is not None else 0
            factor = single[side]
            if factor is None:
                return None
            factors.append(factor)
            value = node.inputs[1 - side]
            continue
        elif node.op == "dequantize":
            return _weights(node, factors, chain)
        elif node.op == "gather":
            return _looked_up(node, factors, chain)
        elif node.op != "cast" or not node.inputs[0].dtype.is_float:
            return None
        value = node.inputs[0]
    return None


def _weights(node: Node, factors: list[Value], chain: list[Node]) -> Decoded | None:
    numbers = node.attrs["numbers"]
    plain = len(node.inputs) == 2 and node.inputs[1].type.size == 1
    if numbers not in CODES or not plain or node.inputs[0].dtype is not u8:
        return None
    return Decoded(node.inputs[0], numbers, (*factors, node.inputs[1]), tuple(chain))


def _looked_up(node: Node, factors: list[Value], chain: list[Node]) -> Decoded | None:
    table, index = node.inputs[0].constant, node.inputs[1].node
    if table is None or table.shape != (256,) or node.attrs["axis"] != 0:
        return None
    if index is None or index.op != "cast" or index.inputs[0].dtype is not u8:
        return None
    for name in CODES:
        numbers = np.arange(256, dtype=np.uint8).view(BY_NAME[name].numpy).astype(np.float32)
        if np.array_equal(table, numbers, equal_nan=True):
            return Decoded(index.inputs[0], name, tuple(factors), tuple(chain))
    return None


def _matmul(
    graph: Graph, node: Node, values: dict[Value, Value], operands: tuple[Decoded, Decoded]
) -> Value:
    origin, moved = node.origin, []
    for operand in operands:
        value = values[operand.codes]
        for move in reversed(operand.chain):
            value = build(graph, move.op, value, origin=move.origin, **move.attrs)
        moved.append(value)
    attrs = {**node.attrs, "codes": operands[0].dtype}
    result = build(graph, "dot_general", *moved, origin=origin, **attrs)
    for factor in (*operands[0].factors, *operands[1].factors):
        one = values[factor]
        if one.shape:
            one = build(graph, "reshape", one, origin=origin, shape=())
        if one.dtype is not f32:
            one = build(graph, "cast", one, origin=origin, dtype=f32)
        wide = build(graph, "broadcast", one, origin=origin, shape=result.shape, axes=())
        result = build(graph, "mul", result, wide, origin=origin)
    return build(graph, "cast", result, origin=origin, dtype=node.output.dtype)
