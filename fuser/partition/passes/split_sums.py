"""Sums over rows that lie apart, of few columns: in two steps, so that there are blocks enough.

    %s = reduce_sum %x [8, 512, 768] {axes = 0, 1}
 =>
    %p = reduce_sum (reshape %x [8, 4, 128, 768]) {axes = 2}       a block sums a part of the rows
    %s = reduce_sum %p [8, 4, 768] {axes = 0, 1}
A block of a GPU sums whole columns, some side by side; the gradients of a norm's weights and the
statistics of a batch have as few as one block then. Parts are sums of float32. Rows that are summed
along themselves, as those of softmax and the norms are, stay as they are.
"""

from __future__ import annotations

from math import prod

from fuser.base.target import Target
from fuser.dtypes import f32
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic
from fuser.partition.nodes import reduce_axes

COLUMNS = 64
"""Columns that a block sums side by side."""
BLOCKS = 4
"""Blocks for each multiprocessor that parts are made for."""
FROM = 1 << 18
"""Elements from which on another kernel pays (some 2 us on an H200)."""
ROWS = 32
"""Rows that a part has at least."""


def split_sums(graph: Graph, target: Target) -> Graph:
    """A graph in which large sums have parts for all multiprocessors."""
    parts = {node: found for node in graph.nodes if (found := _parts(node, target))}

    def make(copy: Graph, node: Node, values: dict[Value, Value], found: dict[int, int]) -> Value:
        return _split(copy, node, values[node.inputs[0]], found)

    return with_replaced(graph, parts, make)


def _parts(node: Node, target: Target) -> dict[int, int]:
    """Into how many parts each summed axis is cut; empty where the sum stays as it is."""
    if node.op != "reduce_sum" or not node.output.dtype.is_float:
        return {}
    shape, axes = node.inputs[0].shape, reduce_axes(node)
    if is_symbolic(*shape) or prod(shape) < FROM:
        return {}
    kept = [axis for axis, size in enumerate(shape) if axis not in axes and size > 1]
    if not kept or not axes or axes[0] > kept[-1]:
        return {}
    blocks = -(-prod(shape[axis] for axis in kept) // COLUMNS)
    wanted = min(BLOCKS * target.units // blocks, prod(shape[axis] for axis in axes) // ROWS)
    found: dict[int, int] = {}
    if blocks >= target.units:
        return found
    for axis in axes:
        count = max(n for n in range(1, max(wanted, 1) + 1) if shape[axis] % n == 0)
        if count > 1:
            found[axis] = count
            wanted //= count
    return found


def _split(graph: Graph, node: Node, x: Value, parts: dict[int, int]) -> Value:
    dtype, axes = x.dtype, reduce_axes(node)
    if dtype.bits < 32:
        x = build(graph, "cast", x, dtype=f32, origin=node.origin)
    shape: list[int] = []
    summed, left, place = [], [], 0  # axes of the shape, and of what the first sum gives
    for axis, size in enumerate(x.shape):
        if axis in parts:
            left.append(place)
            shape += [parts[axis], size // parts[axis]]
            summed.append(len(shape) - 1)
            place += 1
        else:
            shape.append(size)
            if axis in axes:
                summed.append(len(shape) - 1)
            else:
                place += 1
    apart = build(graph, "reshape", x, shape=tuple(shape), origin=node.origin)
    found = build(graph, "reduce_sum", apart, axes=tuple(summed), origin=node.origin)
    found = build(graph, "reduce_sum", found, axes=tuple(left), origin=node.origin)
    if dtype.bits < 32:
        found = build(graph, "cast", found, dtype=dtype, origin=node.origin)
    return found
