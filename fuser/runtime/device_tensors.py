"""Tensors on the GPU that cross to and from other libraries, by DLPack and
`__cuda_array_interface__`.

Of a foreign tensor only the address, dtype and shape are read; nothing is copied or converted, so
what does not fit is an error. What fuser hands out is a `DeviceArray`. Sources: the DLPack C header
(version 0.8 layout of DLManagedTensor), Numba's page on the CUDA array interface, version 3.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, DType
from fuser.errors import FeedError
from fuser.runtime import driver
from fuser.runtime.program import TensorSpec

CUDA_DEVICES = (2, 13)
"""DLPack's kDLCUDA and kDLCUDAManaged."""
NO_WAIT = -1
"""DLPack's stream of a consumer that orders the work itself."""
ALIGNMENT = 16
"""What vector loads and tensor maps need."""
_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "bool"}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    """DLTensor; a DLManagedTensor begins with one."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class DeviceArray:
    """A C-contiguous array in GPU memory, freed with the object.

    PyTorch (torch.as_tensor), CuPy (cupy.asarray) and others read it without a copy.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, ordinal: int = 0) -> None:
        self.shape, self.dtype, self.ordinal = shape, dtype.numpy, ordinal
        self.pointer = 0
        self.bytes = int(np.prod(shape, dtype=np.int64)) * dtype.bytes
        with driver.current(ordinal):
            self.pointer = int(driver.call("cuMemAlloc", max(1, self.bytes)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    def numpy(self) -> np.ndarray:
        """A copy in host memory."""
        array = np.empty(self.shape, self.dtype)
        if self.bytes:
            with driver.current(self.ordinal):
                driver.call("cuMemcpyDtoH", array.ctypes.data, self.pointer, self.bytes)
        return array

    def __del__(self) -> None:
        pointer, self.pointer = getattr(self, "pointer", 0), 0
        if pointer:
            try:
                with driver.current(self.ordinal):
                    driver.call("cuMemFree", pointer)
            except Exception:  # the interpreter or the device is going away
                pass


@dataclass(frozen=True)
class DeviceTensor:
    """Where a tensor lies. dtype: fuser's name of it. strides: in elements, None if row-major.
    owner keeps the memory alive. stream: what must be done before the tensor is read (a CUstream),
    where its library says so."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    ordinal: int | None
    owner: Any
    stream: int | None = None

    @property
    def row_major(self) -> bool:
        if self.strides is None or 0 in self.shape:
            return True
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True


def from_dlpack(capsule: Any, owner: Any = None) -> DeviceTensor:
    """What a "dltensor" capsule describes. The capsule is not consumed: kept as the owner, it frees
    the tensor in its own time."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(get(capsule, b"dltensor"))
    name = _KINDS.get(tensor.kind, "?") + ("" if tensor.kind == 6 else str(tensor.bits))
    if tensor.lanes != 1:
        name += f"x{tensor.lanes}"
    return DeviceTensor(
        address=(tensor.data or 0) + tensor.offset,
        dtype=name,
        shape=tuple(tensor.shape[: tensor.rank]),
        strides=tuple(tensor.strides[: tensor.rank]) if tensor.strides else None,
        ordinal=tensor.device.ordinal,
        owner=(capsule, owner),
    )


def from_interface(table: Mapping[str, Any], owner: Any) -> DeviceTensor:
    """What a `__cuda_array_interface__` describes."""
    dtype = np.dtype(table["typestr"])
    strides = table.get("strides")
    # NumPy has no name for bfloat16 and its like: they come as raw bytes
    kind = {"b": "bool", "V": f"raw{8 * dtype.itemsize}"}.get(
        dtype.kind, f"{dtype.kind}{8 * dtype.itemsize}"
    )
    return DeviceTensor(
        address=int(table["data"][0]),
        dtype=kind,
        shape=tuple(table["shape"]),
        strides=tuple(stride // dtype.itemsize for stride in strides) if strides else None,
        ordinal=None,
        owner=owner,
        stream=int(table.get("stream") or 0),
    )


def check_tensors(
    specs: Sequence[TensorSpec], tensors: Mapping[str, Any], ordinal: int, role: str,
    stream: int = NO_WAIT,
) -> list[DeviceTensor]:  # fmt: skip
    """The tensors in the order of specs. role: "input" or "output", for messages. stream: a
    CUstream that DLPack is to make wait for what computes the tensors.

    Raises FeedError for one that is missing, unknown, elsewhere, of another dtype or shape, not
    row-major, or not aligned to 16 bytes.
    """
    names = [spec.name for spec in specs]
    for name in tensors:
        if name not in names:
            known = ", ".join(names)
            raise FeedError(f"unknown {role} {name!r}", hint=f"the {role}s are {known}")
    missing = [name for name in names if name not in tensors]
    if missing:
        raise FeedError(f"missing {role}s: {', '.join(missing)}", hint=f"bind every {role}")
    return [_check(spec, tensors[spec.name], ordinal, role, stream) for spec in specs]


def _check(spec: TensorSpec, given: Any, ordinal: int, role: str, stream: int) -> DeviceTensor:
    where = f"{role} {spec.name!r}"
    tensor = _read(given, where, stream)
    if tensor.ordinal not in (None, ordinal):
        raise FeedError(f"{where} is on GPU {tensor.ordinal}, the plan on GPU {ordinal}")
    same = BY_NAME.get(tensor.dtype) == spec.dtype or tensor.dtype == f"raw{spec.dtype.bits}"
    if not same or tensor.shape != spec.shape:
        raise FeedError(
            f"{where} is {spec}, the tensor is {tensor.dtype}{list(tensor.shape)}",
            hint="tensors of the GPU are used as they are: convert them first",
        )
    if not tensor.row_major:
        raise FeedError(f"{where} is not row-major", hint="pass a contiguous copy of the tensor")
    if spec.bytes and tensor.address % ALIGNMENT:
        raise FeedError(f"{where} does not begin at a multiple of {ALIGNMENT} bytes")
    return tensor


def _read(given: Any, where: str, stream: int) -> DeviceTensor:
    if hasattr(given, "__dlpack_device__"):
        kind, ordinal = given.__dlpack_device__()
        if int(kind) not in CUDA_DEVICES:
            raise FeedError(f"{where} is not on the GPU", hint="plan.run takes arrays of the host")
        if hasattr(given, "detach"):  # what PyTorch records gradients of has no DLPack
            given = given.detach()
        tensor = from_dlpack(given.__dlpack__(stream=stream), given)
        return replace(tensor, ordinal=int(ordinal))
    if hasattr(given, "__cuda_array_interface__"):
        return from_interface(given.__cuda_array_interface__, given)
    raise FeedError(
        f"{where} is a {type(given).__name__}, no GPU array",
        hint="pass what has __dlpack__ or __cuda_array_interface__, or use run() for host arrays",
    )
