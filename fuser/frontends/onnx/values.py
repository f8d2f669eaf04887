"""`OrtValue`: a tensor in host memory or on a GPU, or a sequence; under ONNX Runtime's names."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from fuser.dtypes import from_numpy
from fuser.errors import DeviceError, UnsupportedError, UsageError
from fuser.runtime.device_tensors import DeviceArray, HostArray, device_array
from fuser.runtime.dlpack import CUDA_DEVICES
from fuser.runtime.feeds import host_array

HOST = ("cpu", "cuda_pinned")
GPU = "cuda"
Tensor: TypeAlias = "np.ndarray | DeviceArray"


class OrtDevice:
    """Where a value lies."""

    def __init__(self, name: str = "cpu", number: int = 0) -> None:
        self._name, self._number = name, number

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0, vendor_id: int = -1) -> OrtDevice:
        """A device by its name, "cpu" or "cuda", and number. Raises DeviceError for others."""
        return OrtDevice(GPU if is_gpu(ort_device_name) else "cpu", device_id)

    def device_type(self) -> str:
        """ "cpu" or "cuda"."""
        return self._name

    def device_id(self) -> int:
        """The number of the GPU; 0 on the CPU."""
        return self._number


class OrtValue:
    """A value. In host memory it shares the memory of the array it was made from, and `numpy()`
    shares its; on a GPU both are copies."""

    def __init__(self, value: Tensor | Sequence[Any] | None) -> None:
        self.value = value
        """As it lies."""

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """An array (or what is one by its own protocol), without a copy, or a copy on a GPU.
        Raises DeviceError."""
        array = np.ascontiguousarray(host_array(numpy_obj)).reshape(np.shape(numpy_obj))
        return OrtValue(on_gpu(array, device_id) if is_gpu(device_type) else array)

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """The bits of an array as another type: bfloat16 in uint16, say."""
        return OrtValue(np.ascontiguousarray(data).view(numpy_type(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0,
        vendor_id: int = -1, memory_info: Any = None,
    ) -> OrtValue:  # fmt: skip
        """Not initialised. element_type: of NumPy, or the number that ONNX has for it. Raises
        DeviceError."""
        dtype = numpy_type(element_type)
        if is_gpu(device_type):
            return OrtValue(DeviceArray(tuple(shape), from_numpy(dtype), device_id))
        return OrtValue(np.empty(tuple(shape), dtype))

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """What has `__dlpack__`, without a copy. Raises UsageError, FeedError."""
        if not hasattr(data, "__dlpack_device__"):
            raise UsageError(
                f"a {type(data).__name__} has no __dlpack_device__",
                hint="pass the tensor, not its capsule",
            )
        placed = int(data.__dlpack_device__()[0]) in CUDA_DEVICES
        return OrtValue(device_array(data) if placed else host_array(data))

    def __dlpack__(self, **options: Any) -> Any:
        return self._lent.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._lent.__dlpack_device__()

    def to_dlpack(self) -> Any:
        """A capsule of the value, which keeps its memory."""
        return self.__dlpack__()

    @property
    def _lent(self) -> DeviceArray | HostArray:
        array = self.tensor
        if isinstance(array, DeviceArray):
            return array
        return HostArray(array, from_numpy(array.dtype))

    @property
    def tensor(self) -> Tensor:
        """The array, where it lies. Raises UsageError for what is none."""
        if not isinstance(self.value, np.ndarray | DeviceArray):
            raise UsageError("the value is no tensor", hint="numpy() gives what it is")
        return self.value

    def numpy(self) -> Any:
        """The array, copied from a GPU; a list for a sequence, None for an optional without a
        value."""
        return on_host(self.value)

    def shape(self) -> list[int]:
        """The size of each axis of a tensor."""
        return list(self.tensor.shape)

    def data_type(self) -> str:
        """`tensor(float)`."""
        if self.is_tensor():
            return f"tensor({element_name(self.element_type())})"
        first = OrtValue(self.value[0]).data_type() if self.value else "unknown"  # type: ignore[index]
        return f"seq({first})"

    def element_type(self) -> int:
        """The number that ONNX has for the type."""
        dtype = self.tensor.dtype
        if dtype.kind in "OUS":
            return onnx.TensorProto.STRING
        return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def device_name(self) -> str:
        """cpu or cuda."""
        return GPU if is_on_gpu(self.value) else "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        array = self.tensor
        return array.pointer if isinstance(array, DeviceArray) else int(array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """The bytes that the elements of a tensor take."""
        array = self.tensor
        return array.bytes if isinstance(array, DeviceArray) else int(array.nbytes)

    def has_value(self) -> bool:
        """Whether there is a value; an optional one may be none."""
        return self.value is not None

    def is_tensor(self) -> bool:
        """Whether it is an array, in host memory or on a GPU."""
        return isinstance(self.value, np.ndarray | DeviceArray)

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list of arrays."""
        return isinstance(self.value, list | tuple)

    def is_sparse_tensor(self) -> bool:
        """False: there are none."""
        return False

    def as_sparse_tensor(self) -> Any:
        """Raises UnsupportedError."""
        raise UnsupportedError("there are no sparse tensors", hint="feed dense ones")

    def update_inplace(self, data: Any) -> None:
        """Write an array of the host, of the same shape and dtype, over the value. Raises
        UsageError."""
        store("the value", self.tensor, host_array(data))


def store(what: str, target: Tensor, array: np.ndarray) -> None:
    """Write an array over another, wherever that lies. Raises UsageError where it does not fit."""
    if (target.shape, target.dtype) != (array.shape, array.dtype):
        raise UsageError(
            f"{what} is {target.dtype}{list(target.shape)},"
            f" the array {array.dtype}{list(array.shape)}"
        )
    if isinstance(target, DeviceArray):
        target.write(array)
    else:
        np.copyto(target, array)


def on_gpu(array: np.ndarray, ordinal: int) -> DeviceArray:
    """A copy on a GPU."""
    made = DeviceArray(array.shape, from_numpy(array.dtype), ordinal)
    made.write(array)
    return made


def on_host(value: Any) -> Any:
    """An array of a GPU copied to the host; anything else as it is."""
    return value.numpy() if isinstance(value, DeviceArray) else value


def is_on_gpu(value: Any) -> bool:
    """Whether it is an array on a GPU, or a GPU."""
    if isinstance(value, OrtDevice):
        return value.device_type() == GPU
    return isinstance(value, DeviceArray)


def plain(value: Any) -> Any:
    """What an OrtValue holds; anything else as it is."""
    return value.numpy() if isinstance(value, OrtValue) else value


def is_gpu(device_type: str) -> bool:
    """Whether a device is a GPU, or the host. Raises DeviceError for another."""
    if device_type != GPU and device_type not in HOST:
        raise DeviceError(
            f"there are no values on {device_type!r}", hint=f"there are {', '.join((*HOST, GPU))}"
        )
    return device_type == GPU


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """The dtype of an element type: of NumPy, or the number that ONNX has for it."""
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        if element_type == onnx.TensorProto.STRING:
            return np.dtype(object)
        element_type = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def element_name(elem_type: int) -> str:
    """How runtimes spell an element type: 1 is `float`. "undefined" for a number of none."""
    if elem_type not in onnx.TensorProto.DataType.values():
        return "undefined"
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()


def memory_at(
    address: int, shape: Sequence[int], dtype: np.dtype[Any], device: OrtDevice
) -> Tensor:
    """The memory at an address as an array; whoever gave the address keeps it alive. Raises
    UsageError."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size and (dtype.hasobject or not address):
        raise UsageError("there is no memory to bind", hint="pass the address of numbers")
    if is_on_gpu(device):
        return DeviceArray(tuple(shape), from_numpy(dtype), device.device_id(), at=address)
    if not size:
        return np.empty(tuple(shape), dtype)
    held = (ctypes.c_byte * size).from_address(address)
    return np.ctypeslib.as_array(held).view(dtype).reshape(tuple(shape))
