"""Launching one CPU kernel on memory of a caller.

The entry takes the addresses of the buffers, behind them that of the numbers (values of symbolic
sizes, then the bits of scalars, 8 bytes each), and a range of programs. Which launches are worth
more than one thread, `fuser.runtime.launch_cost` says.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from fuser.backend.cores import available_cores
from fuser.backend.module import CompiledKernel
from fuser.errors import OutOfMemoryError, UsageError
from fuser.graph.units import byte_size
from fuser.runtime import launch_cost
from fuser.runtime.cpu import CHUNKS_PER_THREAD
from fuser.runtime.door import Record
from fuser.runtime.geometry import Geometry
from fuser.runtime.jit import link_objects, runtime_library
from fuser.runtime.memory import address, align, aligned_empty
from fuser.runtime.native_words import Door
from fuser.runtime.threads import Pool, get_pool

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_SPREAD = ctypes.CFUNCTYPE(
    ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
    ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip


_kernels: weakref.WeakSet[CpuKernel] = weakref.WeakSet()
"""Those with native launches."""


class CpuKernel:
    """A linked kernel. Many threads may launch it at the same time."""

    def __init__(self, kernel: CompiledKernel, threads: int | None = None) -> None:
        """threads: how many may work on a launch, as a rule all cores."""
        self.kernel = kernel
        self.geometry = Geometry(kernel)
        self.threads = max(1, threads or available_cores())
        self.scratch_stride = align(kernel.scratch_bytes, 64)
        self._code = link_objects({kernel.entry: kernel.code})
        self.entry = self._code[kernel.entry]
        self._run = _ENTRY(self.entry)
        self._spread = _SPREAD(runtime_library()["fuser_spread"])
        self._free: list[tuple[np.ndarray, int]] = []
        self._doors: list[weakref.ref[Record]] = []
        self._pool: Pool | None = None
        self.estimate = np.zeros(1, np.int64)
        """What a program costs; 0 before the first launch."""

    def launch(
        self,
        pointers: Sequence[int],
        grid: Sequence[int] | None = None,
        values: Mapping[str, int] | None = None,
        scalars: Sequence[int] = (),
    ) -> None:
        """Run the kernel on buffers at these addresses, and return when it is done.

        grid: programs by axis of the kernel; values: of symbols; scalars: see
        `geometry.scalar_bits`, in the order of facts["scalars"]. The caller checks that the memory
        is what the code was compiled for. Raises UsageError.
        """
        placed = self.geometry.at(grid, values or {})
        if len(scalars) != len(self.geometry.scalars):
            raise UsageError(
                f"{len(scalars)} scalars for {len(self.geometry.scalars)}", where=self.kernel.name
            )
        if placed.programs:
            self.launch_numbers(pointers, (*placed.sizes, *scalars), placed.programs)

    def launch_numbers(
        self, pointers: Sequence[int], numbers: Sequence[int], programs: int
    ) -> None:
        """`launch` of what is known in full."""
        memory = aligned_empty(8 * (align(len(numbers), 8) + len(pointers) + 1)).view(np.int64)
        memory[: len(numbers)] = numbers
        start = align(len(numbers), 8)
        memory[start : start + len(pointers)] = pointers
        memory[start + len(pointers)] = address(memory)
        buffers = address(memory) + 8 * start
        scratch, at = self._scratch()
        first = 0
        if not self.estimate[0]:
            began = time.perf_counter()
            self._run(buffers, 0, 1, at)
            self.estimate[0] = launch_cost.first_estimate(time.perf_counter() - began)
            first = 1
        if first < programs:
            self._run_rest(buffers, first, programs - first, at)
        if self.scratch_stride:
            self._free.append((scratch, at))

    def _run_rest(self, buffers: int, first: int, programs: int, scratch: int) -> None:
        estimate = int(self.estimate[0])
        chunks = launch_cost.chunks(estimate, programs, self.threads)
        pool = get_pool(self.threads) if chunks > 1 else None
        if pool is not None and pool is not self._pool:
            self._arm(pool)
        alone = pool is None
        began = time.perf_counter()
        if pool is None:
            self._run(buffers, first, first + programs, scratch)
        else:
            alone = not self._spread(
                pool.pointer, self.entry, buffers, first, programs, chunks, scratch,
                self.scratch_stride,
            )  # fmt: skip
        spent = time.perf_counter() - began
        self.estimate[0] = launch_cost.learned(estimate, programs, spent, alone)

    def _scratch(self) -> tuple[np.ndarray, int]:
        """Memory for each thread, and its address."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        try:
            made = aligned_empty(self.scratch_stride * self.threads)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"a launch needs {byte_size(self.scratch_stride * self.threads)} of scratch memory",
                where=self.kernel.name,
            ) from error
        return made, address(made)

    def fill_door(self, record: Record) -> None:
        """The words of a native launch of this kernel."""
        record[Door.ENTRY], record[Door.THREADS] = self.entry, self.threads
        record[Door.STRIDE], record[Door.ESTIMATE] = self.scratch_stride, address(self.estimate)
        record[Door.MOST_CHUNKS] = self.threads * CHUNKS_PER_THREAD
        if self.scratch_stride:
            scratch, record[Door.SCRATCH] = self._scratch()
            record.keep.append(scratch)
        self._doors.append(weakref.ref(record, self._doors.remove))
        _kernels.add(self)
        self._arm(self._pool)

    def _arm(self, pool: Pool | None) -> None:
        """Tell the native launches of the pool; without one they leave to others what is worth
        it."""
        self._pool = pool
        for reference in list(self._doors):
            record = reference()
            if record is None:
                continue
            record[Door.POOL] = pool.pointer if pool is not None else 0


def _forget_pools() -> None:
    """In a forked child: the threads of the parent's pools do not exist here."""
    for kernel in list(_kernels):
        kernel._arm(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
