"""Matmuls of few tiles and very long sums, in parts: the gradients of the weights of convolutions.

    %w = dot_general %g [64, 32, 56, 56], %x [64, 48, 56, 56] {over 64, 56, 56}
 =>
    %p = dot_general %g, %x {for each of 64, over 56, 56}          [64, 32, 48] of float32
    %w = reduce_sum %p {axes = 0}
The blocks of a GPU are one a tile, or a cluster a tile: too few for all multiprocessors here.
"""

from __future__ import annotations

from math import prod

from fuser.base.target import Target
from fuser.dtypes import f32
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic

TILE = 64
"""Rows and columns of a tile where there are few."""
CLUSTER = 8
"""Blocks that share a tile without this."""
DEPTH = 1024
"""What a part sums at least."""


def split_contractions(graph: Graph, target: Target) -> Graph:
    """A graph in which such matmuls have parts for all multiprocessors."""
    parts = {node: found for node in graph.nodes if (found := _parts(node, target))}

    def make(copy: Graph, node: Node, values: dict[Value, Value], found: dict[int, int]) -> Value:
        return _split(copy, node, [values[value] for value in node.inputs], found)

    return with_replaced(graph, parts, make)


def _parts(node: Node, target: Target) -> dict[int, int]:
    """Into how many parts the summed axes are cut, by their number; empty: the matmul stays."""
    if node.op != "dot_general" or node.attrs["lhs_batch"] or "operands" in node.attrs:
        return {}
    x, y = node.inputs
    if is_symbolic(*x.shape, *y.shape) or any(
        v.dtype.bits != 16 or not v.dtype.is_float or v.constant is not None for v in (x, y)
    ):
        return {}
    summed = [x.shape[axis] for axis in node.attrs["lhs_contract"]]
    depth = prod(summed)
    tiles = prod(-(-prod(value.shape) // max(depth, 1) // TILE) for value in (x, y))
    if not tiles or tiles * CLUSTER >= target.units:
        return {}
    wanted = min(2 * target.units // tiles, depth // DEPTH)
    found: dict[int, int] = {}
    for number, size in enumerate(summed):
        count = max(n for n in range(1, max(wanted, 1) + 1) if size % n == 0)
        if count > 1:
            found[number] = count
            wanted //= count
    return found if prod(found.values()) > CLUSTER else {}


def _split(graph: Graph, node: Node, operands: list[Value], parts: dict[int, int]) -> Value:
    found = in_parts(graph, node, operands, parts)
    found = build(
        graph, "reduce_sum", found, axes=tuple(range(len(parts))), origin=node.origin
    )  # fmt: skip
    return build(graph, "cast", found, dtype=operands[0].dtype, origin=node.origin)


def in_parts(graph: Graph, node: Node, operands: list[Value], parts: dict[int, int]) -> Value:
    """The sums of a matmul of 16-bit operands, in float32, for each part of its summed axes, which
    are cut into so many, by their number: [*parts, *the shape of the result]."""
    attrs, sides = {}, []
    for name, operand in zip(("lhs", "rhs"), operands, strict=True):
        contract = node.attrs[f"{name}_contract"]
        cut = {contract[number]: count for number, count in parts.items()}
        shape: list[int] = []
        batch, rest = {}, {}
        for axis, size in enumerate(operand.shape):
            if axis in cut:
                batch[axis] = len(shape)
                shape.append(cut[axis])
                size //= cut[axis]
            rest[axis] = len(shape)
            shape.append(size)
        wide = build(graph, "cast", operand, dtype=f32, origin=node.origin)
        sides.append(build(graph, "reshape", wide, shape=tuple(shape), origin=node.origin))
        attrs[f"{name}_batch"] = tuple(batch[contract[number]] for number in parts)
        attrs[f"{name}_contract"] = tuple(rest[axis] for axis in contract)
    return build(
        graph, "dot_general", *sides, operands=operands[0].dtype.name, origin=node.origin, **attrs
    )
