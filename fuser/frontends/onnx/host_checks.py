"""What an operator on the host is held against before it runs: the specification, and the limit on
bytes. The reference implementation of the onnx package looks at neither."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TypeProto
from onnx.shape_inference import infer_node_outputs

from fuser.base.limits import check_bytes
from fuser.errors import LimitError, UnsupportedDTypeError
from fuser.frontends.onnx.importer.constraints import check_constraints
from fuser.frontends.onnx.importer.inference import FAILURES
from fuser.frontends.onnx.importer.reader import attributes_of
from fuser.frontends.onnx.importer.registry import OnnxNode
from fuser.graph.builder import Builder
from fuser.graph.ir import Graph

MAX_READ = 4096
"""Elements of an operand whose values shapes are inferred from."""
MAX_KEPT = 256
"""Signatures that are remembered to be right."""


class HostCheck:
    """The checks of one node; operands like those of an earlier run pass at once."""

    def __init__(self, node: NodeProto, opsets: Mapping[str, int]) -> None:
        self._node = node
        domain = "" if node.domain == "ai.onnx" else node.domain
        self._domain, self._opset = domain, opsets.get(domain, 1)
        self._right: set[Any] = set()

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise InvalidModelError for operands or attributes that the specification forbids,
        OutOfMemoryError for results that take more bytes than allowed. given: values by name;
        sequences and strings are not looked at."""
        names = [name for name in self._node.input if name]
        arrays = {name: given[name] for name in names if name in given}
        if len(arrays) != len(set(names)) or not all(map(_is_plain, arrays.values())):
            return
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        key = tuple(
            (array.dtype, array.shape, array.tobytes() if array.size <= 64 else None)
            for array in arrays.values()
        )
        if key in self._right:
            return
        self._check_rules(arrays)
        self._check_size(arrays)
        if len(self._right) < MAX_KEPT:
            self._right.add(key)

    def _check_rules(self, arrays: Mapping[str, np.ndarray]) -> None:
        proto = self._node
        name = proto.name or next((output for output in proto.output if output), proto.op_type)
        node = OnnxNode(name, proto.op_type, self._domain, self._opset, [], list(proto.output))
        builder = Builder(Graph(proto.op_type))
        try:
            node.inputs = [builder.constant(arrays[n]) if n else None for n in proto.input]
        except (UnsupportedDTypeError, KeyError):  # no array of the kernels
            return
        node.attrs = attributes_of(proto, node.where)
        check_constraints(builder, node)

    def _check_size(self, arrays: Mapping[str, np.ndarray]) -> None:
        try:
            schema = onnx.defs.get_schema(self._node.op_type, self._opset, self._domain)
            results = infer_node_outputs(
                schema,
                self._node,
                {name: _type(array) for name, array in arrays.items()},
                {
                    name: onnx.numpy_helper.from_array(array)
                    for name, array in arrays.items()
                    if array.size <= MAX_READ
                },
            )
        except (onnx.defs.SchemaError, *FAILURES):
            return  # an operator of a caller, say: what it makes is the caller's
        total = sum(_bytes(type) for type in results.values())
        try:
            check_bytes(total, "what the host computes")
        except LimitError as error:
            error.where = error.where or self._node.name or self._node.op_type
            raise


def bytes_held(value: Any, seen: set[int]) -> int:
    """Bytes of a value on the host: an array, of strings with their letters, or a sequence. seen:
    the identities of arrays that were counted, which sequences share."""
    if isinstance(value, list | tuple):
        return sum(bytes_held(item, seen) for item in value)
    if not isinstance(value, np.ndarray | np.generic) or id(value) in seen:
        return 0
    seen.add(id(value))
    array = np.asarray(value)
    if not array.dtype.hasobject:
        return array.nbytes
    letters = sum(len(item) for item in array.reshape(-1) if isinstance(item, str | bytes))
    return array.nbytes + letters


def _is_plain(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and not np.asarray(value).dtype.hasobject


def _type(array: np.ndarray) -> TypeProto:
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(elem_type, array.shape)


def _bytes(type: TypeProto) -> int:
    """Bytes of a tensor, as far as its dims are known."""
    sizes: list[int] = [
        dim.dim_value for dim in type.tensor_type.shape.dim if dim.HasField("dim_value")
    ]
    try:
        item = int(onnx.helper.tensor_dtype_to_np_dtype(type.tensor_type.elem_type).itemsize)
    except KeyError:
        item = 1
    return math.prod(sizes) * int(item)
