"""Results that other libraries read without a copy, and tensors of theirs on the GPU.

Of a foreign tensor only the address, dtype and shape are read; nothing is copied or converted, so
what does not fit is an error. What fuser hands out is a `DeviceArray`, or a `HostArray` of a plan
on the CPU: PyTorch (torch.from_dlpack), CuPy, JAX and NumPy read both by DLPack, those of the GPU
by `__cuda_array_interface__` as well. Sources: `__dlpack__` in the array API standard 2024.12,
Numba's page on the CUDA array interface, version 3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, DType
from fuser.errors import ExportError, FeedError
from fuser.runtime import driver
from fuser.runtime.dlpack import (
    CPU,
    CUDA,
    CUDA_DEVICES,
    HOST_DEVICES,
    LEGACY_STREAM,
    NO_WAIT,
    UNSIGNED,
    DeviceTensor,
    ask,
    from_dlpack,
    to_capsule,
)
from fuser.runtime.feeds import check_feeds
from fuser.runtime.program import TensorSpec

ALIGNMENT = 16
"""What vector loads and tensor maps need."""


class HostArray:
    """An array in host memory that speaks DLPack in every dtype: NumPy's own knows neither bfloat16
    nor floats of 8 bits. `np.asarray` is a view of it."""

    def __init__(self, array: np.ndarray, dtype: DType) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._array, self._type = array, dtype

    def numpy(self) -> np.ndarray:
        """The array, in the same memory."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A capsule of the array, or of a copy. Raises ExportError for a stream, and for another
        device than the CPU."""
        if stream is not None:
            raise ExportError("an array of the CPU has no stream", hint="pass stream=None")
        if dl_device not in (None, self.__dlpack_device__()):
            raise ExportError(f"an array of the CPU, not of DLPack's device {dl_device}")
        array = self._array.copy() if copy else self._array
        return _host_capsule(array, self._type, max_version, bool(copy))

    def __repr__(self) -> str:
        return f"<HostArray {self._type}{list(self.shape)}>"


def _host_capsule(
    array: np.ndarray, dtype: DType, max_version: tuple[int, int] | None, copied: bool
) -> Any:
    words = array.view(UNSIGNED[dtype.bytes])
    return to_capsule(words, dtype, (CPU, 0), max_version=max_version, copied=copied)


class Event:
    """A point on a stream: what was put there before it is done once the event is. ordinal: of the
    GPU; stream: a CUstream, 0 for the default one. keep: what lives as long as the event."""

    def __init__(self, ordinal: int, stream: int, keep: Any = None) -> None:
        self.ordinal, self.stream, self.keep = ordinal, stream or LEGACY_STREAM, keep
        self._event: Any = None
        with driver.current(ordinal):
            timing = driver.api().CUevent_flags.CU_EVENT_DISABLE_TIMING.value
            self._event = driver.call("cuEventCreate", timing)
            driver.call("cuEventRecord", self._event, self.stream)

    def before(self, stream: int) -> None:
        """What comes on that stream from now on waits."""
        with driver.current(self.ordinal):
            driver.call("cuStreamWaitEvent", stream, self._event, 0)

    def wait(self) -> None:
        """This thread waits."""
        with driver.current(self.ordinal):
            driver.call("cuEventSynchronize", self._event)

    def __del__(self) -> None:
        if self._event is not None:
            with contextlib.suppress(Exception), driver.freeing(self.ordinal):
                driver.api().cuEventDestroy(self._event)


class DeviceArray:
    """A C-contiguous array in GPU memory: of its own, which is freed with it and not initialised,
    or `at` an address, in memory that `keep` keeps.

    PyTorch (torch.from_dlpack), CuPy, JAX and others read it without a copy, in the order of their
    stream: they wait for `ready`, where the array is computed by a stream that nobody waited for.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, ordinal: int = 0, *,
        at: int | None = None, keep: Any = None,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self.ordinal = shape, dtype.numpy, ordinal
        self.type = dtype
        self.ready: Event | None = None
        self.bytes = int(np.prod(shape, dtype=np.int64)) * dtype.bytes
        self.pointer, self._own, self._keep = at or 0, 0, keep
        if at is None:
            with driver.current(ordinal):
                self.pointer = self._own = int(driver.call("cuMemAlloc", max(1, self.bytes)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        table = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }
        return table | ({"stream": self.ready.stream} if self.ready else {})

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.ordinal

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A capsule of the array; of a copy with copy=True, or in host memory for dl_device=(1, 0).

        stream: on which the consumer reads, a CUstream; 1 or None: the legacy default stream, 2:
        that of the thread, -1: nobody is to wait. Raises ExportError for another stream or device,
        and for copy=False where it takes one."""
        if dl_device == (CPU, 0):
            if stream is not None or copy is False:
                what = "a stream" if stream is not None else "no copy"
                raise ExportError(f"an array of the GPU goes to the CPU by a copy, with {what}")
            return _host_capsule(self.numpy(), self.type, max_version, True)
        if dl_device not in (None, self.__dlpack_device__()):
            raise ExportError(f"an array of GPU {self.ordinal}, not of DLPack's device {dl_device}")
        stream = LEGACY_STREAM if stream is None else stream
        if stream == 0 or stream < NO_WAIT:
            raise ExportError(
                f"DLPack has no stream {stream}",
                hint="1 is the legacy default stream, 2 that of the thread, -1 none",
            )
        if self.ready is not None and stream != NO_WAIT:
            self.ready.before(stream)
        array = self._copy(stream) if copy else self
        tensor = DeviceTensor(
            array.pointer, self.type.name, self.shape, None, self.ordinal, (array, self)
        )
        return to_capsule(
            tensor.words(self.type.bytes), self.type, self.__dlpack_device__(),
            max_version=max_version, copied=bool(copy),
        )  # fmt: skip

    def _copy(self, stream: int) -> DeviceArray:
        """Made on that stream; by the time this returns, for a consumer that does not wait."""
        made = DeviceArray(self.shape, self.type, self.ordinal)
        if self.bytes:
            if self.ready is not None and stream == NO_WAIT:
                self.ready.wait()
            order = LEGACY_STREAM if stream == NO_WAIT else stream
            with driver.current(self.ordinal):
                driver.call("cuMemcpyDtoDAsync", made.pointer, self.pointer, self.bytes, order)
            made.ready = Event(self.ordinal, order)
            if stream == NO_WAIT:
                made.ready.wait()
        return made

    def numpy(self) -> np.ndarray:
        """A copy in host memory."""
        array = np.empty(self.shape, self.dtype)
        if self.bytes:
            if self.ready is not None:
                self.ready.wait()
            with driver.current(self.ordinal):
                driver.call("cuMemcpyDtoH", array.ctypes.data, self.pointer, self.bytes)
        return array

    def write(self, array: np.ndarray) -> None:
        """Copy an array of the host over it, of the same shape and dtype; it is there when this
        returns."""
        if self.bytes:
            if self.ready is not None:
                self.ready.wait()
            array = np.ascontiguousarray(array)
            with driver.current(self.ordinal):
                driver.call("cuMemcpyHtoD", self.pointer, array.ctypes.data, self.bytes)
                driver.call("cuStreamSynchronize", LEGACY_STREAM)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.type}{list(self.shape)} on GPU {self.ordinal}>"

    def __del__(self) -> None:
        pointer, self._own = getattr(self, "_own", 0), 0
        if pointer:
            try:
                with driver.freeing(self.ordinal):
                    if self.ready is not None:
                        self.ready.wait()
                    driver.call("cuMemFree", pointer)
            except Exception:  # the interpreter or the device is going away
                pass


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
        writeable=not table["data"][1],
    )


def upload(
    specs: Sequence[TensorSpec], feeds: Mapping[str, Any], ordinal: int, stream: int
) -> dict[str, DeviceArray]:
    """Those feeds that are in host memory, on the GPU by the time the stream comes to them. Raises
    FeedError for one that does not fit."""
    made = {}
    for spec in specs:
        if spec.name in feeds and on_host(feeds[spec.name]):
            (array,) = check_feeds([spec], {spec.name: feeds[spec.name]})
            made[spec.name] = placed = DeviceArray(spec.shape, spec.dtype, ordinal)
            if placed.bytes:
                with driver.current(ordinal):  # of memory that is not page-locked the driver takes
                    source = array.__array_interface__["data"][0]  # a copy before it returns
                    driver.call("cuMemcpyHtoDAsync", placed.pointer, source, placed.bytes, stream)
    return made


def on_host(given: Any) -> bool:
    """Whether a feed is in memory of the host: any object that does not say otherwise."""
    if hasattr(given, "__dlpack_device__"):
        return int(given.__dlpack_device__()[0]) in HOST_DEVICES
    return not hasattr(given, "__cuda_array_interface__")


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
    if role == "output" and not tensor.writeable:
        raise FeedError(f"{where} is read-only", hint="bind a tensor that may be written")
    if not tensor.row_major:
        raise FeedError(f"{where} is not row-major", hint="pass a contiguous copy of the tensor")
    if spec.bytes and tensor.address % ALIGNMENT:
        raise FeedError(f"{where} does not begin at a multiple of {ALIGNMENT} bytes")
    return tensor


def device_array(given: Any) -> DeviceArray:
    """A tensor of another library on a GPU, in its memory; what the legacy default stream reads of
    it is computed by then. Raises FeedError where it is elsewhere, not row-major, or of a dtype
    that there is not."""
    tensor = _read(given, "the tensor", LEGACY_STREAM)
    if tensor.dtype not in BY_NAME:
        raise FeedError(f"a tensor of {tensor.dtype}", hint="pass one of a supported dtype")
    if not tensor.row_major:
        raise FeedError("the tensor is not row-major", hint="pass a contiguous copy of it")
    where = tensor.ordinal or 0
    return DeviceArray(
        tensor.shape, BY_NAME[tensor.dtype], where, at=tensor.address, keep=tensor.owner
    )


def _read(given: Any, where: str, stream: int) -> DeviceTensor:
    if isinstance(given, DeviceArray):
        if given.ready is not None and stream != NO_WAIT:
            given.ready.before(stream)
        return DeviceTensor(given.pointer, given.type.name, given.shape, None, given.ordinal, given)
    if hasattr(given, "__dlpack_device__"):
        kind, ordinal = given.__dlpack_device__()
        if int(kind) not in CUDA_DEVICES:
            raise FeedError(f"{where} is not on the GPU", hint="plan.run takes arrays of the host")
        return replace(from_dlpack(ask(given, stream=stream), given), ordinal=int(ordinal))
    if hasattr(given, "__cuda_array_interface__"):
        return from_interface(given.__cuda_array_interface__, given)
    raise FeedError(
        f"{where} is a {type(given).__name__}, no GPU array",
        hint="pass what has __dlpack__ or __cuda_array_interface__, or use run() for host arrays",
    )
