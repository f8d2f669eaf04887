"""How the axes of operands and results of a primitive belong together.

A `Link` is one index of an operator. A matmul [m, k] x [k, n] has three: m (axis 0 of the left
operand and of the result), n, and k, which is in no axis of the result: what ranks compute from
parts of it is folded (`sum`). An axis without a link cannot be divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuser.graph.ir import Node
from fuser.graph.ops.contraction import free_axes
from fuser.graph.ops.registry import primitive

_FOLDS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}


@dataclass(frozen=True)
class Link:
    """The axis of each operand and that of the result that one index runs along; None: of none."""

    operands: tuple[int | None, ...]
    result: int | None
    fold: str = ""


def links_of(node: Node) -> tuple[Link, ...]:
    """The links of a node. A reshape has none: its axes are regrouped (layout.py)."""
    return tuple(_links(node))


def _links(node: Node) -> Iterator[Link]:
    count, attrs, rank = len(node.inputs), node.attrs, node.output.type.rank
    match node.op:
        case "transpose":
            for axis, source in enumerate(attrs["perm"]):
                yield Link((source,), axis)
        case "broadcast":
            stretched = {axis: source for source, axis in enumerate(attrs["axes"])}
            shape = node.inputs[0].shape
            for axis in range(rank):
                source = stretched.get(axis)
                same = source is not None and shape[source] == node.output.shape[axis]
                yield Link((source if same else None,), axis)
        case "slice":
            for axis, size in enumerate(node.inputs[0].shape):
                cut = attrs["starts"][axis], attrs["limits"][axis], attrs["strides"][axis]
                if cut == (0, size, 1):
                    yield Link((axis,), axis)
        case "pad":
            for axis, (low, high) in enumerate(zip(attrs["low"], attrs["high"], strict=True)):
                if low == high == 0:
                    yield Link((axis,), axis)
        case "concat" | "cumsum" | "sort":
            for axis in range(rank):
                if axis != attrs["axis"]:
                    yield Link((axis,) * count, axis)
        case "reduce_sum" | "reduce_max" | "reduce_min" | "reduce_prod" | "argmax" | "argmin":
            reduced = (attrs["axis"],) if "axis" in attrs else attrs["axes"]
            kept = [a for a in range(node.inputs[0].type.rank) if a not in reduced]
            for axis, source in enumerate(kept):
                yield Link((source,), axis)
            if node.op in _FOLDS:
                for source in reduced:
                    yield Link((source,), None, _FOLDS[node.op])
        case "dot_general":
            yield from _dot(node)
        case "conv":
            yield Link((0, None), 0)
            if attrs["groups"] == 1:
                yield Link((None, 0), 1)
                yield Link((1, 1), None, "sum")
        case "reduce_window":
            for axis, window in enumerate(attrs["window"]):
                if window == attrs["strides"][axis] == 1 and not any(attrs["padding"][axis]):
                    yield Link((axis,), axis)
        case "gather":
            yield from _gather(node)
        case "scatter":
            for link in _gather(node):
                data, indices = link.operands
                if data is not None and indices is None:
                    yield Link((data, None, link.result), data)
        case _ if primitive(node.op).kind == "map":
            for axis in range(rank):
                yield Link((axis,) * count, axis)


def _dot(node: Node) -> Iterator[Link]:
    attrs, (lhs, rhs) = node.attrs, node.inputs
    for axis, pair in enumerate(zip(attrs["lhs_batch"], attrs["rhs_batch"], strict=True)):
        yield Link(pair, axis)
    axis = len(attrs["lhs_batch"])
    for source in free_axes(lhs.type.rank, attrs["lhs_batch"], attrs["lhs_contract"]):
        yield Link((source, None), axis)
        axis += 1
    for source in free_axes(rhs.type.rank, attrs["rhs_batch"], attrs["rhs_contract"]):
        yield Link((None, source), axis)
        axis += 1
    for pair in zip(attrs["lhs_contract"], attrs["rhs_contract"], strict=True):
        yield Link(pair, None, "sum")


def _gather(node: Node) -> Iterator[Link]:
    """Of a gather, and of the gather whose result a scatter's updates look like."""
    data, indices = node.inputs[:2]
    axis = node.attrs["axis"]
    for source in range(data.type.rank):
        if source != axis:
            yield Link((source, None), source if source < axis else source - 1 + indices.type.rank)
    for source in range(indices.type.rank):
        yield Link((None, source), axis + source)
