"""Clocks that a test moves, in place of the machine's: what was measured is what the test says."""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

import pytest

from fuser.runtime import cpu_launch, door

_KEPT: list[Any] = []
"""Native code and its clocks: functions that were made of it may outlive the test."""
_CLOCK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))


class Clock:
    """Each look moves it by `step` nanoseconds, so that whatever is measured lasts that long.
    looks: how often it was asked."""

    def __init__(self) -> None:
        self.step, self.now, self.looks = 1, 0, 0

    def nanoseconds(self) -> int:
        self.looks += 1
        self.now += self.step
        return self.now

    def seconds(self) -> float:
        """As time.perf_counter."""
        return self.nanoseconds() * 1e-9

    def write(self, kind: int, found: Any) -> int:
        """As clock_gettime."""
        now = self.nanoseconds()
        found[0], found[1] = now // 1_000_000_000, now % 1_000_000_000
        return 0


def moved_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of launches on the CPU, native ones and others, until the test ends."""
    clock = Clock()
    native = _CLOCK(clock.write)
    address = ctypes.cast(native, ctypes.c_void_p).value
    monkeypatch.setattr(door, "clock", lambda: address)
    monkeypatch.setattr(door, "_library", functools.cache(door._library.__wrapped__))
    monkeypatch.setattr(door, "_method", functools.cache(door._method.__wrapped__))
    monkeypatch.setattr(cpu_launch, "time", SimpleNamespace(perf_counter=clock.seconds))
    _KEPT.extend([native, door._library, door._method])
    return clock
