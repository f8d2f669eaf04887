"""The table of kinds: name -> a function that writes a model into a folder, and the exit codes that
the command line may end with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
USAGE, INVALID, UNSUPPORTED, LIMIT = 2, 3, 4, 6


@dataclass(frozen=True)
class Kind:
    """One way to be wrong. write: makes the file and returns its path. codes: exit codes that are
    right; 0 where the model is unusual, but valid."""

    name: str
    write: Callable[[Path], Path]
    codes: frozenset[int]


KINDS: dict[str, Kind] = {}


def kind(*codes: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of a folder that gives a path, or bytes or a ModelProto to be saved."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        def write(folder: Path) -> Path:
            made = function(folder)
            return made if isinstance(made, Path) else save(folder, made)

        KINDS[name] = Kind(name, write, frozenset(codes or (INVALID,)))
        return function

    return register


def save(folder: Path, model: ModelProto | bytes, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def info(name: str, shape: Sequence[int | str] | None = (2, 3), dtype: int = F32) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=attrs.pop("label", op), **attrs)


def model(
    *nodes: NodeProto, inputs: Any = None, outputs: Any = None, opset: int = 18, **options: Any
) -> ModelProto:
    """x f32[2, 3] -> y, unless told otherwise."""
    functions = options.pop("functions", [])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    graph = helper.make_graph(
        list(nodes), "g", inputs if inputs is not None else [info("x")],
        outputs if outputs is not None else [info("y", None)], **options,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def tensor(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def relu() -> ModelProto:
    return model(node("Relu", ["x"], ["y"]))


def with_weight(weight: TensorProto) -> ModelProto:
    return model(node("Add", ["x", "w"], ["y"]), initializer=[weight])


def external(**entries: str) -> TensorProto:
    """A weight f32[2, 3] whose data is elsewhere."""
    weight = TensorProto(name="w", data_type=F32, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return weight


def body(*nodes: NodeProto, inputs: Any, outputs: Any, **options: Any) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", inputs, outputs, **options)
