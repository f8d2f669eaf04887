"""Convolutions over patches that do not overlap are matmuls of a copy: the stem of a ViT.

    %y = conv %x [1, 3, 224, 224], %w [768, 3, 16, 16] {strides = (16, 16)}
 =>
    region: %p = transpose (reshape %x [1, 3, 14, 16, 14, 16])      [1, 14, 14, 3, 16, 16]
    region: %y = transpose (dot_general (reshape %p [1, 14, 14, 768]), %w [768, 768])
Images of few channels have short runs in memory, which threads gather one by one, once for every
block of outputs. A copy gathers them once, and its rows are what the copy engine brings.
"""

from __future__ import annotations

from math import prod

from fuser.base.target import Target
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic

FEW_CHANNELS = 8
"""From this many on, a pixel is a piece that the copy engine fetches."""
OUTPUTS = 64
"""The fewest for which pixels are read often enough."""
DEPTH = 32
"""The fewest elements of a patch: a row of 64 bytes."""


def cut_patches(graph: Graph, target: Target) -> tuple[Graph, set[Value]]:
    """(a graph with such matmuls, the copies): they must stay kernels of their own."""
    kept: set[Value] = set()

    def make(copy: Graph, node: Node, values: dict[Value, Value], window: tuple[int, ...]) -> Value:
        x, weights = (values[value] for value in node.inputs)
        patches = _patches(copy, x, window, node)
        kept.add(patches)
        return _product(copy, patches, weights, node)

    found = {node: node.attrs["strides"] for node in graph.nodes if _is_cut(node, target)}
    return with_replaced(graph, found, make), kept


def _is_cut(node: Node, target: Target) -> bool:
    if node.op != "conv" or not target.wgmma or "operands" in node.attrs:
        return False
    x, weights = node.inputs[:2]
    attrs, window = node.attrs, weights.shape[2:]
    spatial = x.shape[2:]
    if len(node.inputs) > 2 or attrs["groups"] != 1 or x.dtype.bits != 16 or not x.dtype.is_float:
        return False
    if weights.constant is None or is_symbolic(*x.shape[1:]) or tuple(attrs["strides"]) != window:
        return False
    plain = all(pair == (0, 0) for pair in attrs["padding"]) and set(attrs["dilation"]) == {1}
    whole = all(size % extent == 0 for size, extent in zip(spatial, window, strict=True))
    deep = prod(weights.shape[1:])
    sizes = x.shape[1] < FEW_CHANNELS and weights.shape[0] >= OUTPUTS
    return plain and whole and sizes and prod(window) > 1 and deep >= DEPTH and deep % 8 == 0


def _patches(graph: Graph, x: Value, window: tuple[int, ...], node: Node) -> Value:
    """[n, patches along each dim, channels * window]: a row a patch, in memory."""
    origin, count = node.origin, len(window)
    shape, places, inside = list(x.shape[:2]), list[int](), list[int]()
    for size, extent in zip(x.shape[2:], window, strict=True):
        places.append(len(shape))
        inside.append(len(shape) + 1)
        shape += [size // extent, extent]
    cut = build(graph, "reshape", x, shape=tuple(shape), origin=origin)
    turned = build(graph, "transpose", cut, perm=(0, *places, 1, *inside), origin=origin)
    rows = (*turned.shape[: 1 + count], prod(turned.shape[1 + count :]))
    flat = build(graph, "reshape", turned, shape=rows, origin=origin)
    zeros = (0,) * len(rows)
    return build(graph, "pad", flat, low=zeros, high=zeros, value=0.0, origin=origin)


def _product(graph: Graph, patches: Value, weights: Value, node: Node) -> Value:
    """The matmul, its results in the order of the convolution's."""
    origin, rank = node.origin, patches.type.rank
    flat = (weights.shape[0], prod(weights.shape[1:]))
    right = build(graph, "reshape", weights, shape=flat, origin=origin)
    found = build(
        graph, "dot_general", patches, right, lhs_batch=(), rhs_batch=(), lhs_contract=(rank - 1,),
        rhs_contract=(1,), origin=origin,
    )  # fmt: skip
    perm = (0, rank - 1, *range(1, rank - 1))
    return build(graph, "transpose", found, perm=perm, origin=origin)
