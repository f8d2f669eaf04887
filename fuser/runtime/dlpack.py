"""DLPack, both ways: a capsule for memory of ours, and what a capsule of others describes.

    capsule = to_capsule(words, dtype, (CUDA, 0), max_version=(1, 1))  # the consumer's to free
    tensor = from_dlpack(ask(array), array)                            # no copy; kept by its owner

NumPy makes our capsules, of an array that lies where the tensor lies: its destructors and deleters
are native code that minds exceptions in flight, threads without the interpreter's lock and its end.
Device and element type, which NumPy knows less of, are then written in; a capsule that nobody has
seen is its maker's to write. Source: the DLPack C header, version 1.1.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, DType
from fuser.errors import ExportError, FeedError

CPU, CUDA = 1, 2
CUDA_DEVICES = (CUDA, 13)
"""kDLCUDA and kDLCUDAManaged."""
HOST_DEVICES = (CPU, 3)
"""kDLCPU and kDLCUDAHost, which the CPU reads as well."""
NO_WAIT, LEGACY_STREAM = -1, 1
"""Streams: of a consumer that orders the work itself, and the legacy default stream."""
VERSION = (1, 1)
"""The newest layout that is read here, and asked for."""
READ_ONLY, COPIED, PADDED = 1, 2, 4
"""Flags of a versioned capsule. PADDED: elements of less than a byte have a byte each."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_CODES_OF = {
    "bf16": 4, "f8e4m3fn": 10, "f8e4m3fnuz": 11, "f8e5m2": 12, "f8e5m2fnuz": 13, "f4e2m1": 17,
}  # fmt: skip
_SUB_BYTE = {"f4e2m1": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}
_COMPLEX = 5
_KEYS = {
    name: (_CODES_OF.get(name, _CODES[dtype.kind]), _SUB_BYTE.get(name, dtype.bits))
    for name, dtype in BY_NAME.items()
}
"""DLPack's code and bits of an element type."""
_NAMES = {key: name for name, key in _KEYS.items()}
UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Whole numbers by size."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    """DLTensor; a DLManagedTensor begins with one."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _python(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_name = _python("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)


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
    writeable: bool = True

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

    def numpy(self) -> np.ndarray:
        """A view of host memory. Raises FeedError for a type that NumPy has no elements of."""
        dtype = BY_NAME.get(self.dtype)
        if dtype is None:
            raise FeedError(f"an array of {self.dtype}", hint="pass one of a supported dtype")
        return self.words(dtype.bytes).view(dtype.numpy)

    def words(self, size: int) -> np.ndarray:
        """Whole numbers of that size in its memory, wherever that is; they keep the owner."""
        return np.asarray(_Memory(self, size))


class _Memory:
    """A tensor as whole numbers of the same size, for NumPy; a view of it keeps the owner alive."""

    def __init__(self, tensor: DeviceTensor, size: int) -> None:
        self.owner = tensor.owner
        strides = tensor.strides
        self.__array_interface__ = {
            "version": 3,
            "typestr": UNSIGNED[size].str,
            "data": (tensor.address, not tensor.writeable),
            "shape": tensor.shape,
            "strides": None if strides is None else tuple(step * size for step in strides),
        }


def to_capsule(
    array: np.ndarray, dtype: DType, device: tuple[int, int], *,
    max_version: tuple[int, int] | None = None, copied: bool = False,
) -> Any:  # fmt: skip
    """A capsule that keeps what the array keeps until it, or its consumer, lets go. array: whole
    numbers of the size of the dtype, where the tensor lies (`DeviceTensor.words`). max_version: the
    newest layout that the consumer reads; without one it gets the layout before versions, which has
    no flags: read-only memory and elements of less than a byte raise ExportError."""
    padded = dtype.name in _SUB_BYTE
    try:
        capsule = _capsule_of(array, max_version is not None and max_version[0] >= 1)
    except BufferError as error:
        raise ExportError(str(error), hint="use a consumer of DLPack 1.0 or later") from error
    name = _name(capsule)
    if name == b"dltensor_versioned":
        record = _Versioned.from_address(_pointer(capsule, name))
        record.flags |= (COPIED if copied else 0) | (PADDED if padded else 0)
        described = record.tensor
    elif padded:
        raise ExportError(
            f"DLPack has no {dtype.name} without versions",
            hint="use a consumer of DLPack 1.0 or later",
        )
    else:
        described = _Tensor.from_address(_pointer(capsule, name))
    described.device.type, described.device.ordinal = device
    described.code, described.bits = _KEYS[dtype.name]
    return capsule


def _capsule_of(array: np.ndarray, versioned: bool) -> Any:
    if versioned:
        try:
            return array.__dlpack__(max_version=(1, 0))
        except TypeError:  # NumPy before 2.1 has the old layout alone, which every consumer reads
            pass
    return array.__dlpack__()


def ask(array: Any, **how: Any) -> Any:
    """A capsule of another library's array, with versions if it knows them. how: stream."""
    if hasattr(array, "detach"):  # what PyTorch records gradients of has no DLPack
        array = array.detach()
    try:
        return array.__dlpack__(max_version=VERSION, **how)
    except TypeError:
        return array.__dlpack__(**how)


def from_dlpack(capsule: Any, owner: Any = None) -> DeviceTensor:
    """What a capsule describes. It is not consumed: kept as the owner, it frees the tensor in its
    own time. Raises FeedError for one that was consumed, or has a layout of a later version."""
    name = _name(capsule)
    flags = 0
    if name == b"dltensor_versioned":
        record = _Versioned.from_address(_pointer(capsule, name))
        if record.major > VERSION[0]:
            raise FeedError(f"a DLPack capsule of version {record.major}.{record.minor}")
        flags, tensor = record.flags, record.tensor
    elif name == b"dltensor":
        tensor = _Tensor.from_address(_pointer(capsule, name))
    else:
        raise FeedError(
            f"a capsule named {(name or b'').decode()!r}, no DLPack tensor",
            hint="a capsule can be consumed once: make another",
        )
    return DeviceTensor(
        address=(tensor.data or 0) + tensor.offset,
        dtype=_dtype_name(tensor, bool(flags & PADDED)),
        shape=tuple(tensor.shape[: tensor.rank]),
        strides=tuple(tensor.strides[: tensor.rank]) if tensor.strides else None,
        ordinal=tensor.device.ordinal,
        owner=(capsule, owner),
        writeable=not flags & READ_ONLY,
    )


def host_view(array: Any) -> np.ndarray:
    """An array of another library that is in host memory, without a copy. Raises FeedError."""
    kind = int(array.__dlpack_device__()[0]) if hasattr(array, "__dlpack_device__") else CPU
    if kind not in HOST_DEVICES:
        where = "GPU memory" if kind in CUDA_DEVICES else f"memory of DLPack's kind {kind}"
        raise FeedError(
            f"a {type(array).__name__} in {where}", hint="copy it to the host, or use run_device()"
        )
    return from_dlpack(ask(array), array).numpy()


def _dtype_name(tensor: _Tensor, padded: bool) -> str:
    """fuser's name, or one that says what it is."""
    name = _NAMES.get((tensor.code, tensor.bits))
    if name is None:
        kind = "complex" if tensor.code == _COMPLEX else f"dlpack{tensor.code}_"
        name = f"{kind}{tensor.bits}"
    elif name in _SUB_BYTE and not padded:
        name += " (packed)"
    return name if tensor.lanes == 1 else f"{name}x{tensor.lanes}"
