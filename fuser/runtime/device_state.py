"""What a plan keeps between runs, in memory of a GPU, and the stream of its runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.runtime import driver
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.state import Slot


class DeviceMemory:
    """The kept tensors of a state on a GPU: `fuser.runtime.state.Memory`. Raises DeviceError,
    OutOfMemoryError."""

    def __init__(self, slots: Sequence[Slot], ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.stream: Any = None
        self.arrays = {slot.input: DeviceArray(slot.shape, slot.dtype, ordinal) for slot in slots}
        with driver.current(ordinal):
            flags = driver.api().CUstream_flags.CU_STREAM_NON_BLOCKING.value
            self.stream = driver.call("cuStreamCreate", flags)

    def zero(self, slot: Slot) -> None:
        if slot.bytes:
            with driver.current(self.ordinal):
                pointer = self.arrays[slot.input].pointer
                driver.call("cuMemsetD8Async", pointer, 0, slot.bytes, self.stream)

    def read(self, slot: Slot, length: int) -> np.ndarray:
        array = np.empty(slot.rows(length), slot.dtype.numpy)
        with driver.current(self.ordinal):
            copy_rows(slot, length, array, self.arrays[slot.input].pointer, self.stream)
            driver.call("cuStreamSynchronize", self.stream)
        return array

    def write(self, slot: Slot, length: int, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        with driver.current(self.ordinal):
            copy_rows(slot, length, self.arrays[slot.input].pointer, array, self.stream)
            driver.call("cuStreamSynchronize", self.stream)

    def __del__(self) -> None:
        if self.stream is not None:
            with contextlib.suppress(Exception), driver.freeing(self.ordinal):
                driver.api().cuStreamDestroy(self.stream)


def copy_rows(
    slot: Slot, length: int, target: int | np.ndarray, source: int | np.ndarray, stream: Any,
    *, packed: str = "",
) -> None:  # fmt: skip
    """Copy the first `length` rows of a kept tensor on a stream.

    An address is that of memory of the GPU with room for all rows of the slot; an array of the host
    has those rows alone, and so has the memory at the address that `packed` names, "target" or
    "source".
    """
    width, height, pitch = _lines(slot, length)
    if not width or not height:
        return
    cu = driver.api()
    copy = cu.CUDA_MEMCPY2D()
    copy.WidthInBytes, copy.Height = width, height
    for end, place, name in (("dst", target, "target"), ("src", source, "source")):
        alone = packed == name or not isinstance(place, int)
        kind = "DEVICE" if isinstance(place, int) else "HOST"
        address = place if isinstance(place, int) else place.ctypes.data
        setattr(copy, f"{end}MemoryType", getattr(cu.CUmemorytype, f"CU_MEMORYTYPE_{kind}"))
        setattr(copy, f"{end}{kind.capitalize()}", address)
        setattr(copy, f"{end}Pitch", width if alone else pitch)
    driver.call("cuMemcpy2DAsync", copy, stream)


def _lines(slot: Slot, length: int) -> tuple[int, int, int]:
    """The first rows as pieces of memory in a row: bytes of one, how many, bytes from one to the
    next."""
    if slot.axis is None:
        return slot.bytes, 1, slot.bytes
    step = math.prod(slot.shape[slot.axis + 1 :]) * slot.dtype.bytes
    return length * step, math.prod(slot.shape[: slot.axis]), slot.shape[slot.axis] * step


__all__ = ["DeviceMemory", "copy_rows"]
