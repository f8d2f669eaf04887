"""Where `fuser.runtime.plan_loop` has its buffers on a GPU: device memory and one stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import UsageError
from fuser.runtime import driver
from fuser.runtime.cuda import CudaExecutor
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.program import TensorSpec


class DeviceSpace:
    """Buffers of a plan on a GPU. All goes over one stream of its own, in order; `fetch` waits for
    it, everything else returns at once.

    Raises DeviceError or OutOfMemoryError, as each call may.
    """

    shares = False

    def __init__(self, executor: Any) -> None:
        if not isinstance(executor, CudaExecutor):
            raise UsageError("the plan is not for a GPU")
        self._executor = executor
        self._uploading: list[np.ndarray] = []  # kept until the copies are over
        with driver.current(executor.ordinal):
            flag = driver.api().CUstream_flags.CU_STREAM_NON_BLOCKING.value
            self._stream = driver.call("cuStreamCreate", flag)

    def allocate(self, spec: TensorSpec) -> DeviceArray:
        return DeviceArray(spec.shape, spec.dtype, self._executor.ordinal)

    def place(self, spec: TensorSpec, array: np.ndarray) -> DeviceArray:
        return self.write(self.allocate(spec), array)

    def write(self, buffer: DeviceArray, array: np.ndarray) -> DeviceArray:
        if buffer.bytes:
            array = np.ascontiguousarray(array)
            self._uploading.append(array)
            with driver.current(self._executor.ordinal):
                source, size = array.ctypes.data, buffer.bytes
                driver.call("cuMemcpyHtoDAsync", buffer.pointer, source, size, self._stream)
        return buffer

    def run(self, sources: Sequence[DeviceArray], targets: Sequence[DeviceArray]) -> None:
        read, written = [item.pointer for item in sources], [item.pointer for item in targets]
        self._executor.run_at(read, written, int(self._stream))

    def fetch(self, buffers: Sequence[DeviceArray]) -> list[np.ndarray]:
        """Copies in host memory, after all that came before."""
        arrays = [np.empty(item.shape, item.dtype) for item in buffers]
        with driver.current(self._executor.ordinal):
            for array, item in zip(arrays, buffers, strict=True):
                if item.bytes:
                    target, size = array.ctypes.data, item.bytes
                    driver.call("cuMemcpyDtoHAsync", target, item.pointer, size, self._stream)
            driver.call("cuStreamSynchronize", self._stream)
        self._uploading.clear()
        return arrays

    def close(self) -> None:
        """Wait for the stream and free it; buffers go with their last reference."""
        with driver.current(self._executor.ordinal):
            driver.api().cuStreamSynchronize(self._stream)  # unchecked: on the way out
            driver.api().cuStreamDestroy(self._stream)
