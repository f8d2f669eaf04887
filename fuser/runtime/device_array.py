"""Arrays in GPU memory that cross to and from other frameworks by `__cuda_array_interface__`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.dtypes import DType
from fuser.errors import FeedError
from fuser.runtime import driver
from fuser.runtime.program import TensorSpec


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


def device_address(spec: TensorSpec, feed: Any) -> tuple[int, int]:
    """(address, stream) of a feed that lies in GPU memory. Raises FeedError."""
    interface = getattr(feed, "__cuda_array_interface__", None)
    if interface is None:
        raise FeedError(
            f"input {spec.name!r} is {spec}, the feed ({type(feed).__name__}) is no GPU array",
            hint="pass an object with __cuda_array_interface__, or use run() for host arrays",
        )
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    # Types that NumPy lacks, such as bfloat16, are handed over as raw bytes of the same size.
    same = dtype == spec.dtype.numpy or (dtype.kind == "V" and dtype.itemsize == spec.dtype.bytes)
    if not same or shape != spec.shape:
        raise FeedError(f"input {spec.name!r} is {spec}, the feed is {dtype}{list(shape)}")
    if not _contiguous(interface.get("strides"), shape, dtype.itemsize):
        raise FeedError(
            f"input {spec.name!r} has strides {interface['strides']}",
            hint="make the GPU array contiguous",
        )
    return int(interface["data"][0]), int(interface.get("stream") or 0)


def _contiguous(strides: tuple[int, ...] | None, shape: tuple[int, ...], size: int) -> bool:
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != size:
            return False
        size *= extent
    return True
