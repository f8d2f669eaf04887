"""A model with the sizes and weights that session options give it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import ModelProto

from fuser.errors import UsageError
from fuser.frontends.onnx.settings import SessionOptions


def overridden(proto: ModelProto, options: SessionOptions) -> ModelProto:
    """A copy with the options' dims fixed and initializers replaced; the model itself where there
    are none. Raises UsageError for a name that the model does not have, or a value that does not
    fit."""
    if not (options.dims_by_name or options.dims_by_denotation or options.initializers):
        return proto
    changed = ModelProto()
    changed.CopyFrom(proto)
    _fix_dims(changed, options.dims_by_name, options.dims_by_denotation)
    table = {tensor.name: tensor for tensor in changed.graph.initializer}
    for name, value in options.initializers.items():
        if name not in table:
            raise UsageError(f"there is no initializer {name!r}", hint=f"there are {list(table)}")
        held = table[name]
        if (list(held.dims), held.data_type) != (value.shape(), value.element_type()):
            raise UsageError(
                f"the initializer {name!r} has shape {list(held.dims)}, the value {value.shape()}",
                hint="pass a value of the same shape and type",
            )
        held.CopyFrom(onnx.numpy_helper.from_array(value.numpy(), name))
    return changed


def _fix_dims(
    proto: ModelProto, by_name: Mapping[str, int], by_denotation: Mapping[str, int]
) -> None:
    graph = proto.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            size = by_name.get(dim.dim_param, by_denotation.get(dim.denotation))
            if size is not None and not dim.HasField("dim_value"):
                dim.dim_value = int(size)
