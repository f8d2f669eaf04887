"""Replace symbolic dims by ints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.errors import UsageError
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, DimExpr, substitute
from fuser.graph.ir import Graph, Node, SourceNode, TensorType, Value
from fuser.graph.ops.registry import primitive


def bind(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """The graph with the named dims as ints; others stay symbolic.

    Types are inferred anew, so that a graph imported with unbound dims is checked against the
    sizes. Where the import had to take two dims for equal, import the model again with dims bound.
    Raises UsageError for an unknown name, ShapeError where the sizes do not fit.
    """
    known = sorted(graph.symbols())
    if unknown := sorted(set(dims) - set(known)):
        raise UsageError(
            f"the graph has no symbolic dim {', '.join(unknown)}",
            hint=f"it has: {', '.join(known)}" if known else "all its dims are fixed",
        )
    result = graph.like()
    result.source = [_bind_source(node, dims) for node in graph.source]
    mapping: dict[Value, Value] = {
        value: result.add_input(value.name, _bind_type(value.type, dims)) for value in graph.inputs
    }
    builder = Builder(result)
    for node in graph.nodes:
        builder.origin = node.origin
        outputs = _bind_node(builder, node, tuple(mapping[v] for v in node.inputs), dims)
        mapping.update(zip(node.outputs, outputs, strict=True))
    result.outputs = [mapping[value] for value in graph.outputs]
    result.output_names = list(graph.output_names)
    return result


def _bind_node(
    b: Builder, node: Node, operands: tuple[Value, ...], dims: Mapping[str, int]
) -> tuple[Value, ...]:
    attrs = {key: _bind_attr(value, dims) for key, value in node.attrs.items()}
    if node.op == "dims" and not any(isinstance(dim, DimExpr) for dim in attrs["values"]):
        (array,) = primitive("dims").evaluate((), attrs)
        return (b.constant(np.asarray(array)),)
    if node.op == "broadcast":
        # A dim that was a symbol may turn out to be 1, which a broadcast must not stretch.
        return (b.broadcast(operands[0], attrs["shape"], attrs["axes"]),)
    return b.emit_node(node.op, *operands, **attrs).outputs


def _bind_attr(value: Any, dims: Mapping[str, int]) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_bind_attr(part, dims) for part in value)
    return substitute(value, dims) if isinstance(value, DimExpr) else value


def _bind_type(type: TensorType, dims: Mapping[str, int]) -> TensorType:
    shape: tuple[Dim, ...] = tuple(substitute(dim, dims) for dim in type.shape)
    return TensorType(type.dtype, shape)


def _bind_source(node: SourceNode, dims: Mapping[str, int]) -> SourceNode:
    inputs = tuple(_bind_type(type, dims) for type in node.inputs)
    outputs = tuple(_bind_type(type, dims) for type in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs)
