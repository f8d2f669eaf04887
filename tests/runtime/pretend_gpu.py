"""A CUDA driver whose memory is the host's and whose kernels are interpreted, for what plans do on
a GPU beside their kernels: `pretend_gpu(monkeypatch)`, and device="cuda" is there.

Streams do nothing before somebody waits for them, so that whoever reads too early finds what was
there before. A graph is the calls that were captured, with their arguments. Kernels are the tile
programs they were compiled from, at the sizes that the launch gives, and what a launch must hold is
checked: enough blocks, all parameters.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fuser.pipeline.compiled
from fuser.backend.module import CompiledKernel
from fuser.graph import dims
from fuser.graph.dims import parse
from fuser.graph.sizes import Sizes, evaluate
from fuser.pipeline.binding import Bound
from fuser.runtime import binding, cuda, device_code, driver
from fuser.runtime.moving import LENGTH, formula
from fuser.runtime.program import Launch, Program
from fuser.tilegen.interpret import run
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import canonical_text

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448, "L2_CACHE_SIZE": 52428800,
}  # fmt: skip
CAPTURING = "CU_STREAM_CAPTURE_STATUS_ACTIVE"


class Name(str):
    """A constant of the driver."""

    @property
    def value(self) -> int:
        return 1


GLOBAL, RELAXED = (Name(f"CU_STREAM_CAPTURE_MODE_{word}") for word in ("GLOBAL", "RELAXED"))
"""What a thread may do while a stream is captured: nothing that waits, or all."""


class Names:
    def __getattr__(self, name: str) -> Name:
        return Name(name)


class Bag:
    """A record of the driver."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        made = Bag()
        setattr(self, name, made)
        return made


Known = tuple[str, frozenset[str], CompiledKernel]
"""A kernel's text, the sizes in it that move, and what it was compiled to. Kernels of one code may
have other formulas for their numbers."""


class Driver:
    """What `cuda.bindings.driver` has, as far as fuser asks for it."""

    CUDA_MEMCPY2D = CUlaunchConfig = CUlaunchAttribute = CUlaunchAttributeValue = Bag

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.memory: dict[int, np.ndarray] = {}
        self.streams: dict[int, list[Callable[[], None]]] = {0: [], 1: []}
        self.done: dict[int, int] = {0: 0, 1: 0}
        self.events: dict[int, tuple[int, int]] = {}
        self.captured: dict[int, list[Callable[[], None]]] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.kernels: dict[bytes, list[Known]] = {}
        self.numbers = itertools.count(1000)
        self.here = threading.local()
        self.calls: list[str] = []
        self.launched: list[CompiledKernel] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return Names()
        if not name.startswith("cu"):
            raise AttributeError(name)
        body = getattr(self, f"do_{name}", None)
        if body is None:
            raise AssertionError(f"the driver was asked for {name}")

        def call(*arguments: Any) -> tuple[Any, ...]:
            with self.lock:
                self.calls.append(name)
                result = body(*arguments)
            return (
                (0,)
                if result is None
                else (0, *result)
                if isinstance(result, tuple)
                else (0, result)
            )

        return call

    # devices, memory ----------------------------------------------------------------------------

    def do_cuDeviceGetCount(self) -> int:
        return 1

    def do_cuDeviceGet(self, ordinal: int) -> int:
        return ordinal

    def do_cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return 7

    def do_cuCtxPushCurrent(self, context: int) -> None:
        assert context == 7

    def do_cuCtxPopCurrent(self) -> int:
        return 7

    def do_cuDeviceGetAttribute(self, name: Name, device: int) -> int:
        return ATTRIBUTES[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def do_cuDeviceGetName(self, size: int, device: int) -> bytes:
        return b"a pretended GPU\0"

    def do_cuMemGetInfo(self) -> tuple[int, int]:
        return 1 << 34, 1 << 35

    def do_cuMemAlloc(self, size: int) -> int:
        raw = np.full(size + 256, 0xFF, np.uint8)  # NaN
        start = -raw.ctypes.data % 256 + raw.ctypes.data
        self.memory[start] = raw
        return start

    def do_cuMemFree(self, pointer: int) -> None:
        mode = getattr(self.here, "mode", GLOBAL)
        assert not self.captured or mode == RELAXED, "this ends the capture"
        self.drain_all()
        del self.memory[pointer]

    def array(self, pointer: int, size: int) -> np.ndarray:
        """Bytes of device memory, which lie in one allocation."""
        for start, raw in self.memory.items():
            end = raw.ctypes.data + raw.nbytes
            if start <= pointer and pointer + size <= end:
                at = pointer - raw.ctypes.data
                return raw[at : at + size]
        raise AssertionError(f"{size} bytes at {pointer:#x} are no memory of the device")

    # streams, events ----------------------------------------------------------------------------

    def put(self, stream: Any, action: Callable[[], None]) -> None:
        stream = int(stream)
        self.captured.get(stream, self.streams[stream]).append(action)

    def drain(self, stream: int, end: int | None = None) -> None:
        queue = self.streams[stream]
        while self.done[stream] < (len(queue) if end is None else end):
            action = queue[self.done[stream]]
            self.done[stream] += 1
            action()

    def do_cuCtxSynchronize(self) -> None:
        assert not self.captured, "this ends the capture"
        self.drain_all()

    def drain_all(self) -> None:
        for stream in list(self.streams):
            self.drain(stream)

    def do_cuStreamCreate(self, flags: int) -> int:
        stream = next(self.numbers)
        self.streams[stream], self.done[stream] = [], 0
        return stream

    def do_cuStreamDestroy(self, stream: int) -> None:
        self.drain(stream)

    def do_cuStreamSynchronize(self, stream: int) -> None:
        assert int(stream) not in self.captured
        self.drain(int(stream))

    def do_cuEventCreate(self, flags: int) -> int:
        event = next(self.numbers)
        self.events[event] = (0, 0)
        return event

    def do_cuEventDestroy(self, event: int) -> None:
        del self.events[event]

    def do_cuEventRecord(self, event: int, stream: Any) -> None:
        assert int(stream) not in self.captured
        self.events[event] = int(stream), len(self.streams[int(stream)])

    def do_cuEventRecordWithFlags(self, event: int, stream: Any, flags: int) -> None:
        assert int(stream) in self.captured and event in self.events

    def do_cuEventElapsedTime(self, first: int, second: int) -> float:
        return float(self.events[first] is not self.events[second])

    def do_cuStreamWaitEvent(self, stream: Any, event: int, flags: int) -> None:
        place = self.events[event]
        self.put(stream, lambda: self.drain(*place))

    def do_cuEventSynchronize(self, event: int) -> None:
        self.drain(*self.events[event])

    def do_cuStreamIsCapturing(self, stream: Any) -> Name:
        status = "ACTIVE" if int(stream) in self.captured else "NONE"
        return Name(f"CU_STREAM_CAPTURE_STATUS_{status}")

    # copies -------------------------------------------------------------------------------------

    def do_cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Any) -> None:
        staged = host(source, size).copy()
        self.array(target, size)
        self.put(stream, lambda: self.move(target, staged))

    def do_cuMemcpyHtoD(self, target: int, source: int, size: int) -> None:
        self.move(target, host(source, size))

    def move(self, target: int, content: np.ndarray) -> None:
        self.array(target, content.nbytes)[...] = content

    def do_cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: Any) -> None:
        self.array(source, size)
        self.drain(int(stream))  # of memory that is not page-locked
        host(target, size)[...] = self.array(source, size)

    def do_cuMemcpyDtoH(self, target: int, source: int, size: int) -> None:
        host(target, size)[...] = self.array(source, size)

    def do_cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: Any) -> None:
        self.array(target, size), self.array(source, size)
        self.put(stream, lambda: self.move(target, self.array(source, size).copy()))

    def do_cuMemsetD8Async(self, target: int, value: int, size: int, stream: Any) -> None:
        self.array(target, size)
        self.put(stream, lambda: self.array(target, size).fill(value))

    def do_cuMemcpy2DAsync(self, copy: Bag, stream: Any) -> None:
        width, height = copy.WidthInBytes, copy.Height

        def lines(end: str) -> np.ndarray:
            pitch = getattr(copy, f"{end}Pitch")
            size = pitch * (height - 1) + width
            if getattr(copy, f"{end}MemoryType") == "CU_MEMORYTYPE_HOST":
                found = host(getattr(copy, f"{end}Host"), size)
            else:
                found = self.array(getattr(copy, f"{end}Device"), size)
            return np.lib.stride_tricks.as_strided(found, (height, width), (pitch, 1))

        assert copy.srcPitch >= width and copy.dstPitch >= width
        to_host = copy.dstMemoryType == "CU_MEMORYTYPE_HOST"
        staged = lines("src").copy() if copy.srcMemoryType == "CU_MEMORYTYPE_HOST" else None

        def go() -> None:
            lines("dst")[...] = lines("src").copy() if staged is None else staged

        self.put(stream, go)
        if to_host:
            self.drain(int(stream))

    # graphs, kernels ----------------------------------------------------------------------------

    def do_cuThreadExchangeStreamCaptureMode(self, mode: Name) -> Name:
        before: Name = getattr(self.here, "mode", GLOBAL)
        self.here.mode = mode
        return before

    def do_cuStreamBeginCapture(self, stream: int, mode: Name) -> None:
        self.captured[int(stream)] = []

    def do_cuStreamEndCapture(self, stream: int) -> int:
        graph = next(self.numbers)
        self.graphs[graph] = self.captured.pop(int(stream))
        return graph

    def do_cuGraphInstantiate(self, graph: int, flags: int) -> int:
        executable = next(self.numbers)
        self.graphs[executable] = self.graphs[graph]
        return executable

    def do_cuGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    do_cuGraphExecDestroy = do_cuGraphDestroy

    def do_cuGraphLaunch(self, graph: int, stream: Any) -> None:
        for action in self.graphs[graph]:
            self.put(stream, action)

    def do_cuModuleLoadDataEx(self, code: bytes, *options: Any) -> bytes:
        return code.removesuffix(b"\0")

    def do_cuModuleUnload(self, module: bytes) -> None:
        pass

    def do_cuModuleGetFunction(self, module: bytes, entry: bytes) -> bytes:
        assert entry in module
        return module

    def do_cuFuncSetAttribute(self, function: bytes, name: Name, value: int) -> None:
        pass

    def do_cuFuncGetAttribute(self, name: Name, function: bytes) -> int:
        return 0

    def do_cuLaunchKernelEx(self, config: Bag, function: bytes, given: Any, extra: int) -> None:
        values, _ = given
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        declared = re.search(rb"\.entry [^(]*\(([^)]*)\)", function)
        assert declared is not None and declared[1].count(b".param") == len(values)
        known = self.here.known
        self.put(config.hStream, lambda: self.launch(function, grid, values, known))

    def launch(
        self, code: bytes, grid: tuple[int, ...], values: tuple[Any, ...], known: dict[str, int]
    ) -> None:
        fitting = (
            (item, sizes) for item in self.kernels[code]
            if (sizes := self.sizes(item, grid, values, known)) is not None
        )  # fmt: skip
        found = next(fitting, None)
        assert found is not None, f"{values} of {known} are numbers of no kernel"
        (text, _, compiled), sizes = found
        self.launched.append(compiled)
        assert not compiled.tensor_maps and not compiled.workspace_bytes
        text = re.sub("`([^`]*)`", lambda found: str(evaluate(parse(found[1]), sizes)), text)
        text = text.replace("+ -", "- ")
        kernel = parse_kernel(text)
        arrays = {
            buffer.name: self.array(pointer, buffer.size * buffer.dtype.bytes).view(
                buffer.dtype.numpy
            )
            for buffer, pointer in zip(kernel.buffers, values, strict=False)
        }
        run(kernel, arrays)

    def sizes(
        self, item: Known, grid: tuple[int, ...], values: tuple[Any, ...], known: dict[str, int]
    ) -> dict[str, int] | None:
        """The sizes that a launch is for, if it is one of this kernel: its numbers are those of the
        kernel's formulas, its blocks as many as these sizes need."""
        text, moving, compiled = item
        facts = compiled.facts
        if "sizes" not in facts:
            return known
        numbers = list(values[text.count("\n  buffer ") :])
        if facts.get("moving"):
            assert len(numbers) == 1
            numbers = self.array(numbers[0], 8 * len(facts["sizes"])).view(np.int64).tolist()
            found = moved(known, moving, facts["sizes"], numbers)
            if found is None:
                return None
            known = found
        if [evaluate(parse(text), known) for text in facts["sizes"]] != numbers:
            return None
        needed = [evaluate(parse(item), known) for item in facts["launch"]]
        exact = grid == tuple(needed)
        more = facts.get("moving") and all(map(int.__ge__, grid, needed))
        return known if exact or more else None


def host(pointer: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer)) if size else EMPTY


EMPTY = np.zeros(0, np.uint8)


def moved(
    known: dict[str, int], moving: Sequence[str], texts: Sequence[str], numbers: Sequence[int]
) -> dict[str, int] | None:
    """The sizes at which these texts have these values, if there are; those that move do so
    together."""
    most = min((known[name] for name in moving if name in known), default=0)
    by_length = {
        name: LENGTH + (size - most) if name in moving else size for name, size in known.items()
    }
    values = formula(map(parse, texts), by_length)
    lengths = (length for length in range(most + 1) if list(values(length)) == numbers)
    length = next(lengths, None)
    if length is None:
        return None
    return {name: evaluate(size, {"n": length}) for name, size in by_length.items()}


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """device="cuda" is a GPU of Hopper's kind; the driver."""
    made = Driver()
    for cached in (driver.device, driver.context, cuda.device_target):
        cached.cache_clear()
    monkeypatch.setattr(driver, "api", lambda: made)
    monkeypatch.setattr(binding, "make_replay", lambda *_: None)
    monkeypatch.setattr(device_code, "tensor_map", None)
    bind_kernels = fuser.pipeline.compiled.bind_kernels

    def bind(name: str, cut: Any, programs: list[Any], *more: Any) -> Any:
        bound = bind_kernels(name, cut, programs, *more)
        active = dims.active()
        moving = active.moving if isinstance(active, Sizes) else frozenset()
        for program, step in zip(programs, bound.steps, strict=True):
            text = re.sub(r"  (sizes|moving)\(.*\)\n", "", canonical_text(program.kernel))
            made.kernels.setdefault(step.kernel.code, []).append((text, moving, step.kernel))
        return bound

    monkeypatch.setattr(fuser.pipeline.compiled, "bind_kernels", bind)
    at, prepare = Bound.at, cuda.CudaExecutor._prepare

    def place(self: Bound, sizes: Any = None) -> Program:
        program = at(self, sizes)
        kernels = [
            replace(launch.kernel, facts={**launch.kernel.facts, "known": dict(sizes or {})})
            for launch in program.launches
        ]
        return replace(program, launches=tuple(
            replace(launch, kernel=kernel)
            for launch, kernel in zip(program.launches, kernels, strict=True)
        ))  # fmt: skip

    def prepared(self: Any, launch: Launch, memory: Any) -> Any:
        go = prepare(self, launch, memory)

        def known(stream: Any, overlap: bool) -> None:
            made.here.known = launch.kernel.facts["known"]
            go(stream, overlap)

        return known

    monkeypatch.setattr(Bound, "at", place)
    monkeypatch.setattr(cuda.CudaExecutor, "_prepare", prepared)
    yield made
    for cached in (driver.device, driver.context, cuda.device_target):
        cached.cache_clear()


__all__ = ["Driver", "pretend_gpu"]
