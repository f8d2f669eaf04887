"""`InferenceSession`: a model behind the API that users of other runtimes know.

    session = fuser.InferenceSession("model.onnx")
    (logits,) = session.run(None, {"x": array})

Plans are compiled on the first run with feeds of given shapes, and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from fuser.compiler import Device, Model, open_model
from fuser.errors import UsageError
from fuser.runtime.plan import Plan
from fuser.specialise import Specialised

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto, ValueInfoProto


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. shape: ints, names of symbolic dims, and None where nothing is known;
    type is spelt `tensor(float)`."""

    name: str
    shape: list[int | str | None]
    type: str


class InferenceSession:
    """A model that is compiled for the feeds it meets.

    model, device, threads, fusion: as for `fuser.compile`.
    Raises UsageError, InvalidModelError; `run` raises what compiling raises.
    """

    def __init__(
        self,
        model: str | Path | bytes | ModelProto | Model,
        *,
        device: Device = "auto",
        threads: int | None = None,
        fusion: bool = True,
    ) -> None:
        opened = open_model(model)
        self._model = opened
        graph = opened.proto.graph
        self._inputs = [_info(i) for i in graph.input if i.name in opened.inputs]
        self._outputs = [_info(i) for i in graph.output]
        self._compiled = Specialised(opened, device=device, fusion=fusion, threads=threads)

    def get_inputs(self) -> list[TensorInfo]:
        """The inputs that need a feed."""
        return list(self._inputs)

    def get_outputs(self) -> list[TensorInfo]:
        return list(self._outputs)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """The named outputs (None: all), in order. Raises FeedError, UsageError."""
        names = [info.name for info in self._outputs]
        for name in output_names or ():
            if name not in names:
                raise UsageError(f"there is no output {name!r}", hint=f"outputs: {names}")
        found = self._compiled.run(feeds)
        return [found[name] for name in output_names or names]

    def plan(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan that serves these feeds, for its report."""
        return self._compiled.plan(feeds)

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan compiled so far."""
        return self._compiled.plans

    @property
    def value_inputs(self) -> tuple[str, ...]:
        """Inputs that decide shapes: each of their values has plans of its own."""
        return self._compiled.value_inputs


def _info(info: ValueInfoProto) -> TensorInfo:
    shape: list[int | str | None] = []
    for dim in info.type.tensor_type.shape.dim:
        known: int | str | None = dim.dim_param or None
        shape.append(dim.dim_value if dim.HasField("dim_value") else known)
    return TensorInfo(info.name, shape, type_text(info.type))


def type_text(type: TypeProto) -> str:
    """How runtimes spell a type: `tensor(float)`, `seq(tensor(int64))`."""
    match type.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({_element(type.tensor_type.elem_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({_element(type.sparse_tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({type_text(type.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(type.optional_type.elem_type)})"
        case "map_type":
            key = _element(type.map_type.key_type)
            return f"map({key}, {type_text(type.map_type.value_type)})"
    return "unknown"


def _element(elem_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()
