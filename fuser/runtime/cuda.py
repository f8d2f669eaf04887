"""Running a Program on an NVIDIA GPU: memory of its own, one CUDA graph, replayed by every run.

The graph copies the inputs from page-locked memory, launches every kernel and copies the outputs
back; a second graph has the kernels alone, for data that is on the device already.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.errors import DeviceError, FeedError, UsageError
from fuser.runtime import driver
from fuser.runtime.binding import Binding, Placed
from fuser.runtime.device_code import tensor_map
from fuser.runtime.device_layout import Addresses, lay_out
from fuser.runtime.device_share import ALIGNMENT, Shared, check_memory, host_bytes
from fuser.runtime.device_tensors import DeviceArray, Event, check_tensors, upload
from fuser.runtime.dlpack import LEGACY_STREAM, DeviceTensor
from fuser.runtime.memory import Recycler, align
from fuser.runtime.program import BufferRef, Launch, Program, Steady
from fuser.target import SM_80, SM_90A, Target

MOST_COPIED = 1 << 26
"""Bytes of inputs and outputs that are rather copied (some 25 microseconds on an H200) than every
kernel launched by itself."""


@functools.cache
def device_target(ordinal: int = 0) -> Target:
    """The Target of a GPU of this machine. Raises DeviceError."""
    major = driver.attribute("COMPUTE_CAPABILITY_MAJOR", ordinal)
    minor = driver.attribute("COMPUTE_CAPABILITY_MINOR", ordinal)
    if major < 8:
        raise DeviceError(
            f"{driver.name(ordinal)} has compute capability {major}.{minor}",
            hint="fuser needs 8.0 (Ampere) or later; or use the cpu",
        )
    units = driver.attribute("MULTIPROCESSOR_COUNT", ordinal)
    shared = driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", ordinal)
    cache = driver.attribute("L2_CACHE_SIZE", ordinal)
    return describe(major * 10 + minor, units, shared, cache)


def describe(capability: int, units: int, shared_bytes: int, l2_bytes: int) -> Target:
    """The Target of a GPU by its attributes: rates scale with the multiprocessors of the record of
    its generation. What is newer than Hopper runs code for sm_80, which every later GPU accepts."""
    base = SM_90A if capability == 90 else SM_80
    if capability in (86, 87, 88, 89):
        base = replace(base, arch=f"sm_{capability}")
    scale = units / base.units
    return replace(
        base,
        units=units,
        flops_f32=base.flops_f32 * scale,
        flops_f16=base.flops_f16 * scale,
        shared_bytes=shared_bytes,
        l2_cache_bytes=l2_bytes,
    )


def device_name(ordinal: int = 0) -> str:
    return driver.name(ordinal)


_unfinished: deque[tuple[int, list[Callable[[], Any]]]] = deque()
"""What executors left behind that nobody closed. The collector may find them while a stream is
being captured, when nothing may be freed: the next executor does it."""


class CudaExecutor:
    """Runs a cuda Program. Runs of several threads are serial: a plan owns one set of buffers.

    like: the executor of the same kernels at other sizes, to share code, constants and memory with.
    Raises DeviceError, OutOfMemoryError (before anything is launched) or CompileError.
    """

    def __init__(
        self, program: Program, ordinal: int = 0, like: CudaExecutor | None = None
    ) -> None:
        self.program = program
        self.ordinal = ordinal
        self.layout = lay_out(program)
        self._results = [Recycler(spec.shape, spec.dtype.numpy) for spec in program.outputs]
        self._release: list[Callable[[], Any]] = []  # undone in reverse
        self.bindings: weakref.WeakSet[Binding] = weakref.WeakSet()
        self._anywhere: Placed | None = None
        other: Shared | None = None
        if like is not None and like.shared.fits(program, ordinal):
            other = like.shared
        if other is None:
            check_memory(self.layout.total, ordinal, program.name)
        try:
            with driver.current(ordinal):
                _finish_others()
                self.shared: Shared = other or Shared(program, ordinal)
                self.lock, self.modules = self.shared.lock, self.shared.modules
                self.stream, self.last_run = self.shared.stream, self.shared.last_run
                with self.lock:
                    self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        self.shared.enter()
        self._release.append(self.shared.leave)
        work = self.shared.work(self.layout.own, self.program.name)
        self._release.append(work.leave)
        self._stage()
        self.addresses = Addresses(work.address, self.shared.constant_base, self.layout)
        self.calls = self.prepare(self.addresses)
        self.kernels_graph = self._capture(copies=False)
        self.whole_graph = self._capture(copies=True)

    def _stage(self) -> None:
        """Page-locked memory for inputs and outputs, and NumPy views of it."""
        program = self.program
        sizes = [spec.bytes for spec in (*program.inputs, *program.outputs)]
        total = max(1, sum(align(size, ALIGNMENT) for size in sizes))
        staging = self.shared.staging(total)
        self._release.append(staging.leave)
        pinned, memory = staging.address, host_bytes(staging, total)
        views, pointers, top = [], [], 0
        for spec in (*program.inputs, *program.outputs):
            view = memory[top : top + spec.bytes].view(spec.dtype.numpy).reshape(spec.shape)
            views.append(view)
            pointers.append(pinned + top)
            top += align(spec.bytes, ALIGNMENT)
        count = len(program.inputs)
        self.staged_inputs, self.staged_outputs = views[:count], views[count:]
        self._pinned_inputs, self._pinned_outputs = pointers[:count], pointers[count:]

    # building the graph -------------------------------------------------------------------------

    def prepare(self, addresses: Addresses) -> list[Callable[[Any, bool], None]]:
        """For each launch a function that puts it on a stream; its second argument allows the
        launch to begin while the kernel before it ends."""
        return [self._prepare(launch, addresses) for launch in self.program.launches]

    def _prepare(self, launch: Launch, memory: Addresses) -> Callable[[Any, bool], None]:
        cu, kernel = driver.api(), launch.kernel
        pointers = [memory.address(ref) for ref in launch.arguments]
        function = self.modules[kernel.code].function(kernel)
        maps = [tensor_map(item, pointers[item.argument]) for item in kernel.tensor_maps]
        sizes = kernel.sizes
        values = (*pointers, *maps, *sizes)
        types = (
            *(ctypes.c_void_p for _ in pointers),
            *(None for _ in maps),
            *(ctypes.c_int64 for _ in sizes),
        )

        def go(stream: Any, overlap: bool) -> None:
            config = cu.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = kernel.launch
            config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
            config.sharedMemBytes = kernel.shared_bytes
            config.hStream = stream
            config.attrs = launch_attributes(kernel.cluster, kernel.pdl and overlap)
            config.numAttrs = len(config.attrs)
            driver.call("cuLaunchKernelEx", config, function, (values, types), 0)

        return go

    def enqueue(
        self,
        stream: Any,
        calls: Sequence[Callable[[Any, bool], None]],
        addresses: Addresses,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Clear, launch and copy on the stream, in order; after(i) follows launch i."""
        kernel_before = False
        for position, launch in enumerate(self.program.launches):
            for zero in launch.zeros:
                address = addresses.address(zero.buffer)
                driver.call("cuMemsetD8Async", address, 0, zero.bytes, stream)
                kernel_before = False
            if all(launch.kernel.launch):
                calls[position](stream, kernel_before and after is None)
                kernel_before = True
            if after is not None:
                after(position)
        for copy in self.program.copies:
            target = addresses.address(BufferRef("output", copy.output))
            size = self.program.outputs[copy.output].bytes
            self._move(target, addresses.address(copy.source), size, stream)

    def _capture(self, copies: bool, events: Sequence[Any] = ()) -> Any:
        """The plan as an executable graph; with `copies`, from and to page-locked memory. `events`
        (one more than launches) are recorded around the launches."""
        program = self.program

        def body(stream: Any) -> None:
            def record(position: int) -> None:
                external = driver.api().CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL.value
                event = events[position + 1]
                driver.call("cuEventRecordWithFlags", event, stream, external)

            if copies:
                for spec, pinned, offset in zip(
                    program.inputs, self._pinned_inputs, self.layout.inputs, strict=True
                ):
                    if spec.bytes:
                        target = self.addresses.base + offset
                        driver.call("cuMemcpyHtoDAsync", target, pinned, spec.bytes, stream)
            if events:
                record(-1)
            after = record if events else None
            self.enqueue(stream, self.calls, self.addresses, after)
            if copies:
                for spec, pinned, offset in zip(
                    program.outputs, self._pinned_outputs, self.layout.outputs, strict=True
                ):
                    if spec.bytes:
                        source = self.addresses.base + offset
                        driver.call("cuMemcpyDtoHAsync", pinned, source, spec.bytes, stream)

        executable = self.capture(body)
        self._release.append(lambda: driver.api().cuGraphExecDestroy(executable))
        return executable

    def capture(self, body: Callable[[Any], None]) -> Any:
        """What `body` puts on the stream it is given as an executable graph, the caller's to
        destroy. The stream is for captures alone: a thread that waits for the plan's stream
        meanwhile would end the capture with an error."""
        cu, stream = driver.api(), self.shared.capture_stream
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.call("cuStreamBeginCapture", stream, mode)
        try:
            body(stream)
        finally:
            status, graph = cu.cuStreamEndCapture(stream)
        if int(status):
            raise DeviceError(f"cuStreamEndCapture failed: {status.name}", where=self.program.name)
        try:
            return driver.call("cuGraphInstantiate", graph, 0)
        finally:
            cu.cuGraphDestroy(graph)

    # running ------------------------------------------------------------------------------------

    @property
    def device_name(self) -> str:
        return f"cuda ({driver.name(self.ordinal)})"

    @property
    def peak_memory_bytes(self) -> int:
        return self.layout.total

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """New host arrays for host arrays."""
        with self.lock, driver.current(self.ordinal):
            for staged, array in zip(self.staged_inputs, inputs, strict=True):
                staged[...] = array
            self._wait_for_bindings()
            driver.call("cuGraphLaunch", self.whole_graph, self.stream)
            driver.call("cuStreamSynchronize", self.stream)
            outputs = [make()[0] for make in self._results]
            for array, staged in zip(outputs, self.staged_outputs, strict=True):
                array[...] = staged
            return outputs

    def run_device(
        self, feeds: Mapping[str, Any], stream: int | None = None
    ) -> dict[str, DeviceArray]:
        """See `Plan.run_device`. Raises FeedError."""
        program, ordinal = self.program, self.ordinal
        order = int(self.stream) if stream is None else stream or LEGACY_STREAM
        moved = upload(program.inputs, feeds, ordinal, order)
        found = check_tensors(program.inputs, {**feeds, **moved}, ordinal, "input", order)
        outputs = [DeviceArray(spec.shape, spec.dtype, ordinal) for spec in program.outputs]
        for other in dict.fromkeys(item.stream for item in found):
            if other is not None:
                Event(ordinal, other).before(order)  # what computes the feeds
        self.run_at([item.address for item in found], [item.pointer for item in outputs], order)
        if stream is None:
            with driver.current(ordinal):
                driver.call("cuStreamSynchronize", self.stream)
        else:
            ready = Event(ordinal, order, moved)
            for array in outputs:
                array.ready = ready
        return {spec.name: a for spec, a in zip(program.outputs, outputs, strict=True)}

    def run_at(self, sources: Sequence[int], targets: Sequence[int], stream: int) -> None:
        """See `Plan.run_at`."""
        if self._anywhere is None:
            self._anywhere = Placed(self, {})
        self._anywhere((*sources, *targets), stream)

    def at(self, fixed: Mapping[int, int]) -> Steady:
        """See `Plan.at`."""
        return Placed(self, fixed)

    def bind_at(self, pointers: Sequence[int]) -> Binding:
        """Inputs and outputs at these addresses; the caller keeps what lies there."""
        count = len(self.program.inputs)
        with self.lock, driver.current(self.ordinal):
            if not self._release:
                raise UsageError("the plan is closed", hint="compile the model again")
            inputs, outputs = tuple(pointers[:count]), tuple(pointers[count:])
            binding = Binding(self, replace(self.addresses, inputs=inputs, outputs=outputs), ())
        self.bindings.add(binding)
        return binding

    def run_by_copies(self, stream: Any, addresses: Addresses) -> bool:
        """Put a run on a stream by way of the plan's own memory, whose graph is there already;
        False where that copies more than it saves."""
        inputs, outputs = self.program.inputs, self.program.outputs
        if sum(spec.bytes for spec in (*inputs, *outputs)) > MOST_COPIED:
            return False
        for i, spec in enumerate(inputs):
            ref = BufferRef("input", i)
            self._move(self.addresses.address(ref), addresses.address(ref), spec.bytes, stream)
        driver.call("cuGraphLaunch", self.kernels_graph, stream)
        for i, spec in enumerate(outputs):
            ref = BufferRef("output", i)
            self._move(addresses.address(ref), self.addresses.address(ref), spec.bytes, stream)
        return True

    def _move(self, target: int, source: int, size: int, stream: Any = None) -> None:
        if size:
            stream = self.stream if stream is None else stream
            driver.call("cuMemcpyDtoDAsync", target, source, size, stream)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Binding:
        """See `Plan.bind`."""
        program, ordinal = self.program, self.ordinal
        sources = check_tensors(program.inputs, inputs, ordinal, "input")
        targets = check_tensors(program.outputs, outputs, ordinal, "output")
        _check_overlap(program, sources, targets)
        with self.lock, driver.current(ordinal):
            addresses = replace(
                self.addresses,
                inputs=tuple(item.address for item in sources),
                outputs=tuple(item.address for item in targets),
            )
            binding = Binding(self, addresses, (*sources, *targets))
        self.bindings.add(binding)
        return binding

    def _wait_for_bindings(self) -> None:
        """Runs share the arena: the stream goes on after the last bound run."""
        driver.call("cuStreamWaitEvent", self.stream, self.last_run, 0)

    def time_replays(
        self, inputs: Sequence[np.ndarray] | None, iterations: int, warmup: int
    ) -> list[float]:
        """Seconds of each replay of the kernels, by the device's clock, without copies; on the
        inputs of the last run if there are none."""
        if inputs is not None:
            self.run(inputs)
        with self.lock, driver.current(self.ordinal):
            events = [driver.call("cuEventCreate", 0) for _ in range(iterations + 1)]
            try:
                for _ in range(warmup):
                    driver.call("cuGraphLaunch", self.kernels_graph, self.stream)
                driver.call("cuEventRecord", events[0], self.stream)
                for event in events[1:]:
                    driver.call("cuGraphLaunch", self.kernels_graph, self.stream)
                    driver.call("cuEventRecord", event, self.stream)
                driver.call("cuStreamSynchronize", self.stream)
                return _elapsed(events)
            finally:
                for event in events:
                    driver.api().cuEventDestroy(event)

    def time_kernels(self, inputs: Sequence[np.ndarray]) -> list[float]:
        """Seconds of each launch in one run, by events between them (about a microsecond each)."""
        self.run(inputs)
        with self.lock, driver.current(self.ordinal):
            if not hasattr(self, "_events"):
                self._events = [
                    driver.call("cuEventCreate", 0) for _ in range(len(self.program.launches) + 1)
                ]
                for event in self._events:
                    destroy = driver.api().cuEventDestroy
                    self._release.append(functools.partial(destroy, event))
                self._timed_graph = self._capture(copies=False, events=self._events)
            driver.call("cuGraphLaunch", self._timed_graph, self.stream)
            driver.call("cuStreamSynchronize", self.stream)
            return _elapsed(self._events)

    def facts(self) -> list[dict[str, Any]]:
        """What the driver knows of each launch's kernel: registers, spills, compiler warnings."""
        return [self.modules[launch.kernel.code].facts for launch in self.program.launches]

    def close(self) -> None:
        release, self._release = self._release, []
        if not release:
            return
        for binding in list(self.bindings):
            binding.close()
        self._anywhere = None
        try:
            with driver.current(self.ordinal):
                driver.api().cuCtxSynchronize()
                for action in reversed(release):
                    action()
        except DeviceError:
            pass  # a lost device has nothing left to free

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be going away
            if self._release:
                _unfinished.append((self.ordinal, self._release))


def _finish_others() -> None:
    """Free what executors of this device left behind that are gone. Its context is current."""
    while _unfinished:
        try:
            ordinal, release = _unfinished.popleft()
        except IndexError:
            return
        try:
            with driver.current(ordinal):
                driver.call("cuCtxSynchronize")
                for action in reversed(release):
                    action()
        except DeviceError:
            return


def _check_overlap(
    program: Program, sources: Sequence[DeviceTensor], targets: Sequence[DeviceTensor]
) -> None:
    """Raises FeedError if an output shares memory with an input or another output: kernels may
    write it before the last one has read."""
    ranges = [
        (item.address, item.address + spec.bytes, spec, index >= len(sources))
        for index, (item, spec) in enumerate(
            zip((*sources, *targets), (*program.inputs, *program.outputs), strict=True)
        )
        if spec.bytes
    ]
    for first, second in itertools.combinations(ranges, 2):
        if (first[3] or second[3]) and first[0] < second[1] and second[0] < first[1]:
            raise FeedError(
                f"{first[2].name!r} and {second[2].name!r} share memory",
                hint="bind outputs to memory of their own",
            )


def launch_attributes(cluster: int, overlap: bool) -> list[Any]:
    """What cuLaunchKernelEx takes for a cluster of blocks, and to begin while the kernel before
    ends."""
    cu = driver.api()
    attributes = []
    if cluster > 1:
        attribute, value = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
        attribute.value = value
        attributes.append(attribute)
    if overlap:
        attribute, value = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        attributes.append(attribute)
    return attributes


def _elapsed(events: Sequence[Any]) -> list[float]:
    """Seconds between neighbours."""
    return [
        float(driver.call("cuEventElapsedTime", a, b)) * 1e-3 for a, b in itertools.pairwise(events)
    ]
