"""Merge nodes that compute the same thing.

%a = mul(%x, %y)                 %a = mul(%x, %y)
%b = mul(%x, %y)         =>      %c = add(%a, %a)
%c = add(%a, %b)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.primitive import Array
from fuser.graph.passes.rewrite import join_origins, rewrite


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """The graph with equal nodes, equal constants included, once (changed in place)."""
    seen: dict[tuple[Any, ...], list[Node]] = {}
    static: set[Value] = set()

    def rule(b: Builder, node: Node, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
        key = (node.op, operands, _attrs_key(node))
        for earlier in seen.get(key, ()):
            if node.op != "constant" or _same(earlier.attrs["value"], node.attrs["value"]):
                _merge_origin(earlier, node, earlier.output in static)
                return earlier.outputs
        seen.setdefault(key, []).append(node)
        if all(operand in static for operand in operands):
            static.update(node.outputs)
        return None

    return rewrite(graph, rule)


def _merge_origin(kept: Node, dropped: Node, static: bool) -> None:
    """Both origins; a number or mask that many nodes share says nothing about where it is used."""
    if not static:
        kept.origin = join_origins(kept, dropped)
    elif kept.origin != dropped.origin:
        kept.origin = ()


def _attrs_key(node: Node) -> tuple[Any, ...]:
    return tuple(sorted((name, _attr_key(value)) for name, value in node.attrs.items()))


def _attr_key(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # A cheap key; _same decides. The ends tell most weights apart.
        flat = value.reshape(-1)
        return (str(value.dtype), value.shape, flat[:16].tobytes(), flat[-16:].tobytes())
    # Type and text: 1, 1.0 and True are equal keys to Python, nan is not equal to itself.
    return (type(value).__name__, str(value))


def _same(a: Array, b: Array) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
