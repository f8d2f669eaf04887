"""Launching one GPU kernel on memory of a caller, on a stream of the caller.

The kernel runs in the device's primary context, which PyTorch and the CUDA runtime use, too. Which
stream: PyTorch's current stream where an argument is a PyTorch tensor, else the legacy default
stream, which waits for and holds back the other streams that block. What another library computes
on a stream that it names is waited for first.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuser.backend.module import CompiledKernel
from fuser.base.forks import new_lock
from fuser.errors import UsageError
from fuser.runtime import driver
from fuser.runtime.arrays import ArrayRecord
from fuser.runtime.cuda import launch_attributes
from fuser.runtime.device_code import load_modules, tensor_map
from fuser.runtime.dlpack import LEGACY_STREAM
from fuser.runtime.geometry import Geometry

DEFAULT_STREAMS = (0, LEGACY_STREAM)


class CudaKernel:
    """A loaded kernel. Many threads may launch it at the same time. Code stays loaded until
    `close`: nothing may be unloaded while some stream is being captured."""

    def __init__(self, kernel: CompiledKernel, ordinal: int = 0) -> None:
        """Raises DeviceError, or CompileError where the driver refuses the code."""
        self.kernel = kernel
        self.ordinal = ordinal
        self.geometry = Geometry(kernel)
        with driver.current(ordinal):
            self._module = load_modules([kernel])[kernel.code]
            self.function = self._module.function(kernel)
        self._workspaces: dict[int, int] = {}
        self._lock = new_lock()

    @property
    def facts(self) -> dict[str, Any]:
        """What the driver says of the code: registers, local_bytes, log, warnings."""
        return self._module.facts

    def launch(
        self,
        pointers: Sequence[int],
        grid: Sequence[int] | None = None,
        values: Mapping[str, int] | None = None,
        scalars: Sequence[int] = (),
        stream: int = 0,
    ) -> None:
        """Put the kernel on a stream and return at once. The arguments are those of
        `CpuKernel.launch`. Raises UsageError, DeviceError."""
        placed = self.geometry.at(grid, values or {})
        if len(scalars) != len(self.geometry.scalars):
            raise UsageError(
                f"{len(scalars)} scalars for {len(self.geometry.scalars)}", where=self.kernel.name
            )
        if not placed.programs:
            return
        kernel, cu = self.kernel, driver.api()
        with driver.current(self.ordinal):
            maps = [tensor_map(item, pointers[item.argument]) for item in placed.maps]
            memory = [self.workspace(stream)] if kernel.workspace_bytes else []
            numbers = (*placed.sizes, *scalars)
            arguments = (*pointers, *memory, *maps, *numbers)
            types = (
                *[ctypes.c_void_p] * (len(pointers) + len(memory)),
                *[None] * len(maps),
                *[ctypes.c_int64] * len(numbers),
            )
            config = cu.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = placed.launch
            config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
            config.sharedMemBytes = kernel.shared_bytes
            config.hStream = stream
            config.attrs = launch_attributes(kernel.cluster, kernel.pdl)
            config.numAttrs = len(config.attrs)
            driver.call("cuLaunchKernelEx", config, self.function, (arguments, types), 0)

    def workspace(self, stream: int) -> int:
        """Device memory that launches on this stream have for themselves, one after another."""
        with self._lock:
            if stream not in self._workspaces:
                with driver.current(self.ordinal):
                    made = int(driver.call("cuMemAlloc", self.kernel.workspace_bytes))
                self._workspaces[stream] = made
            return self._workspaces[stream]

    def close(self) -> None:
        """Unload the code and free the memory; launches under way are waited for."""
        with driver.current(self.ordinal):
            driver.synchronize()
            for pointer in self._workspaces.values():
                driver.call("cuMemFree", pointer)
            self._workspaces.clear()
            driver.call("cuModuleUnload", self._module.handle)


def stream_for(records: Iterable[ArrayRecord], ordinal: int) -> int:
    """The stream to launch on, for these arrays: see the module. It waits for what computes the
    arrays of libraries that name another stream."""
    found = list(records)
    torch = sys.modules.get("torch")
    stream = 0
    if torch is not None and any(record.library == "torch" for record in found):
        stream = int(torch.cuda.current_stream(ordinal).cuda_stream)
    others = {record.stream for record in found} - {None, stream}
    if stream in DEFAULT_STREAMS:
        others -= set(DEFAULT_STREAMS)
    for other in others:
        with driver.current(ordinal):
            driver.call("cuStreamSynchronize", other)
    return stream
