"""Running a Program on an NVIDIA GPU: on tensors that are there (`Binding`), or on arrays of the
host (`HostRuns`), by CUDA graphs.

Memory is taken when it is first needed: of values between kernels by the first run that does not
bring its own, of inputs and outputs by the first run on arrays of the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.base.target import SM_75, SM_80, SM_90A, Target
from fuser.errors import DeviceError, UsageError
from fuser.runtime import driver
from fuser.runtime.binding import Binding, Placed, overlaps, sharing
from fuser.runtime.cuda_host import HostRuns
from fuser.runtime.device_code import tensor_map
from fuser.runtime.device_layout import Addresses, lay_out
from fuser.runtime.device_share import Shared, Weights, check_memory
from fuser.runtime.device_tensors import DeviceArray, Event, check_tensors, upload
from fuser.runtime.dlpack import LEGACY_STREAM, DeviceTensor
from fuser.runtime.program import (
    IN_PLACE,
    BufferRef,
    Exchange,
    Launch,
    Program,
    Steady,
    alone,
    exchanges_of,
)

if TYPE_CHECKING:
    from fuser.runtime.nccl import NcclRank

MOST_COPIED = 1 << 26
"""Bytes of inputs and outputs that are rather copied (some 25 microseconds on an H200) than every
kernel launched by itself."""


@functools.cache
def device_target(ordinal: int = 0) -> Target:
    """The Target of a GPU of this machine. Raises DeviceError."""
    major = driver.attribute("COMPUTE_CAPABILITY_MAJOR", ordinal)
    minor = driver.attribute("COMPUTE_CAPABILITY_MINOR", ordinal)
    if major * 10 + minor < SM_75.sm:
        raise DeviceError(
            f"{driver.name(ordinal)} has compute capability {major}.{minor}",
            hint="fuser needs 7.5 (Turing) or later; or use the cpu",
        )
    units = driver.attribute("MULTIPROCESSOR_COUNT", ordinal)
    shared = driver.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", ordinal)
    cache = driver.attribute("L2_CACHE_SIZE", ordinal)
    return describe(major * 10 + minor, units, shared, cache)


def describe(capability: int, units: int, shared_bytes: int, l2_bytes: int) -> Target:
    """The Target of a GPU by its attributes: rates scale with the multiprocessors of the record of
    its generation. What is newer than Hopper runs code for sm_80, which every later GPU accepts."""
    base = SM_90A if capability == 90 else SM_80 if capability >= 80 else SM_75
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
    weights: shared with executors of other kernels.
    Raises DeviceError, OutOfMemoryError (before anything is launched) or CompileError.
    """

    def __init__(
        self, program: Program, ordinal: int = 0, like: CudaExecutor | None = None,
        weights: Weights | None = None,
    ) -> None:  # fmt: skip
        self.program = program
        self.ordinal = ordinal
        self.layout = lay_out(program)
        self._release: list[Callable[[], Any]] = []  # undone in reverse
        self.bindings: weakref.WeakSet[Binding] = weakref.WeakSet()
        self._anywhere: Placed | None = None
        self.ranks: NcclRank | None = None
        other: Shared | None = None
        if like is not None and like.shared.fits(program, ordinal):
            other = like.shared
        if other is None:
            check_memory(self.layout.total, ordinal, program.name, whole=True)
        try:
            with driver.current(ordinal):
                _finish_others()
                self.shared: Shared = other or Shared(program, ordinal, weights)
                self.lock, self.modules = self.shared.lock, self.shared.modules
                self.stream, self.last_run = self.shared.stream, self.shared.last_run
                self.shared.enter()
                self._release.append(self.shared.leave)
        except BaseException:
            self.close()
            raise

    @functools.cached_property
    def addresses(self) -> Addresses:
        """Of runs in the plan's own memory. To be asked with the lock held."""
        with driver.current(self.ordinal):
            work = self.shared.work(self.layout.arena, self.program.name)
        self._release.append(work.leave)
        return Addresses(work.address, self.shared.constant_addresses, self.layout)

    @functools.cached_property
    def host(self) -> HostRuns:
        """The same of runs on arrays of the host."""
        with driver.current(self.ordinal):
            return HostRuns(self, self._release)

    # building the graph -------------------------------------------------------------------------

    def prepare(self, addresses: Addresses) -> list[Callable[[Any, bool], None]]:
        """For each launch a function that puts it on a stream; its second argument allows the
        launch to begin while the kernel before it ends."""
        return [self._prepare(launch, addresses) for launch in self.program.launches]

    def _prepare(self, launch: Launch, memory: Addresses) -> Callable[[Any, bool], None]:
        kernel = launch.kernel
        pointers = [memory.address(ref) for ref in launch.arguments]
        exchange = Exchange.of(kernel)
        if exchange is not None:
            return self._collective(exchange, *pointers)
        cu = driver.api()
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

    def _collective(
        self, exchange: Exchange, source: int, target: int
    ) -> Callable[[Any, bool], None]:
        ranks = self.ranks
        if ranks is None:
            raise alone(self.program.name)

        def go(stream: Any, overlap: bool) -> None:
            ranks.enqueue(exchange, source, target, int(stream))

        return go

    def join(self, comm: Any) -> None:
        """See `Plan.join`: comm is a `fuser.runtime.nccl.NcclRank`."""
        with self.lock, driver.current(self.ordinal):
            comm.prepare(exchanges_of(self.program.launches))
        self.ranks = comm

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
                kernel_before = bool(launch.kernel.code)  # a collective lets none begin early
            if after is not None:
                after(position)
        for copy in self.program.copies:
            target = addresses.address(BufferRef("output", copy.output))
            size = self.program.outputs[copy.output].bytes
            self._move(target, addresses.address(copy.source), size, stream)

    def capture(self, body: Callable[[Any], None]) -> Any:
        """What `body` puts on the stream it is given as an executable graph, the caller's to
        destroy. The stream is for captures alone: a thread that waits for the plan's stream
        meanwhile would end the capture with an error."""
        try:
            graph = driver.capture(self.shared.capture_stream, body)
        except DeviceError as error:
            error.where = error.where or self.program.name
            raise
        try:
            return driver.call("cuGraphInstantiate", graph, 0)
        finally:
            driver.api().cuGraphDestroy(graph)

    # running ------------------------------------------------------------------------------------

    @property
    def device_name(self) -> str:
        return f"cuda ({driver.name(self.ordinal)})"

    @property
    def peak_memory_bytes(self) -> int:
        return self.layout.total

    @property
    def threads(self) -> None:
        """Of the host: a plan has none there."""

    @property
    def workspace_bytes(self) -> int:
        """See `Plan.workspace_bytes`."""
        return self.layout.arena

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """New host arrays for host arrays."""
        with self.lock, driver.current(self.ordinal):
            return self.host.run(inputs)

    def run_device(
        self, feeds: Mapping[str, Any], stream: int | None = None,
        targets: Mapping[str, DeviceArray] | None = None,
    ) -> dict[str, DeviceArray]:  # fmt: skip
        """See `Plan.run_device`. targets: outputs, by name, to be written where they are, which may
        be where an input is: then by a copy. Raises FeedError."""
        program, ordinal = self.program, self.ordinal
        order = int(self.stream) if stream is None else stream or LEGACY_STREAM
        moved = upload(program.inputs, feeds, ordinal, order)
        found = check_tensors(program.inputs, {**feeds, **moved}, ordinal, "input", order)
        given = dict(targets or {})
        specs = [spec for spec in program.outputs if spec.name in given]
        written = check_tensors(specs, given, ordinal, "output", order)
        shared = set()
        for first, second, are_outputs in overlaps([*program.inputs, *specs], found, written):
            if are_outputs:
                raise sharing(first, second)
            shared.add(second.name)
        direct = {name: array for name, array in given.items() if name not in shared}
        outputs = [
            direct.get(spec.name) or DeviceArray(spec.shape, spec.dtype, ordinal)
            for spec in program.outputs
        ]
        for other in dict.fromkeys(item.stream for item in found):
            if other is not None:
                Event(ordinal, other).before(order)  # what computes the feeds
        self.run_at([item.address for item in found], [item.pointer for item in outputs], order)
        with driver.current(ordinal):
            for spec, array in zip(program.outputs, outputs, strict=True):
                if spec.name in shared:
                    self._move(given[spec.name].pointer, array.pointer, spec.bytes, order)
        if stream is None:
            with driver.current(ordinal):
                driver.call("cuStreamSynchronize", self.stream)
        else:
            ready = Event(ordinal, order, moved)
            for array in (*outputs, *given.values()):
                array.ready = ready
        made = {spec.name: a for spec, a in zip(program.outputs, outputs, strict=True)}
        return made | given

    def run_at(
        self, sources: Sequence[int], targets: Sequence[int], stream: int, workspace: int = 0
    ) -> None:
        """See `Plan.run_at`."""
        if self._anywhere is None:
            self._anywhere = Placed(self, {})
        own = (workspace,) if workspace else ()
        self._anywhere((*sources, *targets, *own), stream)

    def at(self, fixed: Mapping[int, int]) -> Steady:
        """See `Plan.at`."""
        return Placed(self, fixed)

    def bind_at(self, pointers: Sequence[int]) -> Binding:
        """Inputs, outputs and, if there is one more, a workspace at these addresses; the caller
        keeps what lies there."""
        first = len(self.program.inputs)
        last = first + len(self.program.outputs)
        return self._bound(pointers[:first], pointers[first:last], (), *pointers[last:])

    def run_by_copies(self, stream: Any, addresses: Addresses) -> bool:
        """Put a run on a stream by way of the plan's own memory, whose graph is there already;
        False where that copies more than it saves."""
        if self.layout.own > MOST_COPIED or self.program.facts.get(IN_PLACE):
            return False
        own = self.host
        for i, spec in enumerate(self.program.inputs):
            source = addresses.address(BufferRef("input", i))
            self._move(own.addresses.inputs[i], source, spec.bytes, stream)
        driver.call("cuGraphLaunch", own.kernels_graph, stream)
        for i, spec in enumerate(self.program.outputs):
            target = addresses.address(BufferRef("output", i))
            self._move(target, own.addresses.outputs[i], spec.bytes, stream)
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
        specs = [*program.inputs, *program.outputs]
        for first, second, _ in overlaps(specs, sources, targets):
            raise sharing(first, second)
        read, written = [item.address for item in sources], [item.address for item in targets]
        return self._bound(read, written, (*sources, *targets))

    def _bound(
        self, sources: Sequence[int], targets: Sequence[int], tensors: Sequence[DeviceTensor],
        workspace: int = 0,
    ) -> Binding:  # fmt: skip
        """With values between kernels in the plan's own memory unless there is a workspace."""
        with self.lock:
            if not self._release:
                raise UsageError("the plan is closed", hint="compile the model again")
            if workspace:
                own = Addresses(workspace, self.shared.constant_addresses, self.layout)
            else:
                own = self.addresses
        addresses = replace(own, inputs=tuple(sources), outputs=tuple(targets))
        binding = Binding(self, addresses, tensors)
        self.bindings.add(binding)
        return binding

    def time_replays(
        self, inputs: Sequence[np.ndarray] | None, iterations: int, warmup: int
    ) -> list[float]:
        """Seconds of each replay of the kernels, by the device's clock, without copies; on the
        inputs of the last run if there are none."""
        if inputs is not None:
            self.run(inputs)
        with self.lock, driver.current(self.ordinal):
            return self.host.time_replays(iterations, warmup)

    def time_kernels(self, inputs: Sequence[np.ndarray]) -> list[float]:
        """Seconds of each launch in one run, by events between them (about a microsecond each)."""
        self.run(inputs)
        with self.lock, driver.current(self.ordinal):
            return self.host.time_kernels()

    def facts(self) -> list[dict[str, Any]]:
        """What the driver knows of each launch's kernel: registers, spills, compiler warnings."""
        kernels = [launch.kernel for launch in self.program.launches]
        return [self.modules[k.code].facts if k.code else {} for k in kernels]

    def close(self) -> None:
        release, self._release = self._release, []
        if not release:
            return
        for binding in list(self.bindings):
            binding.close()
        self._anywhere = None
        try:
            with driver.current(self.ordinal):
                with contextlib.suppress(DeviceError):  # it may be the program that captures
                    driver.synchronize()
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
                driver.synchronize()
                for action in reversed(release):
                    action()
        except DeviceError:
            return


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
