"""Runs of a plan of a GPU on arrays of the host: staged in page-locked memory, one CUDA graph.

The graph copies the inputs from page-locked memory, launches every kernel and copies the outputs
back; a second graph has the kernels alone, to time them. What is kept for that is made by the
first such run: plans that are bound to tensors of the GPU never need it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from fuser.runtime import driver
from fuser.runtime.device_layout import Addresses, Layout
from fuser.runtime.device_share import ALIGNMENT, Shared, host_bytes
from fuser.runtime.memory import Recycler, align
from fuser.runtime.program import Program


class Executor(Protocol):
    """What such runs need of the plan's executor (`fuser.runtime.cuda.CudaExecutor`)."""

    program: Program
    ordinal: int
    layout: Layout
    shared: Shared

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def stream(self) -> Any: ...
    @property
    def last_run(self) -> Any: ...
    @property
    def addresses(self) -> Addresses: ...
    def prepare(self, addresses: Addresses) -> list[Any]: ...
    def enqueue(
        self, stream: Any, calls: Sequence[Any], addresses: Addresses,
        after: Callable[[int], None] | None = None,
    ) -> None: ...  # fmt: skip
    def capture(self, body: Callable[[Any], None]) -> Any: ...


class HostRuns:
    """Make it with the plan's lock held and its device current. release: what frees its parts is
    added there, to be called in reverse. Raises OutOfMemoryError."""

    def __init__(self, executor: Executor, release: list[Callable[[], Any]]) -> None:
        self._executor, self._release = executor, release
        program, layout = executor.program, executor.layout
        self._results = [Recycler(spec.shape, spec.dtype.numpy) for spec in program.outputs]
        ends = executor.shared.ends(layout.own - layout.arena, program.name)
        release.append(ends.leave)
        self.ends = ends.address
        first = ends.address - layout.arena
        self.addresses = replace(
            executor.addresses,
            inputs=tuple(first + offset for offset in layout.inputs),
            outputs=tuple(first + offset for offset in layout.outputs),
        )
        self._stage()
        self._calls = executor.prepare(self.addresses)
        self.kernels_graph = self._capture(copies=False)
        self.whole_graph = self._capture(copies=True)

    def _stage(self) -> None:
        """Page-locked memory for inputs and outputs, and NumPy views of it."""
        program = self._executor.program
        sizes = [spec.bytes for spec in (*program.inputs, *program.outputs)]
        total = max(1, sum(align(size, ALIGNMENT) for size in sizes))
        staging = self._executor.shared.staging(total)
        self._release.append(staging.leave)
        pinned, memory = staging.address, host_bytes(staging, total)
        views, pointers, top = [], [], 0
        for spec in (*program.inputs, *program.outputs):
            view = memory[top : top + spec.bytes].view(spec.dtype.numpy).reshape(spec.shape)
            views.append(view)
            pointers.append(pinned + top)
            top += align(spec.bytes, ALIGNMENT)
        count = len(program.inputs)
        self._staged_inputs, self._staged_outputs = views[:count], views[count:]
        self._pinned_inputs, self._pinned_outputs = pointers[:count], pointers[count:]

    def _capture(self, copies: bool, events: Sequence[Any] = ()) -> Any:
        """The plan as an executable graph; with `copies`, from and to page-locked memory. `events`
        (one more than launches) are recorded around the launches."""
        program = self._executor.program

        def body(stream: Any) -> None:
            def record(position: int) -> None:
                external = driver.api().CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL.value
                event = events[position + 1]
                driver.call("cuEventRecordWithFlags", event, stream, external)

            if copies:
                for spec, pinned, target in zip(
                    program.inputs, self._pinned_inputs, self.addresses.inputs, strict=True
                ):
                    if spec.bytes:
                        driver.call("cuMemcpyHtoDAsync", target, pinned, spec.bytes, stream)
            if events:
                record(-1)
            after = record if events else None
            self._executor.enqueue(stream, self._calls, self.addresses, after)
            if copies:
                for spec, pinned, source in zip(
                    program.outputs, self._pinned_outputs, self.addresses.outputs, strict=True
                ):
                    if spec.bytes:
                        driver.call("cuMemcpyDtoHAsync", pinned, source, spec.bytes, stream)

        executable = self._executor.capture(body)
        self._release.append(lambda: driver.api().cuGraphExecDestroy(executable))
        return executable

    # Below, too, the plan's lock is held and its device is current.

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """New host arrays for host arrays."""
        executor = self._executor
        for staged, array in zip(self._staged_inputs, inputs, strict=True):
            staged[...] = array
        # Runs share the arena: the stream goes on after the last bound run.
        driver.call("cuStreamWaitEvent", executor.stream, executor.last_run, 0)
        driver.call("cuGraphLaunch", self.whole_graph, executor.stream)
        driver.call("cuStreamSynchronize", executor.stream)
        outputs = [make()[0] for make in self._results]
        for array, staged in zip(outputs, self._staged_outputs, strict=True):
            array[...] = staged
        return outputs

    def time_replays(self, iterations: int, warmup: int) -> list[float]:
        """Seconds of each replay of the kernels, by the device's clock, without copies, on the
        inputs of the last run."""
        stream = self._executor.stream
        events = [driver.call("cuEventCreate", 0) for _ in range(iterations + 1)]
        try:
            for _ in range(warmup):
                driver.call("cuGraphLaunch", self.kernels_graph, stream)
            driver.call("cuEventRecord", events[0], stream)
            for event in events[1:]:
                driver.call("cuGraphLaunch", self.kernels_graph, stream)
                driver.call("cuEventRecord", event, stream)
            driver.call("cuStreamSynchronize", stream)
            return _elapsed(events)
        finally:
            for event in events:
                driver.api().cuEventDestroy(event)

    def time_kernels(self) -> list[float]:
        """Seconds of each launch in one run, by events between them (about a microsecond each), on
        the inputs of the last run."""
        events, graph = self._timed
        driver.call("cuGraphLaunch", graph, self._executor.stream)
        driver.call("cuStreamSynchronize", self._executor.stream)
        return _elapsed(events)

    @functools.cached_property
    def _timed(self) -> tuple[list[Any], Any]:
        count = len(self._executor.program.launches) + 1
        events = [driver.call("cuEventCreate", 0) for _ in range(count)]
        for event in events:
            self._release.append(functools.partial(driver.api().cuEventDestroy, event))
        return events, self._capture(copies=False, events=events)


def timed_launches(
    executor: Executor, addresses: Addresses, stream: Any, rounds: int
) -> list[float]:
    """Median seconds of each launch of a run at these addresses, by events between them. The
    plan's lock is held and its device is current."""
    count = len(executor.program.launches)
    events = [driver.call("cuEventCreate", 0) for _ in range(count + 1)]
    external = driver.api().CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL.value
    calls = executor.prepare(addresses)

    def body(stream: Any) -> None:
        def record(position: int) -> None:
            driver.call("cuEventRecordWithFlags", events[position + 1], stream, external)

        record(-1)
        executor.enqueue(stream, calls, addresses, record)

    graph = executor.capture(body)
    try:
        found = []
        for _ in range(rounds):
            driver.call("cuStreamWaitEvent", stream, executor.last_run, 0)
            driver.call("cuGraphLaunch", graph, stream)
            driver.call("cuEventRecord", executor.last_run, stream)
            driver.call("cuStreamSynchronize", stream)
            found.append(_elapsed(events))
        return [float(np.median(times)) for times in zip(*found, strict=True)]
    finally:
        driver.api().cuGraphExecDestroy(graph)
        for event in events:
            driver.api().cuEventDestroy(event)


def _elapsed(events: Sequence[Any]) -> list[float]:
    """Seconds between neighbours."""
    return [
        float(driver.call("cuEventElapsedTime", a, b)) * 1e-3 for a, b in itertools.pairwise(events)
    ]
