"""Whether all text of a model is UTF-8. Protobuf does not look: what is not, it hands out as bytes,
and some code of the onnx package ends in a UnicodeDecodeError then.

This walks the whole model before anything else does, so it counts the nodes as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from fuser.base.limits import check_nodes
from fuser.errors import InvalidModelError

_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
"""Domains whose string attributes are text; other ones keep bytes in them."""


def check_text(model: ModelProto, where: str) -> None:
    """Raise InvalidModelError for a name, a string or another text of the model that is not UTF-8:
    those of subgraphs, functions, metadata, attributes and references to external data included.
    Raises LimitError for more nodes than are allowed."""
    _Walk(where).model(model)


class _Walk:
    """A walk over a model. Graphs that wait are a list: they may be nested deeply."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.graphs: list[GraphProto] = []
        self.count = 0

    def look(self, *texts: str | bytes) -> None:
        for text in texts:
            if text.__class__ is not str:
                self.look_closer(text)

    def look_closer(self, text: str | bytes) -> None:
        """At what protobuf handed out as bytes: strings of tensors and attributes always are."""
        data = text.encode() if isinstance(text, str) else text
        try:
            data.decode()
        except UnicodeDecodeError:
            shown = ascii(data[:40])[2:-1]
            what = f"a name or string in the model is not UTF-8: {shown!r}"
            raise InvalidModelError(what, where=self.where) from None

    def model(self, model: ModelProto) -> None:
        self.look(model.producer_name, model.producer_version, model.domain, model.doc_string)
        self.look(*(entry.domain for entry in model.opset_import))
        self.pairs(model.metadata_props)
        self.graphs.append(model.graph)
        for function in model.functions:
            self.look(function.name, function.domain, *function.input, *function.output)
            self.look(*function.attribute, getattr(function, "overload", ""))
            for default in function.attribute_proto:
                self.attribute(default, True)
            for info in getattr(function, "value_info", ()):
                self.info(info)
            self.nodes(function.node)
        while self.graphs:
            self.graph(self.graphs.pop())

    def graph(self, graph: GraphProto) -> None:
        self.look(graph.name, graph.doc_string)
        for info in (*graph.input, *graph.output, *graph.value_info):
            self.info(info)
        for tensor in graph.initializer:
            self.tensor(tensor)
        for sparse in graph.sparse_initializer:
            self.tensor(sparse.values)
            self.tensor(sparse.indices)
        for note in graph.quantization_annotation:
            self.look(note.tensor_name)
            self.pairs(note.quant_parameter_tensor_names)
        self.pairs(getattr(graph, "metadata_props", ()))
        self.nodes(graph.node)

    def nodes(self, nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            self.count += 1
            check_nodes(self.count, "the model")
            self.look(node.name, node.op_type, node.domain, node.doc_string)
            self.look(*node.input, *node.output)
            for attribute in node.attribute:
                self.attribute(attribute, node.domain in _OWN_DOMAINS)
            self.pairs(getattr(node, "metadata_props", ()))

    def attribute(self, attribute: AttributeProto, is_text: bool) -> None:
        self.look(attribute.name, attribute.ref_attr_name)
        if is_text and attribute.HasField("s"):
            self.look(attribute.s)
        if is_text and len(attribute.strings):
            self.look(*attribute.strings)
        if attribute.HasField("t"):
            self.tensor(attribute.t)
        for tensor in attribute.tensors:
            self.tensor(tensor)
        if attribute.HasField("g"):
            self.graphs.append(attribute.g)
        self.graphs.extend(attribute.graphs)

    def info(self, info: ValueInfoProto) -> None:
        self.look(info.name)
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                self.look(dim.dim_param)

    def tensor(self, tensor: TensorProto) -> None:
        self.look(tensor.name)
        if tensor.data_type == TensorProto.STRING:
            self.look(*tensor.string_data)
        self.pairs(tensor.external_data)

    def pairs(self, entries: Iterable[Any]) -> None:
        for entry in entries:
            self.look(entry.key, entry.value)
