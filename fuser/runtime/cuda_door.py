"""What a native launch on a GPU needs: the driver's functions by address, the launch's form."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuser.errors import DeviceError, UnsupportedError
from fuser.runtime import driver
from fuser.runtime.arrays import describe
from fuser.runtime.cuda_launch import CudaKernel, stream_for
from fuser.runtime.cuda_maps import fill_maps
from fuser.runtime.door import Record
from fuser.runtime.memory import address
from fuser.runtime.native_words import Door

ATTRIBUTE_BYTES = 72
"""Of a CUlaunchAttribute: its number, and 64 bytes of value from byte 8 on."""
CLUSTER_DIMENSION, STREAM_SERIALIZATION = 4, 6
"""Their numbers: the blocks of a cluster, and that the kernel before need not have ended."""

_FUNCTIONS = {
    Door.LAUNCH: "cuLaunchKernelEx",
    Door.GET_CONTEXT: "cuCtxGetCurrent",
    Door.PUSH_CONTEXT: "cuCtxPushCurrent_v2",
    Door.POP_CONTEXT: "cuCtxPopCurrent_v2",
}


@functools.cache
def _driver() -> dict[Door, int]:
    driver.api()
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return {
            word: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for word, name in _FUNCTIONS.items()
        }
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"the driver's library cannot be called: {error}") from error


@functools.cache
def _current_stream() -> int:
    """The function of PyTorch's C interface that tells the current stream of a device: a third of
    the time of the call in Python. 0 where there is none."""
    folder = Path(sys.modules["torch"].__file__ or "").parent / "lib"
    try:
        library = ctypes.CDLL(str(folder / "libtorch_cuda.so"))
        function = library.aoti_torch_get_current_cuda_stream
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _stream_by(function: int, ordinal: int) -> int | None:
    """The answer of such a function."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
    found = ctypes.c_void_p()
    failed = prototype(function)(ordinal, ctypes.addressof(found))
    return None if failed else found.value or 0


def fill_cuda(record: Record, kernel: CudaKernel, arrays: Sequence[Any]) -> None:
    """The words of a launch of this kernel on arrays like these."""
    compiled = kernel.kernel
    fill_maps(record, kernel)
    for word, pointer in _driver().items():
        record[word] = pointer
    record[Door.CUDA] = 1
    record[Door.FUNCTION] = int(kernel.function)
    record[Door.CONTEXT] = int(driver.context(kernel.ordinal))
    record[Door.BLOCK], record[Door.SHARED] = compiled.threads, compiled.shared_bytes
    asked = [(CLUSTER_DIMENSION, compiled.cluster, 1, 1)] if compiled.cluster > 1 else []
    if compiled.pdl:
        asked.append((STREAM_SERIALIZATION, 1, 0, 0))
    if asked:
        attributes = np.zeros((len(asked), ATTRIBUTE_BYTES // 4), np.uint32)
        attributes[:, [0, 2, 3, 4]] = asked
        record[Door.ATTRIBUTES], record[Door.ATTRIBUTE_COUNT] = address(attributes), len(asked)
        record.keep.append(attributes)
    torch, records = sys.modules.get("torch"), [describe(array) for array in arrays]
    if any(item.device != "cuda" for item in records):
        raise UnsupportedError("an array is not on the GPU")
    if torch is not None and any(item.library == "torch" for item in records):
        # the stream as a number, which Python code asks of PyTorch in the same way
        get = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if get is None:
            raise UnsupportedError("this PyTorch does not tell its current stream")
        ordinal = kernel.ordinal
        record[Door.GET_STREAM], record[Door.ORDINAL] = id(get), id(ordinal)
        record.keep += [get, ordinal]
        function = _current_stream()
        if function and _stream_by(function, ordinal) == get(ordinal):
            record[Door.CURRENT_STREAM], record[Door.DEVICE_NUMBER] = function, ordinal
    if compiled.workspace_bytes:
        stream = stream_for(records, kernel.ordinal)
        record[Door.WORKSPACE] = kernel.workspace(stream)
        record[Door.WORKSPACE_STREAM] = stream
    name = compiled.name

    def failed(status: int) -> None:
        try:
            code: Any = driver.api().CUresult(status)
        except ValueError:
            raise DeviceError(f"cuLaunchKernelEx failed: {status}", where=name) from None
        raise driver.failure("cuLaunchKernelEx", code)

    record[Door.FAILED] = id(failed)
    record.keep.append(failed)
