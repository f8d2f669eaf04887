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

from fuser.config import within
from fuser.errors import UnsupportedError, UsageError
from fuser.frontends.onnx.host import Segmented
from fuser.frontends.onnx.importer import load_model
from fuser.frontends.onnx.model import Model, open_model
from fuser.limits import Limits
from fuser.pipeline.devices import Device
from fuser.pipeline.precision import Precision
from fuser.pipeline.specialise import Specialised
from fuser.runtime.plan import Plan
from fuser.runtime.shown import MOST_ROWS, Shown, Summary, counted, specs_shown

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto, ValueInfoProto


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. shape: ints, names of symbolic dims, and None where nothing is known;
    type is spelt `tensor(float)`."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class _Options:
    device: Device
    fusion: bool
    threads: int | None
    precision: Precision


class InferenceSession(Shown):
    """A model that is compiled for the feeds it meets.

    model, device, threads, fusion, precision, limits: as for `fuser.compile`. fallback: what cannot
    be compiled runs on the host (frontends/onnx/host.py) instead of being an error; `fallbacks`
    lists it.
    Raises UsageError, InvalidModelError, LimitError; `run` raises what compiling raises.
    """

    def __init__(
        self,
        model: str | Path | bytes | ModelProto | Model,
        *,
        device: Device = "auto",
        threads: int | None = None,
        fusion: bool = True,
        precision: Precision = "model",
        fallback: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits
        with within(limits):
            self._open(model, _Options(device, fusion, threads, precision), fallback)

    def _open(
        self, model: str | Path | bytes | ModelProto | Model, options: _Options, fallback: bool
    ) -> None:
        proto = model.proto if isinstance(model, Model) else load_model(model)
        held = {tensor.name for tensor in proto.graph.initializer}
        self._inputs = [_info(i) for i in proto.graph.input if i.name not in held]
        self._outputs = [_info(i) for i in proto.graph.output]
        self._fallback = fallback
        self._how: Specialised | Segmented
        self._options = options
        try:
            opened = model if isinstance(model, Model) else open_model(proto)
            self._how = Specialised(opened, **vars(self._options), write_out_loops=not fallback)
        except UnsupportedError:
            if not fallback:
                raise
            self._how = Segmented(proto, **vars(self._options))
        self._proto = proto

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
        with within(self._limits):
            found = self._run(feeds)
        return [found[name] for name in output_names or names]

    def _run(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._how.run(feeds)
        except UnsupportedError:
            if not self._fallback or isinstance(self._how, Segmented):
                raise
        self._how = Segmented(self._proto, **vars(self._options))
        return self._how.run(feeds)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The operators that ran on the host so far."""
        return tuple(self._how.fallbacks) if isinstance(self._how, Segmented) else ()

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan compiled so far."""
        return tuple(self._how.plans)

    def _summary(self) -> Summary:
        def shown(info: TensorInfo) -> tuple[str, str]:
            sizes = ("?" if size is None else str(size) for size in info.shape)
            return info.name, f"{info.type}[{', '.join(sizes)}]"

        inputs, outputs = map(shown, self.get_inputs()), map(shown, self.get_outputs())
        plans = self.plans
        facts = [("device", plans[0].device_name if plans else str(self._options.device))]
        for plan in plans:
            fed = ", ".join(f"{name} {type}" for name, type in specs_shown(plan.inputs))
            facts.append((counted(plan.launches, "kernel"), fed))
        short = [str(self._options.device), counted(len(plans), "plan")]
        return Summary("", list(inputs), list(outputs), facts[: MOST_ROWS + 1], short)

    @property
    def value_inputs(self) -> tuple[str, ...]:
        """Inputs that decide shapes: each of their values has plans of its own."""
        return self._how.value_inputs if isinstance(self._how, Specialised) else ()


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
