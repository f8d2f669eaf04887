"""Bound inputs and outputs: what a run reads and where it writes, kept from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from fuser.errors import UsageError
from fuser.frontends.onnx.values import (
    GPU,
    OrtDevice,
    OrtValue,
    Tensor,
    is_on_gpu,
    memory_at,
    numpy_type,
    on_gpu,
    on_host,
    store,
)
from fuser.runtime import driver
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.feeds import host_array

Target: TypeAlias = "Tensor | OrtDevice"
"""Where an output goes: into an array, or a new one on a device."""


class Session(Protocol):
    """What a binding is for."""

    def run_bound(
        self, feeds: Mapping[str, Any], targets: Mapping[str, Target], run_options: Any
    ) -> list[Any]:
        """The outputs in the order of the targets, wherever they are; those that are targets on the
        GPU may be written already."""


class IOBinding:
    """Inputs and outputs in host memory or on a GPU, bound by name; `session.run_with_iobinding`
    runs them.

    An output without an address gets a new array in every run. What lies elsewhere than the session
    runs is copied. A run begins when what is on the GPU's default stream is done, and is over when
    it returns. Raises DeviceError for another device, or without a GPU.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, Target] = {}
        self._outputs: dict[str, OrtValue] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """An array is read when the session runs."""
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any,
        shape: Sequence[int], buffer_ptr: int,
    ) -> None:  # fmt: skip
        """Memory at an address, which the caller keeps alive. element_type: of NumPy, or ONNX's
        number."""
        device = OrtDevice.make(device_type, device_id)
        self._inputs[name] = memory_at(buffer_ptr, shape, numpy_type(element_type), device)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value, where it is."""
        self._inputs[name] = ortvalue.value

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Without an address, what the run makes; else the memory that it writes. Raises
        UsageError."""
        device = OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._targets[name] = device
            return
        if element_type is None or shape is None:
            raise UsageError(f"output {name!r} at an address needs element_type and shape")
        self._targets[name] = memory_at(buffer_ptr, shape, numpy_type(element_type), device)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output into a tensor, where it is. Raises UsageError for what is no tensor."""
        self._targets[name] = ortvalue.tensor

    def synchronize_inputs(self) -> None:
        """Wait for what computes inputs on GPUs, whatever stream it is on."""
        for ordinal in {v.ordinal for v in self._inputs.values() if isinstance(v, DeviceArray)}:
            with driver.current(ordinal):
                driver.synchronize()

    def synchronize_outputs(self) -> None:
        """Nothing waits: a run is over when it returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order of their binding."""
        return [self._outputs[name] for name in self._targets if name in self._outputs]

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays of their own."""
        return [
            value.numpy().copy() if value.device_name() != GPU and value.is_tensor()
            else value.numpy()
            for value in self.get_outputs()
        ]  # fmt: skip

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs, and what the last run made."""
        self._targets.clear()
        self._outputs.clear()

    def run(self, run_options: Any = None) -> None:
        """Run the session. Raises UsageError where an output does not fit what is bound."""
        if not self._targets:
            raise UsageError("no output is bound", hint="io_binding.bind_output(name)")
        results = self._session.run_bound(self._inputs, self._targets, run_options)
        for (name, target), result in zip(self._targets.items(), results, strict=True):
            self._outputs[name] = OrtValue(_delivered(name, target, result))


def _delivered(name: str, target: Target, result: Any) -> Any:
    """The result where it is wanted. Raises UsageError where it does not fit."""
    if result is target:
        return target
    if isinstance(target, OrtDevice) and is_on_gpu(target):
        if isinstance(result, DeviceArray) and result.ordinal == target.device_id():
            return result
        if not isinstance(on_host(result), np.ndarray):
            raise UsageError(f"output {name!r} is no tensor", hint="bind it on the cpu")
        return on_gpu(np.ascontiguousarray(on_host(result)), target.device_id())
    if isinstance(target, OrtDevice):
        return on_host(result)
    store(f"what is bound for output {name!r}", target, host_array(on_host(result)))
    return target
