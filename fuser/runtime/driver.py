"""The CUDA driver: loaded on first use, every call checked, every failure a DeviceError.

with driver.current(device):
    pointer = driver.call("cuMemAlloc", 1024)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fuser.base.forks import new_lock
from fuser.errors import DeviceError, OutOfMemoryError

OUT_OF_MEMORY = 2
FATAL = range(700, 720)
"""After these the process's context is broken: every later call fails too."""

_capturing = new_lock()
_lost = ""
_process = os.getpid()


@functools.cache
def api() -> Any:
    """cuda-python's driver module, initialised. Raises DeviceError saying what was looked for."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"no GPU can be used: the package cuda-python is missing ({error})",
            hint="pip install 'fuser-compiler[cuda]', or use the cpu",
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # the bindings raise their own type when libcuda is missing
        raise DeviceError(
            "no GPU can be used: the NVIDIA driver (libcuda.so.1) was not found",
            hint="install the driver, or use the cpu",
        ) from error
    if int(status):
        raise DeviceError(
            f"no GPU can be used: the NVIDIA driver answers {status.name}",
            hint="nvidia-smi shows what it sees; or use the cpu",
        )
    return driver


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function; its results (one as itself, several as a tuple).

    Raises DeviceError, or OutOfMemoryError, naming the function and the driver's code.
    """
    if _lost:
        raise DeviceError(f"the GPU was lost: {_lost}", hint="restart the process")
    if os.getpid() != _process:
        raise DeviceError(
            "the GPU cannot be used in a forked process",
            hint="start processes with 'spawn', or use the GPU only in the children",
        )
    module = api()
    status, *results = getattr(module, name)(*arguments)
    if int(status):
        raise failure(name, status)
    return results[0] if len(results) == 1 else tuple(results) if results else None


def failure(name: str, status: Any) -> DeviceError | OutOfMemoryError:
    """The error for a function that answered with this status."""
    global _lost
    code = int(status)
    text = f"{name} failed: {status.name} ({code})"
    if code == OUT_OF_MEMORY:
        return OutOfMemoryError(f"the GPU is out of memory: {text}")
    if code in FATAL:
        _lost = text
        return DeviceError(f"the GPU failed: {text}", hint="restart the process")
    return DeviceError(text)


@functools.cache
def device(ordinal: int = 0) -> Any:
    """The device's handle. Raises DeviceError if there are not that many."""
    count = call("cuDeviceGetCount")
    if ordinal >= count:
        raise DeviceError(
            f"no GPU can be used: device {ordinal} was asked for, the driver sees {count}",
            hint="check CUDA_VISIBLE_DEVICES, or use the cpu",
        )
    return call("cuDeviceGet", ordinal)


@functools.cache
def context(ordinal: int = 0) -> Any:
    """The device's primary context (the one that other frameworks share), retained for ever."""
    return call("cuDevicePrimaryCtxRetain", device(ordinal))


@contextmanager
def current(ordinal: int = 0) -> Iterator[None]:
    """Make the device's context current in this thread."""
    call("cuCtxPushCurrent", context(ordinal))
    try:
        yield
    finally:
        api().cuCtxPopCurrent()  # unchecked: an error on the way out must not hide the first


@contextmanager
def freeing(ordinal: int = 0) -> Iterator[None]:
    """Make the device's context current to free what the collector found. That may be while a
    stream is captured, by this thread or another: a free would end the capture with an error if
    the thread were not exempt from it meanwhile."""
    relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    with current(ordinal):
        mode = call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            api().cuThreadExchangeStreamCaptureMode(mode)


def capture(stream: Any, body: Callable[[Any], None]) -> Any:
    """The graph of what `body` puts on a stream, the caller's to destroy. No thread waits for a
    whole context meanwhile (`synchronize`): the streams in it are waited for, too, and that ends a
    capture with an error."""
    mode = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    with _capturing:
        call("cuStreamBeginCapture", stream, mode)
        try:
            body(stream)
        finally:
            status, graph = api().cuStreamEndCapture(stream)
    if int(status):
        raise failure("cuStreamEndCapture", status)
    return graph


def synchronize() -> None:
    """Wait for all that the current context does, and for captures of other threads."""
    with _capturing:
        call("cuCtxSynchronize")


def attribute(name: str, ordinal: int = 0) -> int:
    """A device attribute, such as "MULTIPROCESSOR_COUNT"."""
    key = getattr(api().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", key, device(ordinal)))


def name(ordinal: int = 0) -> str:
    """The device's name, such as "NVIDIA H200"."""
    raw: bytes = call("cuDeviceGetName", 256, device(ordinal))
    return raw.split(b"\0")[0].decode()


def memory(ordinal: int = 0) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    with current(ordinal):
        free, total = call("cuMemGetInfo")
    return int(free), int(total)
