"""Replace calls of functions by their bodies.

Functions of the model are always inlined. An ONNX operator without a handler is replaced by the
body that its schema defines, if it has one: losses, window functions and more come for free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TypeProto
from onnx.inliner import inline_local_functions

from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.loading import without_weights


def inline_functions(model: ModelProto) -> Sequence[NodeProto]:
    """The nodes of the model without calls of its own functions. Raises InvalidModelError."""
    if not model.functions:
        return list(model.graph.node)
    try:
        return list(inline_local_functions(without_weights(model)).graph.node)
    except (RuntimeError, ValueError) as error:
        message = f"the functions of the model cannot be inlined: {error}"
        raise InvalidModelError(message) from None


def schema_body(
    node: NodeProto, domain: str, opset: int, types: Sequence[TypeProto]
) -> FunctionProto | None:
    """The function that the schema of an operator defines, with the attributes of `node` filled
    in; None if it has none. types: of the operands, empty for one that is omitted."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for name, entry in schema.attributes.items():
        if name not in attributes and entry.default_value.type:
            attributes[name] = entry.default_value
    body = FunctionProto()
    if schema.has_function:
        version = _newest(schema.function_opset_versions, opset)
        body.ParseFromString(schema.get_function_with_opset_version(version))
    elif schema.has_context_dependent_function:
        spelled = NodeProto()
        spelled.CopyFrom(node)
        del spelled.attribute[:]
        spelled.attribute.extend(attributes.values())
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        try:
            text = schema.get_context_dependent_function_with_opset_version(
                version, spelled.SerializeToString(), [type.SerializeToString() for type in types]
            )
        except RuntimeError:
            return None
        body.ParseFromString(text)
    else:
        return None
    given = {name for name, operand in zip(body.input, node.input, strict=False) if operand}
    omitted = set(body.input) - given
    for inner in body.node:
        _fill(inner, attributes, omitted)
    return body


def has_body(node: NodeProto, domain: str, opset: int) -> bool:
    """Whether the schema of an operator defines it by a function."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _newest(versions: Sequence[int], opset: int) -> int:
    """The newest body that an opset may use."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _fill(node: NodeProto, attributes: Mapping[str, AttributeProto], omitted: set[str]) -> None:
    """Replace references to attributes of the call, and names of operands that it leaves out."""
    for index, name in enumerate(node.input):
        if name in omitted:
            node.input[index] = ""
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = attributes.get(attribute.ref_attr_name)
            if value is None:
                continue  # the operator inside falls back to its own default
            filled = AttributeProto()
            filled.CopyFrom(value)
            filled.name = attribute.name
            attribute = filled
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _fill(inner, attributes, omitted)
        kept.append(attribute)
    copies = [AttributeProto.FromString(item.SerializeToString()) for item in kept]
    del node.attribute[:]
    node.attribute.extend(copies)


def body_opsets(body: FunctionProto) -> Mapping[str, int]:
    """The opsets that a function is written in."""
    return {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version
        for entry in body.opset_import
    }
