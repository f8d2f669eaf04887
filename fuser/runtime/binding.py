"""A plan on tensors that are on the GPU already: what `Plan.bind` returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fuser.errors import UsageError
from fuser.runtime import driver

if TYPE_CHECKING:
    from fuser.runtime.device_layout import Addresses
    from fuser.runtime.dlpack import DeviceTensor


class Executor(Protocol):
    """What a binding needs of the plan's executor (`fuser.runtime.cuda.CudaExecutor`)."""

    ordinal: int

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def last_run(self) -> Any: ...
    def prepare(self, addresses: Addresses) -> list[Any]: ...
    def enqueue(self, stream: Any, calls: Sequence[Any], addresses: Addresses) -> None: ...
    def capture(self, body: Callable[[Any], None]) -> Any: ...


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
        self._calls = executor.prepare(addresses)
        self._ran = False
        self._graph: Any = None
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
        cu = driver.api()
        with executor.lock, driver.current(executor.ordinal):
            idle = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
            if driver.call("cuStreamIsCapturing", stream) != idle:
                executor.enqueue(stream, self._calls, self._addresses)
                return
            if self._graph is None and self._ran:
                self._graph = self._capture(executor)
            driver.call("cuStreamWaitEvent", stream, executor.last_run, 0)
            if self._graph is None:  # a graph pays where these addresses come again
                executor.enqueue(stream, self._calls, self._addresses)
            else:
                driver.call("cuGraphLaunch", self._graph, stream)
            driver.call("cuEventRecord", executor.last_run, stream)
            self._ran = True

    def _capture(self, executor: Executor) -> Any:
        graph = executor.capture(
            lambda stream: executor.enqueue(stream, self._calls, self._addresses)
        )
        self._free = weakref.finalize(self, driver.api().cuGraphExecDestroy, graph)
        self._free.atexit = False
        return graph

    def close(self) -> None:
        """Free the graph and let go of the tensors; the plan does this when it is closed."""
        if self._free is not None:
            self._free()
        self._executor, self._graph, self._tensors, self._calls = None, None, (), []
