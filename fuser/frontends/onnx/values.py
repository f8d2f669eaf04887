"""`OrtValue`: a tensor, or a sequence of them, in host memory; under ONNX Runtime's names."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from fuser.errors import DeviceError, UnsupportedError, UsageError
from fuser.runtime.feeds import host_array

HOST = ("cpu", "cuda_pinned")


class OrtDevice:
    """Where a value lies."""

    def __init__(self, name: str = "cpu", number: int = 0) -> None:
        self._name, self._number = name, number

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0, vendor_id: int = -1) -> OrtDevice:
        check_host(ort_device_name)
        return OrtDevice("cpu", device_id)

    def device_type(self) -> str:
        return self._name

    def device_id(self) -> int:
        return self._number


class OrtValue:
    """A value. It shares the memory of the array it was made from, and `numpy()` shares its."""

    def __init__(self, value: np.ndarray | Sequence[Any] | None) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Of an array (or what is one by its own protocol), without a copy."""
        check_host(device_type)
        return OrtValue(np.ascontiguousarray(host_array(numpy_obj)).reshape(np.shape(numpy_obj)))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """Of the bits of an array: bfloat16 in uint16, say."""
        return OrtValue(np.ascontiguousarray(data).view(numpy_type(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0,
        vendor_id: int = -1, memory_info: Any = None,
    ) -> OrtValue:  # fmt: skip
        """Not initialised. element_type: of NumPy, or the number that ONNX has for it."""
        check_host(device_type)
        return OrtValue(np.empty(tuple(shape), numpy_type(element_type)))

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        return OrtValue(host_array(data))

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    @property
    def _tensor(self) -> np.ndarray:
        if not isinstance(self._value, np.ndarray):
            raise UsageError("the value is no tensor", hint="numpy() gives what it is")
        return self._value

    def numpy(self) -> Any:
        """The array; a list for a sequence, None for an optional without a value."""
        return self._value

    def shape(self) -> list[int]:
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """`tensor(float)`."""
        if isinstance(self._value, np.ndarray):
            return f"tensor({element_name(self.element_type())})"
        first = OrtValue(self._value[0]).data_type() if self._value else "unknown"
        return f"seq({first})"

    def element_type(self) -> int:
        """The number that ONNX has for the type."""
        dtype = self._tensor.dtype
        if dtype.kind in "OUS":
            return onnx.TensorProto.STRING
        return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self._tensor.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._tensor.nbytes)

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list | tuple)

    def is_sparse_tensor(self) -> bool:
        return False

    def as_sparse_tensor(self) -> Any:
        """Raises UnsupportedError."""
        raise UnsupportedError("there are no sparse tensors", hint="feed dense ones")

    def update_inplace(self, data: Any) -> None:
        """Write an array of the same shape and dtype over the value. Raises UsageError."""
        array = host_array(data)
        if (array.shape, array.dtype) != (self._tensor.shape, self._tensor.dtype):
            raise UsageError(
                f"the value is {self._tensor.dtype}{self.shape()},"
                f" the array {array.dtype}{list(array.shape)}"
            )
        np.copyto(self._tensor, array)


def plain(value: Any) -> Any:
    """What an OrtValue holds; anything else as it is."""
    return value.numpy() if isinstance(value, OrtValue) else value


def check_host(device_type: str) -> None:
    """Raise DeviceError for memory of a device."""
    if device_type not in HOST:
        raise DeviceError(
            f"a session reads and writes host memory, not {device_type!r}",
            hint="bind arrays of the cpu, or use fuser.compile(...).run_device or .bind",
        )


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """The dtype of an element type: of NumPy, or the number that ONNX has for it."""
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        if element_type == onnx.TensorProto.STRING:
            return np.dtype(object)
        element_type = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def element_name(elem_type: int) -> str:
    """How runtimes spell an element type: 1 is `float`."""
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()


def memory_at(address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """The host memory at an address as an array; whoever gave the address keeps it alive."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(tuple(shape), dtype)
    if dtype.hasobject or not address:
        raise UsageError("there is no memory to bind", hint="pass the address of numbers")
    held = (ctypes.c_byte * size).from_address(address)
    return np.ctypeslib.as_array(held).view(dtype).reshape(tuple(shape))
