"""Counters of a CPU: perf events of Linux, for every thread of this process, between launches.

User space alone is counted, which needs no rights where kernel.perf_event_paranoid is at most 2.
What a call of no launch counts is taken off. Numbers of events: include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from fuser.report.counters import Counted, MissingCountersError
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.plan import Plan

HARDWARE, SOFTWARE = 0, 1
EVENTS: Mapping[str, tuple[int, int]] = {
    "cycles": (HARDWARE, 0), "instructions": (HARDWARE, 1), "llc_misses": (HARDWARE, 3),
}  # fmt: skip
"""Name: the event's type and number."""

RUNS = 5
"""Runs that each count is the median of."""

_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
_PINNED, _NO_KERNEL, _NO_HYPERVISOR = 1 << 2, 1 << 5, 1 << 6
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class Events:
    """Counters of all threads that the process has now. Raises MissingCountersError."""

    def __init__(self, events: Mapping[str, tuple[int, int]] = EVENTS) -> None:
        number = _SYSTEM_CALL.get(platform.machine())
        if number is None or platform.system() != "Linux":
            raise MissingCountersError("not available here: perf events are of Linux")
        self._library = ctypes.CDLL(None, use_errno=True)
        self._files: dict[str, list[int]] = {name: [] for name in events}
        try:
            for thread in map(int, os.listdir("/proc/self/task")):
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    for name, event in events.items():
                        self._files[name].append(self._open(number, *event, thread))
        except OSError as error:
            self.close()
            raise MissingCountersError(reason(error.errno or 0)) from error

    def _open(self, number: int, kind: int, event: int, thread: int) -> int:
        flags = _NO_KERNEL | _NO_HYPERVISOR | (_PINNED if kind == HARDWARE else 0)
        fields = struct.pack("IIQQQQQ", kind, 128, event, 0, 0, 0, flags).ljust(128, b"\0")
        attributes = ctypes.create_string_buffer(fields, 128)
        file = int(self._library.syscall(number, attributes, thread, -1, -1, 0))
        if file < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")
        return file

    def read(self) -> dict[str, int]:
        """Each event so far, over all threads."""
        return {name: sum(map(_value, files)) for name, files in self._files.items()}

    def close(self) -> None:
        for files in self._files.values():
            while files:
                os.close(files.pop())


def _value(file: int) -> int:
    data = os.read(file, 8)
    if len(data) < 8:
        raise MissingCountersError("not available here: other programs hold the counters")
    return int(struct.unpack("Q", data)[0])


def reason(number: int) -> str:
    """Why perf_event_open failed with this errno, in one line."""
    if number in (errno.EACCES, errno.EPERM):
        try:
            level = _PARANOID.read_text().strip()
        except OSError:
            level = "unknown"
        return (
            f"not permitted: kernel.perf_event_paranoid is {level}; 2 or less, or CAP_PERFMON,"
            " would do"
        )
    if number in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "not available here: this machine shows no performance counters (PMU)"
    if number == errno.ENOSYS:
        return "not available here: there is no perf_event_open"
    return f"not available here: {os.strerror(number)}"


def count_events(
    plan: Plan, inputs: Sequence[np.ndarray], events: Mapping[str, tuple[int, int]] = EVENTS
) -> Counted:
    """Events of each launch in a run. Raises MissingCountersError."""
    executor = cast("CpuExecutor", plan.executor)
    executor.run_kernels(inputs, lambda launch, run: run())  # threads are there, caches warm
    counters = Events(events)
    try:
        runs = [_count_run(executor, inputs, counters) for _ in range(RUNS)]
    finally:
        counters.close()
    medians = np.median(np.array(runs), axis=0)
    return Counted("perf events", [dict(zip(events, map(float, row), strict=True))
                                   for row in medians])  # fmt: skip


def _count_run(
    executor: CpuExecutor, inputs: Sequence[np.ndarray], counters: Events
) -> list[list[int]]:
    """The count of each event for each launch, minus that of a call that launches nothing."""
    found: list[list[int]] = []

    def around(launch: int, run: Callable[[], None]) -> None:
        before = counters.read()
        run()
        after = counters.read()
        found.append([after[name] - before[name] for name in after])

    executor.run_kernels(inputs, around)
    none, *launches = found
    return [[max(0, a - b) for a, b in zip(row, none, strict=True)] for row in launches]
