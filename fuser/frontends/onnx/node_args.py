"""What a model says of itself: its inputs, outputs, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import ModelProto, TypeProto, ValueInfoProto

from fuser.frontends.onnx.importer.inference import inferred
from fuser.frontends.onnx.values import element_name

LARGE = 1 << 16
"""Bytes of a weight from here on: its values decide no shape."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. shape: ints, names of symbolic dims, and None where nothing is known;
    [] where the rank is not. type is spelt `tensor(float)`."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    """Where a model comes from, and what its makers wrote into it."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def metadata(proto: ModelProto) -> ModelMetadata:
    """The metadata of a model."""
    return ModelMetadata(
        proto.producer_name, proto.graph.name, proto.domain, proto.doc_string,
        proto.graph.doc_string, proto.model_version,
        {entry.key: entry.value for entry in proto.metadata_props},
    )  # fmt: skip


def tensor_info(info: ValueInfoProto) -> TensorInfo:
    """A declared input or output."""
    shape: list[int | str | None] = []
    for dim in info.type.tensor_type.shape.dim:
        known: int | str | None = dim.dim_param or None
        shape.append(dim.dim_value if dim.HasField("dim_value") else known)
    return TensorInfo(info.name, shape, type_text(info.type))


def output_infos(proto: ModelProto) -> list[TensorInfo]:
    """The outputs, with types and shapes inferred where the model does not declare them."""
    declared = [tensor_info(info) for info in proto.graph.output]
    if all(_is_declared(info) for info in proto.graph.output):
        return declared
    inferred = _inferred(proto)
    return [_merged(info, inferred.get(info.name, info)) for info in declared]


def _is_declared(info: ValueInfoProto) -> bool:
    if info.type.WhichOneof("value") != "tensor_type":
        return info.type.WhichOneof("value") is not None
    dims = info.type.tensor_type.shape.dim
    return info.type.tensor_type.HasField("shape") and all(d.WhichOneof("value") for d in dims)


def _merged(declared: TensorInfo, inferred: TensorInfo) -> TensorInfo:
    """What is declared, and of what is inferred the rest."""
    shape = declared.shape or inferred.shape
    if len(declared.shape) == len(inferred.shape):
        pairs = zip(declared.shape, inferred.shape, strict=True)
        shape = [had if had is not None else found for had, found in pairs]
    type = inferred.type if declared.type == "unknown" else declared.type
    return TensorInfo(declared.name, shape, type)


def _inferred(proto: ModelProto) -> Mapping[str, TensorInfo]:
    """The outputs by the shape inference of the onnx package; as declared where it fails."""
    light = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    light.functions.extend(proto.functions)
    graph, full = light.graph, proto.graph
    graph.node.extend(full.node)
    graph.input.extend(full.input)
    graph.output.extend(full.output)
    graph.sparse_initializer.extend(full.sparse_initializer)
    fed = {info.name for info in full.input}
    for tensor in full.initializer:
        if tensor.ByteSize() < LARGE:
            graph.initializer.append(tensor)
        elif tensor.name not in fed:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    found = inferred(light, data_prop=True)
    return {
        info.name: _without_made_up_names(tensor_info(info), proto) for info in found.graph.output
    }


def _without_made_up_names(info: TensorInfo, proto: ModelProto) -> TensorInfo:
    """Names of dims that inference made up (unk__0) say nothing."""
    told = {
        dim.dim_param
        for declared in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
        for dim in declared.type.tensor_type.shape.dim
    }
    shape = [None if isinstance(d, str) and d not in told else d for d in info.shape]
    return TensorInfo(info.name, shape, info.type)


def type_text(type: TypeProto) -> str:
    """How runtimes spell a type: `tensor(float)`, `seq(tensor(int64))`."""
    match type.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({element_name(type.tensor_type.elem_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({element_name(type.sparse_tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({type_text(type.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(type.optional_type.elem_type)})"
        case "map_type":
            key = element_name(type.map_type.key_type)
            return f"map({key},{type_text(type.map_type.value_type)})"
    return "unknown"
