"""Run one compiled kernel on a GPU through the CUDA driver: a test helper, not the runtime."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.runtime.device_code import tensor_map
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value

try:
    from cuda.bindings import driver as cuda
except ImportError:  # the tests that need it skip themselves
    cuda = None


class LaunchError(RuntimeError):
    """A driver call failed."""


def check(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise LaunchError(str(code))
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def context() -> Any:
    """The primary context of device 0, made current; None without a device."""
    if cuda is None:
        return None
    try:
        check(cuda.cuInit(0))
        device = check(cuda.cuDeviceGet(0))
        made = check(cuda.cuDevicePrimaryCtxRetain(device))
        check(cuda.cuCtxSetCurrent(made))
        return made
    except LaunchError:
        return None


class Loaded:
    """A kernel on the device. `log` is what the driver's compiler said."""

    def __init__(self, compiled: CompiledKernel) -> None:
        context()
        self.compiled = compiled
        options = cuda.CUjit_option
        size = 1 << 14
        buffers = [bytearray(size), bytearray(size)]
        self.module, self.log = self._load(compiled, options, buffers, size)
        self.function = check(cuda.cuModuleGetFunction(self.module, compiled.entry.encode()))
        if compiled.shared_bytes > 48 << 10:
            attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(self.function, attribute, compiled.shared_bytes))
        self.workspace = 0
        if compiled.workspace_bytes:
            self.workspace = int(check(cuda.cuMemAlloc(compiled.workspace_bytes)))

    @staticmethod
    def _load(compiled: CompiledKernel, options: Any, buffers: Any, size: int) -> tuple[Any, str]:
        names = [
            options.CU_JIT_INFO_LOG_BUFFER, options.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            options.CU_JIT_LOG_VERBOSE,
        ]  # fmt: skip
        values = [buffers[0], size, buffers[1], size, 1]
        result = cuda.cuModuleLoadDataEx(compiled.code + b"\0", len(names), names, values)
        text = "".join(bytes(b).split(b"\0")[0].decode() for b in buffers)
        if result[0] != cuda.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"{result[0]}: {text}")
        return result[1], text

    def launch(
        self,
        pointers: list[int],
        stream: int = 0,
        scalars: Sequence[int] = (),
        overlap: bool = False,
    ) -> None:
        """Launch on device pointers, one a buffer in kernel order. scalars: their raw bits.
        overlap: under the end of the kernel in front, where the kernel waits for that itself."""
        c = self.compiled
        maps = [tensor_map(item, pointers[item.argument]) for item in c.tensor_maps]
        if c.workspace_bytes:
            pointers = [*pointers, self.workspace]
        numbers = [*c.sizes, *scalars]
        values = (*pointers, *maps, *numbers)
        types = (
            *[ctypes.c_void_p] * len(pointers), *[None] * len(maps),
            *[ctypes.c_int64] * len(numbers),
        )  # fmt: skip
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = c.launch
        config.blockDimX, config.blockDimY, config.blockDimZ = c.threads, 1, 1
        config.sharedMemBytes, config.hStream = c.shared_bytes, stream
        attributes = []
        if c.cluster > 1:
            attribute, value = cuda.CUlaunchAttribute(), cuda.CUlaunchAttributeValue()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dims = value.clusterDim
            dims.x, dims.y, dims.z = c.cluster, 1, 1
            attribute.value = value
            attributes.append(attribute)
        if overlap and c.pdl:
            attribute, value = cuda.CUlaunchAttribute(), cuda.CUlaunchAttributeValue()
            attribute.id = (
                cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        check(cuda.cuLaunchKernelEx(config, self.function, (values, types), 0))


def raw_bits(value: Value, number: float | int | bool) -> int:
    """A number of a launch as its parameter."""
    data = np.asarray(number, value.dtype.numpy).tobytes()
    return int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)


def run_on_device(
    kernel: Kernel,
    compiled: CompiledKernel,
    arrays: dict[str, np.ndarray],
    launches: int = 1,
    scalars: Mapping[str, float | int | bool] | None = None,
) -> dict[str, np.ndarray]:
    """Copy the arrays in, launch one time or more, and copy every buffer back. Buffers that have
    one array share its memory."""
    loaded = Loaded(compiled)
    pointers: list[int] = []
    numbers = [raw_bits(value, (scalars or {})[value.name]) for value in kernel.scalars]
    placed: dict[int, int] = {}
    for buffer in kernel.buffers:
        if id(arrays[buffer.name]) in placed:
            pointers.append(placed[id(arrays[buffer.name])])
            continue
        array = np.ascontiguousarray(arrays[buffer.name])
        # 256 guard bytes on each side would hide nothing here: views are bounds checked elsewhere
        pointer = check(cuda.cuMemAlloc(max(16, array.nbytes)))
        check(cuda.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        pointers.append(int(pointer))
        placed[id(arrays[buffer.name])] = int(pointer)
    try:
        for _ in range(launches):
            loaded.launch(pointers, scalars=numbers)
        check(cuda.cuCtxSynchronize())
        results = {}
        for buffer, pointer in zip(kernel.buffers, pointers, strict=True):
            array = np.empty_like(arrays[buffer.name])
            check(cuda.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
            results[buffer.name] = array
        return results
    finally:
        for pointer in placed.values():
            cuda.cuMemFree(pointer)
