"""Run one compiled kernel on a GPU through the CUDA driver: a test helper, not the runtime."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.tilegen.ir import Kernel

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

    def launch(self, pointers: list[int], stream: int = 0) -> None:
        """Launch on device pointers, one a buffer in kernel order."""
        c = self.compiled
        maps = [encode(tensor, pointers) for tensor in c.tensor_maps]
        values = (*pointers, *maps)
        types = (*[ctypes.c_void_p] * len(pointers), *[None] * len(maps))
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = c.launch
        config.blockDimX, config.blockDimY, config.blockDimZ = c.threads, 1, 1
        config.sharedMemBytes, config.hStream = c.shared_bytes, stream
        if c.cluster > 1:
            attribute, value = cuda.CUlaunchAttribute(), cuda.CUlaunchAttributeValue()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dims = value.clusterDim
            dims.x, dims.y, dims.z = c.cluster, 1, 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        check(cuda.cuLaunchKernelEx(config, self.function, (values, types), 0))


_MAP_TYPES = {
    "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32",
    "u8": "UINT8", "i8": "UINT8", "bool": "UINT8", "u16": "UINT16", "i16": "UINT16",
}  # fmt: skip


def encode(tensor: TensorMap, pointers: list[int]) -> Any:
    """The 128-byte descriptor of a tensor map."""
    prefix = "CU_TENSOR_MAP_"
    data_type = getattr(cuda.CUtensorMapDataType, f"{prefix}DATA_TYPE_{_MAP_TYPES[tensor.dtype]}")
    size = {"f32": 4, "i32": 4, "f64": 8, "u8": 1, "i8": 1, "bool": 1}.get(tensor.dtype, 2)
    swizzle = getattr(
        cuda.CUtensorMapSwizzle,
        f"{prefix}SWIZZLE_" + (f"{tensor.swizzle}B" if tensor.swizzle else "NONE"),
    )
    rank = len(tensor.shape)
    return check(
        cuda.cuTensorMapEncodeTiled(
            data_type,
            rank,
            pointers[tensor.argument] + tensor.offset * size,
            [cuda.cuuint64_t(extent) for extent in tensor.shape],
            [cuda.cuuint64_t(stride * size) for stride in tensor.strides],
            [cuda.cuuint32_t(extent) for extent in tensor.box],
            [cuda.cuuint32_t(1)] * rank,
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


def run_on_device(
    kernel: Kernel, compiled: CompiledKernel, arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Copy the arrays in, launch once, and copy every buffer back."""
    loaded = Loaded(compiled)
    pointers = []
    for buffer in kernel.buffers:
        array = np.ascontiguousarray(arrays[buffer.name])
        # 256 guard bytes on each side would hide nothing here: views are bounds checked elsewhere
        pointer = check(cuda.cuMemAlloc(max(16, array.nbytes)))
        check(cuda.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        pointers.append(int(pointer))
    try:
        loaded.launch(pointers)
        check(cuda.cuCtxSynchronize())
        results = {}
        for buffer, pointer in zip(kernel.buffers, pointers, strict=True):
            array = np.empty_like(arrays[buffer.name])
            check(cuda.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
            results[buffer.name] = array
        return results
    finally:
        for pointer in pointers:
            cuda.cuMemFree(pointer)
