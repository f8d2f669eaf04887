"""Whether all text of a model is UTF-8. Protobuf does not look: what is not, it hands out as bytes,
and some code of the onnx package ends in a UnicodeDecodeError then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from fuser.errors import InvalidModelError

_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
"""Domains whose string attributes are text; other ones keep bytes in them."""


def check_text(model: ModelProto, where: str) -> None:
    """Raise InvalidModelError for a name, a string or another text of the model that is not UTF-8:
    those of subgraphs, functions, metadata, attributes and references to external data included."""
    for text in _texts(model):
        if text.__class__ is not str and not _is_utf8(text):
            shown = ascii(bytes(text[:40]))[2:-1]  # type: ignore[arg-type]
            what = f"a name or string in the model is not UTF-8: {shown!r}"
            raise InvalidModelError(what, where=where)


def _is_utf8(text: str | bytes) -> bool:
    """Whether what protobuf handed out as bytes is text: strings of tensors and attributes are
    bytes even then."""
    try:
        bytes(text).decode()  # type: ignore[arg-type]
    except UnicodeDecodeError:
        return False
    return True


def _texts(model: ModelProto) -> Iterator[str | bytes]:
    yield from (model.producer_name, model.producer_version, model.domain, model.doc_string)
    for entry in model.opset_import:
        yield entry.domain
    yield from _pairs(model.metadata_props)
    graphs: list[GraphProto] = [model.graph]
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
        yield from (*function.attribute, getattr(function, "overload", ""))
        for default in function.attribute_proto:
            yield from _of_attribute(default, graphs, True)
        for info in getattr(function, "value_info", ()):
            yield from _of_info(info)
        yield from _of_nodes(function.node, graphs)
    while graphs:
        graph = graphs.pop()
        yield graph.name
        yield graph.doc_string
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield from _of_info(info)
        for tensor in graph.initializer:
            yield from _of_tensor(tensor)
        for sparse in graph.sparse_initializer:
            yield from (*_of_tensor(sparse.values), *_of_tensor(sparse.indices))
        for note in graph.quantization_annotation:
            yield note.tensor_name
            yield from _pairs(note.quant_parameter_tensor_names)
        yield from _pairs(getattr(graph, "metadata_props", ()))
        yield from _of_nodes(graph.node, graphs)


def _of_nodes(nodes: Iterable[NodeProto], graphs: list[GraphProto]) -> Iterator[str | bytes]:
    """The text of nodes; their subgraphs are appended to `graphs`."""
    for node in nodes:
        yield node.name
        yield node.op_type
        yield node.domain
        yield from node.input
        yield from node.output
        if node.doc_string:
            yield node.doc_string
        for attribute in node.attribute:
            yield from _of_attribute(attribute, graphs, node.domain in _OWN_DOMAINS)
        if len(getattr(node, "metadata_props", ())):
            yield from _pairs(node.metadata_props)


def _of_attribute(
    attribute: AttributeProto, graphs: list[GraphProto], is_text: bool
) -> Iterator[str | bytes]:
    yield attribute.name
    yield attribute.ref_attr_name
    if is_text:
        yield attribute.s
        yield from attribute.strings
    if attribute.HasField("t"):
        yield from _of_tensor(attribute.t)
    for tensor in attribute.tensors:
        yield from _of_tensor(tensor)
    if attribute.HasField("g"):
        graphs.append(attribute.g)
    graphs.extend(attribute.graphs)


def _of_info(info: ValueInfoProto) -> Iterator[str | bytes]:
    yield info.name
    for dim in info.type.tensor_type.shape.dim:
        if dim.HasField("dim_param"):
            yield dim.dim_param


def _of_tensor(tensor: TensorProto) -> Iterator[str | bytes]:
    yield tensor.name
    if tensor.data_type == TensorProto.STRING:
        yield from tensor.string_data
    if len(tensor.external_data):
        yield from _pairs(tensor.external_data)


def _pairs(entries: Iterable[object]) -> Iterator[str | bytes]:
    for entry in entries:
        yield entry.key  # type: ignore[attr-defined]
        yield entry.value  # type: ignore[attr-defined]
