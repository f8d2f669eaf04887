"""Float matmuls and convolutions of dequantised operands as integer ones, scaled once.

    %a = mul(sub(cast %x, %zero), %scale)         %i = sub(cast %x, %zero)         # i32
    %w = dequantize(%codes, %scales)       =>     %p = dot_general %i, %numbers    # i32, exact
    %y = dot_general %a, %w                       %y = mul(cast %p, %scale * %scales)
%x are bytes with one scale and one zero point, and weights have a scale a column (a channel of a
convolution). The sum of whole numbers is exact where the float one rounds at every term, so the
result is at least as near to the real one; it is not the same in its last bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from fuser.dtypes import f32, i8, i32, u8
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.quantised import decode
from fuser.graph.ops.registry import build

MOST = (1 << 31) - 1
"""What a sum may reach: int32 must hold it."""

MOVES = frozenset(("reshape", "transpose"))


@dataclass(frozen=True)
class Codes:
    """Bytes that stand for (codes - zero) * scale, moved by `chain` (its last node first)."""

    codes: Value
    zero: Value | None
    scale: Value | None
    chain: tuple[Node, ...]


@dataclass(frozen=True)
class _Weights:
    """numbers: whole, i32, in the shape of the operand. scale: one number, or one a column."""

    numbers: Array
    scale: Array


def to_integer_matmuls(graph: Graph, ops: tuple[str, ...]) -> Graph:
    """A copy in which contractions of dequantised bytes with quantised weights are integer ones.
    ops: which contractions, dot_general and conv."""
    found: dict[Node, tuple[Codes, _Weights]] = {}
    for node in graph.nodes:
        if node.op in ops and node.inputs[0].dtype is f32:
            weights = _weights(node)
            left = codes_of(node.inputs[0]) if weights is not None else None
            if left is not None and weights is not None and left.scale is not None:
                found[node] = left, weights
    return with_replaced(graph, found, _matmul)


def codes_of(value: Value) -> Codes | None:
    """The bytes that a float value is made of, with one zero point and one scale."""
    chain: list[Node] = []
    node = value.node
    while node is not None and node.op in MOVES:
        chain.append(node)
        node = node.inputs[0].node
    scale, zero = None, None
    if node is not None and node.op == "mul":
        scale = number_of(node.inputs[1])
        if scale is None:
            return None
        node = node.inputs[0].node
    if node is not None and node.op == "sub":
        zero = number_of(node.inputs[1])
        if zero is None or not _is_whole(zero):
            return None
        node = node.inputs[0].node
    if node is None or node.op != "cast" or node.inputs[0].dtype not in (i8, u8):
        return None
    return Codes(node.inputs[0], zero, scale, tuple(chain))


def number_of(value: Value) -> Value | None:
    """The one element that a tensor repeats."""
    while value.type.size != 1:
        node = value.node
        if node is None or node.op not in ("broadcast", "reshape"):
            return None
        value = node.inputs[0]
    return value


def _is_whole(number: Value) -> bool:
    """Whether a number is an integer, by its dtype, its value or the cast that made it."""
    if number.dtype.is_integer:
        return True
    array = number.constant
    if array is not None:
        return bool(np.abs(array).max() < 1 << 15 and (np.rint(array) == array).all())
    node = number.node
    while node is not None and node.op in ("reshape", "broadcast"):
        node = node.inputs[0].node
    return node is not None and node.op == "cast" and node.inputs[0].dtype in (i8, u8)


def _weights(node: Node) -> _Weights | None:
    """Weights of whole numbers that fit 8 bits, scaled by column, whose sums int32 holds."""
    right = node.inputs[1].node
    if (
        right is None
        or right.op != "dequantize"
        or not right.attrs["numbers"].startswith(("i", "u"))
    ):
        return None
    shape, blocks = node.inputs[1].type.static_shape, right.attrs["blocks"]
    if node.op == "conv":
        summed: tuple[int, ...] = tuple(range(1, len(shape)))
    elif node.attrs["rhs_batch"]:
        return None
    else:
        summed = tuple(node.attrs["rhs_contract"])
    if any(blocks[axis] != shape[axis] for axis in summed):
        return None
    free = tuple(axis for axis in range(len(shape)) if axis not in summed)
    if any(blocks[axis] not in (1, shape[axis]) for axis in free):
        return None
    codes, scale, *zeros = (value.constant for value in right.inputs)
    assert codes is not None and scale is not None
    numbers = decode(codes, right.attrs["numbers"])
    for zero in zeros:
        assert zero is not None
        if not np.array_equal(np.rint(zero), zero):
            return None
        numbers = numbers - zero
    if numbers.min() < -128 or numbers.max() > 127:
        return None
    if prod(shape[axis] for axis in summed) * 255 * 128 > MOST:
        return None
    wide = [1 if axis in summed else dim for axis, dim in enumerate(shape)]
    columns = np.broadcast_to(scale, wide)
    return _Weights(numbers.astype(np.int32), np.array(columns.squeeze(summed)))


def centred(
    graph: Graph, left: Codes, values: dict[Value, Value], origin: tuple[str, ...]
) -> Value:
    """The codes less their zero point, i32, where the chain takes them."""
    result = build(graph, "cast", values[left.codes], origin=origin, dtype=i32)
    if left.zero is not None:
        zero = _whole(graph, left.zero, values, origin)
        wide = build(graph, "broadcast", zero, origin=origin, shape=result.shape, axes=())
        result = build(graph, "sub", result, wide, origin=origin)
    for node in reversed(left.chain):
        result = build(graph, node.op, result, origin=node.origin, **node.attrs)
    return result


def _whole(graph: Graph, zero: Value, values: dict[Value, Value], origin: tuple[str, ...]) -> Value:
    """A zero point as one i32."""
    if zero.constant is not None:
        return graph.constant(zero.constant.reshape(()).astype(np.int32))
    flat = build(graph, "reshape", values[zero], origin=origin, shape=())
    return flat if flat.dtype is i32 else build(graph, "cast", flat, origin=origin, dtype=i32)


def _matmul(
    graph: Graph, node: Node, values: dict[Value, Value], found: tuple[Codes, _Weights]
) -> Value:
    (left, weights), origin = found, node.origin
    operands = centred(graph, left, values, origin), graph.constant(weights.numbers)
    result = build(graph, node.op, *operands, origin=origin, **node.attrs)
    real = build(graph, "cast", result, origin=origin, dtype=f32)
    scale = weights.scale
    assert left.scale is not None
    rank = real.type.rank
    axes: tuple[int, ...] = (1,)
    if node.op != "conv":
        axes = tuple(range(rank - scale.ndim, rank))
    factors = [(values[left.scale], ()), (graph.constant(scale), axes)]
    if left.scale.constant is not None:
        both = np.asarray(scale * left.scale.constant.reshape(()), np.float32)
        if np.isfinite(both).all():
            factors = [(graph.constant(both), axes)]
    for factor, where in factors:
        if not where and factor.type.rank:
            factor = build(graph, "reshape", factor, origin=origin, shape=())
        wide = build(graph, "broadcast", factor, origin=origin, shape=real.shape, axes=where)
        real = build(graph, "mul", real, wide, origin=origin)
    return real


__all__ = ["Codes", "centred", "codes_of", "number_of", "to_integer_matmuls"]
