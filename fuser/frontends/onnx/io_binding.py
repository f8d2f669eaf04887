"""Bound inputs and outputs: what a run reads and where it writes, kept from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fuser.errors import UsageError
from fuser.frontends.onnx.values import OrtValue, check_host, memory_at, numpy_type
from fuser.runtime.feeds import host_array


class Session(Protocol):
    """What a binding is for."""

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any
    ) -> list[Any]:
        """The named outputs."""


class IOBinding:
    """Inputs and outputs in host memory, bound by name; `session.run_with_iobinding` runs them.

    An output without an address gets a new array in every run. Raises DeviceError for memory of a
    GPU.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, np.ndarray | None] = {}
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
        check_host(device_type)
        self._inputs[name] = memory_at(buffer_ptr, shape, numpy_type(element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[name] = ortvalue.numpy()

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Without an address, what the run makes; else the memory that it writes. Raises
        UsageError."""
        check_host(device_type)
        if buffer_ptr is None:
            self._targets[name] = None
            return
        if element_type is None or shape is None:
            raise UsageError(f"output {name!r} at an address needs element_type and shape")
        self._targets[name] = memory_at(buffer_ptr, shape, numpy_type(element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._targets[name] = np.asarray(ortvalue.numpy())

    def synchronize_inputs(self) -> None:
        """Nothing waits: a run reads its inputs before it returns."""

    def synchronize_outputs(self) -> None:
        """Nothing waits: a run is over when it returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order of their binding."""
        return [self._outputs[name] for name in self._targets if name in self._outputs]

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays of their own."""
        values = [value.numpy() for value in self.get_outputs()]
        return [value.copy() if isinstance(value, np.ndarray) else value for value in values]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._targets.clear()
        self._outputs.clear()

    def run(self, run_options: Any = None) -> None:
        """Run the session. Raises UsageError where an output does not fit what is bound."""
        if not self._targets:
            raise UsageError("no output is bound", hint="io_binding.bind_output(name)")
        results = self._session.run(list(self._targets), self._inputs, run_options)
        for (name, target), result in zip(self._targets.items(), results, strict=True):
            if target is None:
                self._outputs[name] = OrtValue(result)
                continue
            _store(name, target, result)
            self._outputs[name] = OrtValue(target)


def _store(name: str, target: np.ndarray, result: Any) -> None:
    array = host_array(result)
    if (target.shape, target.dtype) != (array.shape, array.dtype):
        raise UsageError(
            f"output {name!r} is {array.dtype}{list(array.shape)},"
            f" what is bound is {target.dtype}{list(target.shape)}"
        )
    np.copyto(target, array)
