"""fuser as a backend of the onnx package: `fuser.onnx_backend.prepare(model).run(inputs)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep

from fuser.errors import DeviceError, FuserError, UsageError
from fuser.frontends.onnx.importer.inference import inferred
from fuser.frontends.onnx.session import InferenceSession
from fuser.pipeline.devices import Device


class FuserRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs. inputs: arrays in the order of the model's inputs, one array, or a dict."""
        if not isinstance(inputs, dict):
            arrays = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
            names = [info.name for info in self.session.get_inputs()]
            if len(arrays) > len(names):
                raise UsageError(f"{len(arrays)} arrays for {len(names)} inputs")
            inputs = dict(zip(names, arrays, strict=False))
        return tuple(self.session.run(None, inputs))


class FuserBackend(Backend):
    """The interface of `onnx.backend.base.Backend`. fusion: False compiles every operator alone."""

    fusion = True

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be read; what it needs may still depend on the feeds."""
        try:
            InferenceSession(model, device=_device(device))
        except FuserError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> FuserRep:
        return FuserRep(InferenceSession(model, device=_device(device), fusion=cls.fusion))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """One operator as a model. opset_version: by default the newest known."""
        names = [name for name in node.input if name]
        arrays = [np.asarray(array) for array in inputs]
        feeds = dict(zip(dict.fromkeys(names), arrays, strict=True))
        infos = [_value_info(name, array.dtype, array.shape) for name, array in feeds.items()]
        outputs = [name for name in node.output if name]
        known = list(outputs_info or ())
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            infos,
            [_value_info(name, *info) for name, info in zip(outputs, known, strict=True)]
            if known
            else [onnx.ValueInfoProto(name=name) for name in outputs],
        )
        opset = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        imports = [onnx.helper.make_opsetid(node.domain, opset)]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        return cls.run_model(_with_output_types(model), feeds, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        if device == "CPU":
            return True
        if device.partition(":")[0] != "CUDA":
            return False
        from fuser.runtime import cuda

        try:
            cuda.device_target()
        except (DeviceError, ImportError):
            return False
        return True


def _device(device: str) -> Device:
    """CPU, CUDA or CUDA:0. Raises UsageError."""
    name = device.partition(":")[0]
    if name not in ("CPU", "CUDA"):
        raise UsageError(f"unknown device {device!r}", hint="use CPU or CUDA")
    return "cuda" if name == "CUDA" else "cpu"


def _value_info(name: str, dtype: np.dtype, shape: Sequence[int]) -> onnx.ValueInfoProto:
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, elem_type, list(shape))


def _with_output_types(model: ModelProto) -> ModelProto:
    """The model with the types of its outputs inferred where they are missing."""
    if all(output.HasField("type") for output in model.graph.output):
        return model
    return inferred(model)


prepare = FuserBackend.prepare
run_model = FuserBackend.run_model
run_node = FuserBackend.run_node
supports_device = FuserBackend.supports_device
is_compatible = FuserBackend.is_compatible
