"""What a launch must know of an array of a caller, whatever library made it.

    record = describe(array, "x")
    record.address, record.dtype, record.shape, record.strides, record.device
    overlaps([record, other])  # groups of arrays that share memory

Nothing is copied or converted: a kernel reads and writes the memory where it is. What a kernel
could not use in place is an error. PyTorch is recognised when the program has imported it, and
never imported here. Sources: NumPy's array interface (version 3), Numba's page on the CUDA array
interface (version 3), the DLPack C header.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fuser.dtypes import BY_NAME, COMPLEX_HINT, DType
from fuser.errors import FeedError, UnsupportedDTypeError
from fuser.runtime import driver
from fuser.runtime.device_tensors import DeviceArray, HostArray, from_interface
from fuser.runtime.dlpack import CUDA_DEVICES, HOST_DEVICES, LEGACY_STREAM, ask, from_dlpack

_BY_NUMPY = {dtype.numpy: dtype for dtype in BY_NAME.values()}
_TORCH_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint64": "u64", "uint32": "u32",
    "uint16": "u16", "uint8": "u8", "bool": "bool", "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2": "f8e5m2", "float8_e5m2fnuz": "f8e5m2fnuz",
}  # fmt: skip

ALL_MEMORY = 1 << 62


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """An array in memory.

    address: of the element [0, ..., 0]. strides: in elements. ordinal: the GPU's number, 0 on the
    CPU. storage: the bytes [start, end) that the array's storage owns, at least those of its
    elements: the memory that a kernel may reach from this array. stream: a CUDA stream that the
    array's library says computes it. owner: keeps the memory alive.
    """

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: Literal["cpu", "cuda"]
    ordinal: int
    storage: tuple[int, int]
    writeable: bool
    library: str
    owner: Any = field(repr=False, compare=False)
    stream: int | None = None

    @property
    def place(self) -> str:
        """Where it is, as messages say it."""
        return "the CPU" if self.device == "cpu" else f"GPU {self.ordinal}"

    @property
    def ends(self) -> bool:
        """Whether the storage is known to end where `storage` says: what NumPy was given by
        something else, or what a protocol tells of, may be a part of more."""
        if self.library != "numpy":
            return self.library in ("torch", "fuser")
        base = self.owner
        while isinstance(base, np.ndarray):
            base = base.base
        return base is None

    def require(
        self, name: str, *, writes: bool, device: str, ordinal: int = 0, kernel: str = ""
    ) -> None:
        """Raise FeedError unless a kernel on this device can use it, and write it if it does. name:
        that of the argument; kernel: that of the kernel, for the error."""
        wanted = "the CPU" if device == "cpu" else f"GPU {ordinal}"
        if self.place != wanted:
            raise FeedError(
                f"{name} is on {self.place}, the kernel runs on {wanted}",
                where=kernel,
                hint="put every array of a launch on one device",
            )
        if writes and not self.writeable:
            raise FeedError(
                f"{name} is read-only, and the kernel writes it",
                where=kernel,
                hint="pass an array of your own, such as a copy",
            )


def describe(array: Any, where: str = "the array") -> ArrayRecord:
    """The record of a NumPy array, a PyTorch tensor, one of fuser's device arrays, or an object
    with `__cuda_array_interface__`, `__array_interface__` or `__dlpack__`, or with an address as
    PyTorch's tensors have it: `data_ptr()`, `dtype`, `device`. where: names it in messages. Raises
    FeedError and UnsupportedDTypeError."""
    if isinstance(array, np.ndarray):
        return _describe_numpy(array, where)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, getattr(torch, "Tensor", ())):
        return _describe_torch(torch, array, where)
    if isinstance(array, DeviceArray):
        table, ordinal = array.__cuda_array_interface__, array.ordinal
        return _from_table(table, array, where, ordinal, "fuser", array.type)
    if isinstance(array, HostArray):
        return _describe_numpy(array.numpy(), where, "fuser", array)
    if isinstance(array, np.generic):
        raise _no_array(array, where)
    library = type(array).__module__.partition(".")[0]
    if hasattr(array, "__cuda_array_interface__"):
        return _from_table(array.__cuda_array_interface__, array, where, None, library)
    if hasattr(array, "__array_interface__"):
        return _describe_numpy(np.asarray(array), where, library, array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _describe_dlpack(array, where, library)
    if _has_address(array):
        return _describe_address(array, where, library)
    raise _no_array(array, where)


def is_array(value: object) -> bool:
    """Whether `describe` takes it for an array (which may still be one that no kernel can use)."""
    if isinstance(value, np.generic):
        return False
    if isinstance(value, np.ndarray | DeviceArray):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return True
    if isinstance(value, type):
        return False
    names = ("__cuda_array_interface__", "__array_interface__", "__dlpack__")
    return any(hasattr(type(value), name) for name in names) or _has_address(value)


def _has_address(value: object) -> bool:
    """Whether it tells where its memory is, and of what type it is, as PyTorch's tensors do."""
    return callable(getattr(type(value), "data_ptr", None)) and all(
        hasattr(value, name) for name in ("dtype", "device")
    )


def overlaps(records: Sequence[ArrayRecord]) -> tuple[int, ...]:
    """For each record 0 if its storage shares no memory with another's, else the number of its
    group, from 1 on: records of one group may overlap, those of different groups do not.

    By storage, not by elements: a kernel may go from one row of an array to the next.
    """
    order = sorted(
        (i for i, record in enumerate(records) if record.storage[0] < record.storage[1]),
        key=lambda i: (records[i].place, records[i].storage),
    )
    groups = [0] * len(records)
    count, end, last = 0, 0, -1
    for i in order:
        start, stop = records[i].storage
        if last >= 0 and records[last].place == records[i].place and start < end:
            if not groups[last]:
                count += 1
                groups[last] = count
            groups[i] = groups[last]
            end = max(end, stop)
        else:
            end = stop
        last = i
    return tuple(groups)


def _no_array(array: object, where: str) -> FeedError:
    return FeedError(
        f"{where} is a {type(array).__module__}.{type(array).__name__}, no array",
        hint="pass a NumPy array, a PyTorch tensor, or what has __dlpack__",
    )


# NumPy ------------------------------------------------------------------------------------------


def _describe_numpy(
    array: np.ndarray, where: str, library: str = "numpy", owner: object = None
) -> ArrayRecord:
    if isinstance(array, np.ma.MaskedArray):
        raise FeedError(
            f"{where} is a masked array", hint="kernels know no masks: pass array.filled(...)"
        )
    dtype = _numpy_dtype(array.dtype, where)
    if any(stride % dtype.bytes for stride in array.strides):
        raise FeedError(
            f"{where} has strides of {array.strides} bytes, no multiples of its {dtype.bytes}-byte "
            "elements",
            hint="pass a contiguous copy",
        )
    address: int = array.__array_interface__["data"][0]
    low, high = _span(address, array.shape, array.strides, dtype.bytes)
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    start, end = _span(
        base.__array_interface__["data"][0], base.shape, base.strides, base.dtype.itemsize
    )
    if not (start <= low and high <= end):  # an array that somebody made of an address
        start, end = low, high
    strides = tuple(stride // dtype.bytes for stride in array.strides)
    return ArrayRecord(
        address, dtype, array.shape, strides, "cpu", 0, (start, end),
        bool(array.flags.writeable), library, array if owner is None else (owner, array),
    )  # fmt: skip


def _numpy_dtype(dtype: np.dtype, where: str) -> DType:
    if not dtype.isnative:
        raise UnsupportedDTypeError(
            f"{where} has elements of type {dtype} in the byte order of other machines",
            where=where,
            hint="convert it: array.astype(array.dtype.newbyteorder('='))",
        )
    found = _BY_NUMPY.get(dtype)
    if found is None:
        raise _unsupported(str(dtype), where)
    return found


def _unsupported(name: str, where: str) -> UnsupportedDTypeError:
    usual = "kernels take bool, integers and floats of 8 to 64 bits"
    return UnsupportedDTypeError(
        f"{where} has elements of type {name}, which kernels do not know",
        where=where,
        hint=COMPLEX_HINT if "complex" in name else usual,
    )


def _span(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """The bytes from the lowest element to the end of the highest; strides in bytes."""
    if 0 in shape:
        return address, address
    low = high = address
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + itemsize


# PyTorch ----------------------------------------------------------------------------------------


def _describe_torch(torch: Any, tensor: Any, where: str) -> ArrayRecord:
    if tensor.layout is not torch.strided:
        raise FeedError(f"{where} is a {tensor.layout} tensor", hint="pass a dense one")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TORCH_NAMES:
        raise _unsupported(name, where)
    if tensor.is_neg():
        raise FeedError(
            f"{where} is a view that PyTorch negates when it reads it",
            hint="pass x.resolve_neg()",
        )
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise FeedError(
            f"{where} is on the device {tensor.device}", hint="pass a tensor of the CPU or a GPU"
        )
    try:
        address = tensor.data_ptr()
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    except RuntimeError as error:
        raise FeedError(
            f"{where} is a {type(tensor).__name__} without memory of its own: {error}",
            hint="pass the tensor that holds the data",
        ) from error
    return ArrayRecord(
        address, BY_NAME[_TORCH_NAMES[name]], tuple(tensor.shape), tuple(tensor.stride()), kind,
        tensor.device.index or 0, (start, start + size), True, "torch", tensor,
    )  # fmt: skip


def _describe_address(array: Any, where: str, library: str) -> ArrayRecord:
    """It may begin anywhere in its memory, of which nobody tells the ends: they are those of all
    memory."""
    name = str(array.dtype).removeprefix("torch.")
    if name not in _TORCH_NAMES:
        raise _unsupported(name, where)
    kind, _, ordinal = str(array.device).partition(":")
    if kind not in ("cpu", "cuda"):
        raise FeedError(
            f"{where} is on the device {array.device}", hint="pass an array of the CPU or a GPU"
        )
    shape = tuple(getattr(array, "shape", ()))
    return ArrayRecord(
        int(array.data_ptr()), BY_NAME[_TORCH_NAMES[name]], shape, _strides(shape, None),
        "cpu" if kind == "cpu" else "cuda", int(ordinal or 0), (1, ALL_MEMORY), True, library,
        array,
    )  # fmt: skip


# protocols --------------------------------------------------------------------------------------


def _from_table(
    table: Mapping[str, Any], owner: object, where: str, ordinal: int | None, library: str,
    dtype: DType | None = None,
) -> ArrayRecord:  # fmt: skip
    """dtype: where the table has no name for it."""
    if table.get("mask") is not None:
        raise FeedError(f"{where} is a masked array", hint="kernels know no masks")
    dtype = dtype or _numpy_dtype(np.dtype(table["typestr"]), where)
    if any(stride % dtype.bytes for stride in table.get("strides") or ()):
        raise FeedError(
            f"{where} has strides of {table['strides']} bytes, no multiples of its "
            f"{dtype.bytes}-byte elements",
            hint="pass a contiguous copy",
        )
    tensor = from_interface(table, owner)
    place = _ordinal_of(tensor.address) if ordinal is None else ordinal
    strides = _strides(tensor.shape, tensor.strides)
    stream = table.get("stream")
    return ArrayRecord(
        tensor.address, dtype, tensor.shape, strides, "cuda", place,
        _reach(tensor.address, tensor.shape, strides, dtype), tensor.writeable, library, owner,
        None if stream is None else int(stream),
    )  # fmt: skip


def _describe_dlpack(array: Any, where: str, library: str) -> ArrayRecord:
    kind, ordinal = (int(item) for item in array.__dlpack_device__())
    on_gpu = kind in CUDA_DEVICES
    if not on_gpu and kind not in HOST_DEVICES:
        raise FeedError(
            f"{where} is on a device of DLPack's kind {kind}",
            hint="pass an array of the CPU or a GPU",
        )
    # The legacy default stream, on which arrays other than PyTorch's are used, waits for what
    # computes the array.
    capsule = ask(array, stream=LEGACY_STREAM) if on_gpu else ask(array)
    tensor = from_dlpack(capsule, array)
    dtype = BY_NAME.get(tensor.dtype)
    if dtype is None:
        raise _unsupported(tensor.dtype, where)
    strides = _strides(tensor.shape, tensor.strides)
    return ArrayRecord(
        tensor.address, dtype, tensor.shape, strides, "cuda" if on_gpu else "cpu",
        ordinal if on_gpu else 0, _reach(tensor.address, tensor.shape, strides, dtype),
        tensor.writeable, library, tensor.owner,
    )  # fmt: skip


def _strides(shape: Sequence[int], strides: Sequence[int] | None) -> tuple[int, ...]:
    if strides is not None:
        return tuple(strides)
    found, step = [], 1
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return tuple(reversed(found))


def _reach(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: DType
) -> tuple[int, int]:
    return _span(address, shape, [stride * dtype.bytes for stride in strides], dtype.bytes)


def _ordinal_of(address: int) -> int:
    """The GPU that an address belongs to; of an empty array that has none, the first."""
    if not address:
        return 0
    attribute = driver.api().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(driver.call("cuPointerGetAttribute", attribute, address))
