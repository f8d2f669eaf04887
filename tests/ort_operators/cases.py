"""What a test of ONNX Runtime says as data: an operator, its inputs and the expected outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64, "MLFloat16": np.float16,
    "BFloat16": ml_dtypes.bfloat16, "int8_t": np.int8, "int16_t": np.int16, "int32_t": np.int32,
    "int": np.int32, "int64_t": np.int64, "uint8_t": np.uint8, "uint16_t": np.uint16,
    "uint32_t": np.uint32, "uint64_t": np.uint64, "size_t": np.uint64, "bool": np.bool_,
    "std::string": object, "string": object, "unsigned char": np.uint8, "uint": np.uint32,
    "Float8E4M3FN": ml_dtypes.float8_e4m3fn, "Float8E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip

# ONNX Runtime's own, by the type of the expected output: (absolute, relative).
TOLERANCES = {
    "float32": (1e-5, 1e-4),
    "float64": (1e-5, 1e-5),
    "float16": (0.0025, 0.001),
    "bfloat16": (0.02, 0.01),
}


class NotPlain(Exception):
    """The text needs more of C++ than is read here."""


@dataclass(frozen=True)
class Tensor:
    """An input or output; array None stands for one that is left out."""

    name: str
    array: Array | None
    constant: bool = False


@dataclass
class Case:
    """One run of one operator. absolute, relative: the tolerance, where the test sets one."""

    name: str
    op: str
    version: int
    domain: str
    attributes: dict[str, Any] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    absolute: float | None = None
    relative: float | None = None


def array_of(type_name: str, dims: Sequence[Any], values: Sequence[Any]) -> Array:
    """Numbers of a C++ type. Raises NotPlain."""
    if type_name not in DTYPES:
        raise NotPlain(f"tensor of {type_name}")
    dtype = DTYPES[type_name]
    shape = [int(dim) for dim in dims]
    if any(not isinstance(value, int | float | str | np.generic) for value in values):
        raise NotPlain("elements that are no numbers")
    if len(values) != int(np.prod(shape)):
        raise NotPlain(f"{len(values)} elements for the shape {shape}")
    if dtype is object:
        return np.array(values, object).reshape(shape)
    if np.issubdtype(np.dtype(dtype), np.integer):
        bits = 8 * np.dtype(dtype).itemsize
        wrapped = [int(value) % (1 << bits) for value in values]
        return np.array(wrapped, f"u{bits // 8}").view(dtype).reshape(shape)
    with np.errstate(all="ignore"):
        return np.array([float(value) for value in values]).astype(dtype).reshape(shape)


def model_of(case: Case) -> onnx.ModelProto:
    """The case as a model of one node. Raises NotPlain."""
    try:
        schema = onnx.defs.get_schema(case.op, case.version, case.domain)
        kinds = {name: item.type.name for name, item in schema.attributes.items()}
    except Exception:  # of another domain than those of onnx
        kinds = {}
    names = [x.name if x.array is not None else "" for x in case.inputs]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(
        case.op, names, [x.name if x.array is not None else "" for x in case.outputs],
        domain=case.domain,
    )  # fmt: skip
    for name, value in case.attributes.items():
        node.attribute.append(_attribute(name, value, kinds.get(name, "")))
    graph = helper.make_graph(
        [node], case.op,
        [_info(x) for x in case.inputs if x.array is not None and not x.constant],
        [_info(x) for x in case.outputs if x.array is not None],
        [
            numpy_helper.from_array(x.array, x.name)
            for x in case.inputs if x.array is not None and x.constant
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid(case.domain, case.version)]
    if case.domain:
        opsets.append(helper.make_opsetid("", 18))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _info(x: Tensor) -> onnx.ValueInfoProto:
    assert x.array is not None
    kind = onnx.TensorProto.STRING
    if x.array.dtype != object:
        kind = helper.np_dtype_to_tensor_dtype(x.array.dtype)
    return helper.make_tensor_value_info(x.name, kind, list(x.array.shape))


def _attribute(name: str, value: Any, kind: str) -> onnx.AttributeProto:
    if isinstance(value, list):
        if not kind:
            whole = all(isinstance(item, int) for item in value)
            kind = "STRINGS" if value and isinstance(value[0], str) else "INTS"
            kind = kind if whole or kind == "STRINGS" else "FLOATS"
        convert: Any = {"INTS": int, "FLOATS": float, "STRINGS": str}.get(kind)
        if convert is None:
            raise NotPlain(f"an attribute of {kind}")
        value = [convert(item) for item in value]
        type_id = getattr(onnx.AttributeProto, kind)
        return helper.make_attribute(name, value, attr_type=type_id)
    if kind == "FLOAT" or (isinstance(value, float) and not kind):
        return helper.make_attribute(name, float(value))
    if isinstance(value, bool | int):
        return helper.make_attribute(name, int(value))
    if isinstance(value, str):
        return helper.make_attribute(name, value)
    raise NotPlain(f"an attribute of {type(value).__name__}")
