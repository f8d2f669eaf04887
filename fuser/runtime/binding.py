"""A plan on tensors that are on the GPU already: what `Plan.bind` and `Plan.at` return."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fuser.base.forks import new_lock
from fuser.errors import DeviceError, FeedError, UsageError
from fuser.runtime import driver
from fuser.runtime.replay import make_replay

if TYPE_CHECKING:
    from fuser.runtime.device_layout import Addresses
    from fuser.runtime.dlpack import DeviceTensor
    from fuser.runtime.program import TensorSpec

MOST_RECENT = 16
"""Bindings that `Placed` keeps; allocators hand out the same few addresses again and again."""


class Executor(Protocol):
    """What a binding needs of the plan's executor (`fuser.runtime.cuda.CudaExecutor`)."""

    ordinal: int

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def last_run(self) -> Any: ...
    def prepare(self, addresses: Addresses) -> list[Any]: ...
    def enqueue(self, stream: Any, calls: Sequence[Any], addresses: Addresses) -> None: ...
    def run_by_copies(self, stream: Any, addresses: Addresses) -> bool: ...
    def capture(self, body: Callable[[Any], None]) -> Any: ...
    def bind_at(self, pointers: Sequence[int]) -> Binding: ...


class Binding:
    """Runs a plan from bound inputs to bound outputs, without copies. It keeps them alive.

    Bindings and runs of one plan share its memory between kernels; runs on several streams follow
    one another. Use a plan a stream to overlap them.
    """

    def __init__(
        self, executor: Executor, addresses: Addresses, tensors: Sequence[DeviceTensor]
    ) -> None:
        self._executor: Executor | None = executor
        self._addresses = addresses
        self._tensors = tuple(tensors)
        self._calls: list[Any] | None = None
        self._ran = False
        self._graph: Any = None
        self._replay: Callable[[int], bool] | None = None
        self._free: weakref.finalize[..., Binding] | None = None

    def run(self, stream: int = 0) -> None:
        """Put a run on a stream (a CUstream handle; 0: the default stream) and return at once.

        On a stream that is being captured the kernels become part of that capture; keep the binding
        and the plan as long as the captured graph, and let nothing else of the plan run beside it.
        Otherwise a graph of the kernels is replayed, from the second run on. Raises UsageError once
        the plan is closed.
        """
        executor = self._executor
        if executor is None:
            raise UsageError("the plan is closed", hint="compile the model again")
        with executor.lock:
            if self._replay is not None and self._replay(int(stream)):
                return
            with driver.current(executor.ordinal):
                self._run_slowly(executor, stream)

    def _run_slowly(self, executor: Executor, stream: int) -> None:
        cu = driver.api()
        idle = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        if driver.call("cuStreamIsCapturing", stream) != idle:
            self._enqueue(executor, stream)
            return
        if self._graph is None and self._ran:
            self._graph = self._capture(executor)
            last_run = int(executor.last_run)
            self._replay = make_replay(executor.ordinal, int(self._graph), last_run)
        driver.call("cuStreamWaitEvent", stream, executor.last_run, 0)
        if self._graph is not None:  # one pays where these addresses come again
            driver.call("cuGraphLaunch", self._graph, stream)
        elif not executor.run_by_copies(stream, self._addresses):
            self._enqueue(executor, stream)
        driver.call("cuEventRecord", executor.last_run, stream)
        self._ran = True

    def _enqueue(self, executor: Executor, stream: Any) -> None:
        if self._calls is None:
            self._calls = executor.prepare(self._addresses)
        executor.enqueue(stream, self._calls, self._addresses)

    def _capture(self, executor: Executor) -> Any:
        graph = executor.capture(lambda stream: self._enqueue(executor, stream))
        self._free = weakref.finalize(self, _destroy, graph, executor.ordinal)
        self._free.atexit = False
        return graph

    def close(self) -> None:
        """Free the graph and let go of the tensors; the plan does this when it is closed."""
        if self._free is not None:
            self._free()
        self._executor, self._graph, self._replay = None, None, None
        self._tensors, self._calls = (), None


def _destroy(graph: Any, ordinal: int) -> None:
    with contextlib.suppress(DeviceError), driver.freeing(ordinal):
        driver.api().cuGraphExecDestroy(graph)


class Placed:
    """A plan some of whose inputs are at fixed addresses: `Plan.at`. Bindings of the addresses seen
    last are kept. Safe to use from many threads."""

    def __init__(self, executor: Executor, fixed: Mapping[int, int]) -> None:
        """fixed: addresses by the number of the input."""
        self._executor, self._fixed = executor, dict(sorted(fixed.items()))
        self._recent: OrderedDict[tuple[int, ...], Binding] = OrderedDict()
        self._last: tuple[tuple[int, ...], Binding] | None = None
        self._lock = new_lock()

    def __call__(self, pointers: Sequence[int], stream: int = 0) -> None:
        """Put a run on a stream: from the other inputs to the outputs, in order. Raises UsageError
        once the plan is closed."""
        key, last = tuple(pointers), self._last
        if last is not None and last[0] == key:
            return last[1].run(stream)
        with self._lock:
            binding = self._recent.get(key)
            if binding is None:
                binding = self._recent[key] = self._executor.bind_at(self._everything(key))
                if len(self._recent) > MOST_RECENT:
                    self._recent.popitem(last=False)
            self._recent.move_to_end(key)
            self._last = key, binding
        return binding.run(stream)

    def _everything(self, pointers: Sequence[int]) -> list[int]:
        found = list(pointers)
        for place, pointer in self._fixed.items():
            found.insert(place, pointer)
        return found


def overlaps(
    specs: Sequence[TensorSpec], sources: Sequence[DeviceTensor], targets: Sequence[DeviceTensor]
) -> Iterator[tuple[TensorSpec, TensorSpec, bool]]:
    """Pairs that share memory, of an input or output, and an output behind it; and whether both are
    outputs. Kernels may write the one before the last of them has read the other. specs: of the
    inputs, and then of the outputs."""
    begins = [item.address for item in (*sources, *targets)]
    met: list[int] = []
    for number in sorted(range(len(specs)), key=lambda i: begins[i]):
        met = [other for other in met if begins[other] + specs[other].bytes > begins[number]]
        for other in met if specs[number].bytes else ():
            first, second = sorted((other, number))
            if second >= len(sources):
                yield specs[first], specs[second], first >= len(sources)
        met.append(number)


def sharing(first: TensorSpec, second: TensorSpec) -> FeedError:
    """The error for two that must not share memory."""
    return FeedError(
        f"{first.name!r} and {second.name!r} share memory",
        hint="bind outputs to memory of their own",
    )
