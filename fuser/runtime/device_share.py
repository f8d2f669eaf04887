"""What plans of the same kernels at several sizes share on a GPU: code, constants, a stream, and
memory for values between kernels.

Sizes met later take a layout of their own within the memory that is there, or a larger one. Runs
follow one another (a lock), so that none sees another's values.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.base.forks import new_lock
from fuser.errors import OutOfMemoryError
from fuser.graph.units import byte_size
from fuser.runtime import driver
from fuser.runtime.device_code import Module, load_modules
from fuser.runtime.memory import align
from fuser.runtime.program import Program

ALIGNMENT = 256
LARGE_BYTES = 1 << 16
"""Of constants that programs may share."""
_counting = new_lock()


class Memory:
    """Bytes at an address, freed when the last of its users has left."""

    def __init__(self, address: int, size: int, free: Callable[[int], Any]) -> None:
        self.address, self.size, self._free = address, size, free
        self._users = 0

    def enter(self) -> Memory:
        with _counting:
            self._users += 1
        return self

    def leave(self) -> None:
        with _counting:
            self._users -= 1
            if self._users:
                return
        self._free(self.address)

    @property
    def is_free(self) -> bool:
        return self._users == 0


class Weights:
    """Large constants on a GPU, each once for all programs that have the same array: kernels for
    other sizes are other programs. Who owns it does not change the arrays."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._found: dict[int, tuple[np.ndarray, Memory]] = {}

    def place(self, array: np.ndarray, ordinal: int, name: str) -> Memory:
        """The memory that has the array, entered. The device's context is current."""
        with self._lock:
            known, memory = self._found.get(id(array), (None, None))
            if known is not array or memory is None or memory.is_free:
                memory = _allocate(array.nbytes, ordinal, name)
                _upload(memory.address, array)
                self._found[id(array)] = array, memory
            return memory.enter()


class Shared:
    """The common part of such plans. Make it, and enter and leave it, with the device's context
    current. lock: held while a run or a capture is put on the stream. weights: where large
    constants are, if others have them, too.

    Raises DeviceError, OutOfMemoryError or CompileError.
    """

    def __init__(self, program: Program, ordinal: int, weights: Weights | None = None) -> None:
        self.ordinal, self.weights = ordinal, weights
        self.lock = new_lock()
        self.constants = program.constants
        self.modules: dict[bytes, Module] = {}
        self.users = 0
        self._release: list[Callable[[], Any]] = []  # undone in reverse
        self._kept: dict[str, Memory] = {}  # the last of each kind
        try:
            self._open(program)
        except BaseException:
            self._close()
            raise

    def _open(self, program: Program) -> None:
        cu = driver.api()
        placed: dict[int, int] = {}
        if self.weights is not None:
            for number, array in enumerate(program.constants):
                if array.nbytes >= LARGE_BYTES:
                    memory = self.weights.place(array, self.ordinal, program.name)
                    self._release.append(memory.leave)
                    placed[number] = memory.address
        own = [number for number in range(len(program.constants)) if number not in placed]
        offsets, top = [], 0
        for number in own:
            offsets.append(top)
            top += align(program.constants[number].nbytes, ALIGNMENT)
        base = int(driver.call("cuMemAlloc", max(top, ALIGNMENT)))
        self._release.append(lambda: cu.cuMemFree(base))
        for number, offset in zip(own, offsets, strict=True):
            _upload(base + offset, program.constants[number])
            placed[number] = base + offset
        self.constant_addresses = tuple(placed[number] for number in range(len(placed)))
        # Such a copy may return before it is done, and the plan's stream would not wait for it.
        driver.call("cuStreamSynchronize", 0)
        self.stream, self.capture_stream = self._new_stream(), self._new_stream()
        self.last_run = driver.call("cuEventCreate", cu.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
        self._release.append(lambda: cu.cuEventDestroy(self.last_run))
        self.modules = load_modules([item.kernel for item in program.launches if item.kernel.code])
        for module in self.modules.values():
            self._release.append(functools.partial(cu.cuModuleUnload, module.handle))

    def _new_stream(self) -> Any:
        cu = driver.api()
        stream = driver.call("cuStreamCreate", cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        self._release.append(lambda: cu.cuStreamDestroy(stream))
        return stream

    def fits(self, program: Program, ordinal: int) -> bool:
        """Whether a program has these constants and kernels, on this GPU."""
        mine, theirs = self.constants, program.constants
        return (
            self.users > 0
            and ordinal == self.ordinal
            and len(mine) == len(theirs)
            and all(a is b for a, b in zip(mine, theirs, strict=True))
            and all(item.kernel.code in (*self.modules, b"") for item in program.launches)
        )

    def enter(self) -> None:
        with _counting:
            self.users += 1

    def leave(self) -> None:
        with _counting:
            self.users -= 1
            if self.users:
                return
        self._close()

    def work(self, size: int, name: str) -> Memory:
        """At least so many bytes of the GPU for values between kernels, entered; plans that share
        them run one by one."""
        return self._take("work", size, lambda size: _allocate(size, self.ordinal, name))

    def ends(self, size: int, name: str) -> Memory:
        """The same for the inputs and outputs of runs on arrays of the host."""
        return self._take("ends", size, lambda size: _allocate(size, self.ordinal, name))

    def staging(self, size: int) -> Memory:
        """The same of page-locked memory of the host."""

        def allocate(size: int) -> Memory:
            address = int(driver.call("cuMemHostAlloc", max(size, 1), 0))
            return Memory(address, size, driver.api().cuMemFreeHost)

        return self._take("staging", size, allocate)

    def _take(self, kind: str, size: int, allocate: Callable[[int], Memory]) -> Memory:
        old = self._kept.get(kind)
        if old is None or old.is_free or old.size < size:
            self._kept[kind] = allocate(self._grown(old, size))
        return self._kept[kind].enter()

    def _grown(self, old: Memory | None, size: int) -> int:
        """Half as much again as there was, where that is little: plans made before keep the old
        memory, so growing a bit at a time would add up."""
        if old is None or old.is_free:
            return size
        free, _ = driver.memory(self.ordinal)
        wanted = align(max(size, old.size + old.size // 2), ALIGNMENT)
        return wanted if wanted < free // 4 else size

    def _close(self) -> None:
        release, self._release = self._release, []
        for action in reversed(release):
            action()


def _upload(target: int, array: np.ndarray) -> None:
    source = np.ascontiguousarray(array)
    if source.nbytes:
        driver.call("cuMemcpyHtoD", target, source.ctypes.data, source.nbytes)


def _allocate(size: int, ordinal: int, name: str) -> Memory:
    check_memory(size, ordinal, name)
    address = int(driver.call("cuMemAlloc", max(size, ALIGNMENT)))
    return Memory(address, size, driver.api().cuMemFree)


def check_memory(size: int, ordinal: int, name: str, whole: bool = False) -> None:
    """Raise OutOfMemoryError unless so many bytes of the GPU are free; whole: unless it has them
    at all."""
    free, total = driver.memory(ordinal)
    if size > (total if whole else free):
        raise OutOfMemoryError(
            f"the plan needs {byte_size(size)} of GPU memory, "
            f"{byte_size(free)} of {byte_size(total)} are free",
            where=name,
            hint="use smaller dims or free memory of other programs",
        )


def host_bytes(memory: Memory, size: int) -> np.ndarray:
    """The first bytes of page-locked memory as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * max(1, size)).from_address(memory.address))
