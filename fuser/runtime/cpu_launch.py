"""Launching one CPU kernel on memory of a caller.

The entry takes the addresses of the buffers, behind them that of the numbers (values of symbolic
sizes, then the bits of scalars, 8 bytes each), and a range of programs. A launch that takes less
time than waking a thread runs on the caller's; any other is spread over the worker pool. What a
program costs is measured by the first launches.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from fuser.backend.cores import available_cores
from fuser.backend.module import CompiledKernel
from fuser.errors import OutOfMemoryError, UsageError
from fuser.runtime.cpu import ALONE_SECONDS, CHUNKS_PER_THREAD, WAKE_SECONDS
from fuser.runtime.door import Record
from fuser.runtime.geometry import Geometry
from fuser.runtime.jit import link_objects, runtime_library
from fuser.runtime.memory import address, align, aligned_empty
from fuser.runtime.native_words import Door
from fuser.runtime.threads import Pool, get_pool

MEASURED = 3
"""Launches that are timed: the least time counts, for others may take the processor away."""

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_SPREAD = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_int64,
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
        self.measured = 0
        self.program_seconds = 0.0
        """What a program takes, as far as launches were measured."""

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
        chunks = self.chunks(programs)
        pool = get_pool(self.threads) if chunks > 1 else None
        if pool is not None and pool is not self._pool:
            self._arm(pool)
        # A pool serves one launch at a time; one that finds it busy uses its own thread alone.
        alone = pool is None or not pool.lock.acquire(blocking=False)
        began = time.perf_counter()
        if pool is None or alone:
            self._run(buffers, 0, programs, at)
        else:
            try:
                self._spread(
                    pool.pointer, self.entry, buffers, programs, chunks, at, self.scratch_stride
                )
            finally:
                pool.lock.release()
        if self.measured < MEASURED:
            spent = time.perf_counter() - began
            began = time.perf_counter()
            self._run(buffers, 0, 0, at)  # no program: the time of the call itself
            spent = max(spent - (time.perf_counter() - began), 1e-9 * programs)
            self._learn(spent * (1 if alone else min(self.threads, chunks)) / programs)
        if self.scratch_stride:
            self._free.append((scratch, at))

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
                f"a launch needs {self.scratch_stride * self.threads} bytes of scratch memory",
                where=self.kernel.name,
            ) from error
        return made, address(made)

    def _learn(self, seconds: float) -> None:
        self.program_seconds = min(seconds, self.program_seconds or seconds)
        self.measured += 1
        if self.measured == MEASURED:
            self._arm(self._pool)

    def fill_door(self, record: Record) -> None:
        """The words of a native launch of this kernel."""
        record[Door.ENTRY], record[Door.THREADS] = self.entry, self.threads
        record[Door.STRIDE] = self.scratch_stride
        if self.scratch_stride:
            scratch, record[Door.SCRATCH] = self._scratch()
            record.keep.append(scratch)
        self._doors.append(weakref.ref(record, self._doors.remove))
        _kernels.add(self)
        self._arm(self._pool)

    def _arm(self, pool: Pool | None) -> None:
        """Tell the native launches which launches use which pool: all need one that is not there
        until a program's cost is known, for slow launches measure it."""
        self._pool = pool
        for reference in list(self._doors):
            record = reference()
            if record is None:
                continue
            record[Door.POOL] = 0
            least, chunk = 0, 1
            if self.measured >= MEASURED:
                least = max(2, math.ceil(WAKE_SECONDS / self.program_seconds))
                chunk = max(1, math.ceil(ALONE_SECONDS / self.program_seconds))
                least = least if self.threads > 1 else (1 << 63) - 1
            record[Door.POOL_PROGRAMS], record[Door.CHUNK_PROGRAMS] = least, chunk
            record[Door.MOST_CHUNKS] = self.threads * CHUNKS_PER_THREAD
            if pool is not None and self.measured >= MEASURED:
                calls = pool.try_lock, pool.lock.release
                record.keep += calls
                record[Door.ACQUIRE], record[Door.RELEASE] = map(id, calls)
                record[Door.POOL] = pool.pointer

    def chunks(self, programs: int) -> int:
        """How many chunks a launch is cut into; below 2: the calling thread runs it alone."""
        cost = programs * self.program_seconds
        if self.threads < 2 or programs < 2 or (self.measured and cost < WAKE_SECONDS):
            return 0
        wanted = self.threads * CHUNKS_PER_THREAD
        if self.measured:  # a chunk should be worth claiming
            wanted = min(wanted, max(self.threads, int(cost / ALONE_SECONDS)))
        return min(programs, align(wanted, self.threads))


def _forget_pools() -> None:
    """In a forked child: the threads of the parent's pools do not exist here."""
    for kernel in list(_kernels):
        kernel._arm(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
