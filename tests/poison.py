"""Memory that shows where nothing was written: poisoned before every run of every plan.

Values between kernels, scratch memory and outputs hold words of 0x7fffffff: NaN as float64,
float32, float16 and bfloat16, and large as integers. A kernel that leaves out an element shows it,
where the memory of an earlier run would have held the right value. There is no pytest here, since
random graphs run where it is not installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from fuser.runtime import cpu
from fuser.runtime.plan import Plan

WORD = 0x7FFFFFFF


def fill(array: np.ndarray) -> np.ndarray:
    """Poison a C-contiguous array in place."""
    if array.dtype == bool:
        array[...] = True
        return array
    data = array.reshape(-1).view(np.uint8)
    whole = data.size // 4 * 4
    data[:whole].view(np.uint32)[...] = WORD
    data[whole:] = 0xFF
    return array


@contextmanager
def poisoned() -> Iterator[None]:
    """Within, every run of a plan, on a CPU or a GPU, finds poison where it has not written."""
    with ExitStack() as patches:
        _poison_cpu(patches)
        _poison_gpu(patches)
        yield


def run_poisoned(plan: Plan, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`plan.run` in poisoned memory."""
    with poisoned():
        return plan.run(feeds)


def _poison_cpu(patches: ExitStack) -> None:
    run_on = cpu.CpuExecutor._run_on
    aligned_empty = cpu.aligned_empty

    def run_poisoned(self: cpu.CpuExecutor, context: Any, times: np.ndarray | None = None) -> None:
        outputs = self.program.outputs
        for spec, at in zip(outputs, context.bases[len(self.program.inputs) :], strict=False):
            memory = (ctypes.c_uint8 * spec.bytes).from_address(int(at))
            fill(np.frombuffer(memory, spec.dtype.numpy))
        fill(context.arena)
        fill(context.scratch)
        run_on(self, context, times)

    patches.enter_context(mock.patch.object(cpu.CpuExecutor, "_run_on", run_poisoned))
    filled = mock.patch.object(cpu, "aligned_empty", lambda *args: fill(aligned_empty(*args)))
    patches.enter_context(filled)


def _poison_gpu(patches: ExitStack) -> None:
    try:
        from fuser.runtime import cuda, driver
    except ImportError:
        return
    run = cuda.CudaExecutor.run

    def run_poisoned(self: cuda.CudaExecutor, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with self.lock, driver.current(self.ordinal):
            driver.call("cuStreamWaitEvent", self.stream, self.last_run, 0)
            layout = self.layout
            memory = {self.host.addresses.base: layout.arena}
            memory[self.host.ends] = layout.own - layout.arena
            for address, size in memory.items():
                if size:
                    driver.call("cuMemsetD32Async", address, WORD, size // 4, self.stream)
        return run(self, inputs)

    patches.enter_context(mock.patch.object(cuda.CudaExecutor, "run", run_poisoned))
