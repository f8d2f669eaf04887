"""Replace calls of functions by their bodies.

Functions of the model are always inlined. An ONNX operator without a handler is replaced by the
body that its schema defines, if it has one: losses, window functions and more come for free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions, inline_selected_functions

from fuser.errors import InvalidModelError
from fuser.graph.onnx_import.loading import without_weights
from fuser.graph.onnx_import.registry import find_handler

_ROUNDS = 4  # a body may call operators that have bodies themselves


def inline_functions(model: ModelProto, opsets: Mapping[str, int]) -> Sequence[NodeProto]:
    """The nodes of the model without calls. Raises InvalidModelError."""
    nodes = list(model.graph.node)
    if not model.functions and not _expandable(nodes, opsets):
        return nodes
    light = without_weights(model)
    try:
        if light.functions:
            light = inline_local_functions(light)
    except (RuntimeError, ValueError) as error:
        message = f"the functions of the model cannot be inlined: {error}"
        raise InvalidModelError(message) from None
    for _ in range(_ROUNDS):
        names = _expandable(list(light.graph.node), opsets)
        if not names:
            break
        _spell_defaults(light, names, opsets)
        try:
            light = inline_selected_functions(light, names, inline_schema_functions=True)
        except RuntimeError:
            break  # a body that depends on types that are not known: the operator stays unsupported
    return list(light.graph.node)


def _expandable(nodes: Sequence[NodeProto], opsets: Mapping[str, int]) -> list[tuple[str, str]]:
    """The operators that have a body in their schema but no handler."""
    found = set()
    for node in nodes:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found.update(_expandable(body.node, opsets))
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = opsets.get(domain, 0)
        if find_handler(domain, node.op_type, opset) is None and _has_body(node, domain, opset):
            found.add((node.domain, node.op_type))
    return sorted(found)


def _spell_defaults(
    model: ModelProto, names: Sequence[tuple[str, str]], opsets: Mapping[str, int]
) -> None:
    """Give calls the attributes that they leave to their default: inlining drops those."""
    for node in _all_nodes(model.graph):
        if (node.domain, node.op_type) in names:
            domain = "" if node.domain == "ai.onnx" else node.domain
            schema: Any = onnx.defs.get_schema(node.op_type, opsets.get(domain, 0), domain)
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(
                entry.default_value
                for name, entry in schema.attributes.items()
                if name not in given and entry.default_value.type
            )


def _all_nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body)


def _has_body(node: NodeProto, domain: str, opset: int) -> bool:
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
