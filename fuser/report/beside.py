"""Runs of a plan in turns with the plan without fusion, and their kernels: what fusion is worth in
time, and where the time goes."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar, cast

from fuser.errors import FuserError
from fuser.report.turns import Clock, in_turns, timed, typical
from fuser.runtime.feeds import check_feeds
from fuser.runtime.latency import Latency
from fuser.runtime.plan import Plan, latency_of
from fuser.runtime.plan_report import Profiled, Report, Timed, Unfused
from fuser.runtime.savings import Saving, Traffic

T = TypeVar("T")
MAX_COMPILE_S = 60.0
"""Seconds of compiling the fused plan up to which the unfused one is compiled, too."""
MAX_MEMORY_SHARE = 0.25
"""Share of the machine's memory that a second plan may take."""


class Runs(Protocol):
    """A plan that can be timed."""

    def run(self, feeds: Mapping[str, Any]) -> Any: ...


class TimesKernels(Protocol):
    """A plan whose kernels can be timed one by one."""

    def profile_kernels(
        self, feeds: Mapping[str, Any] | None = None, *, iterations: int = 10
    ) -> list[tuple[str, float]]: ...


class Timeable(Runs, Protocol):
    """A plan, or one with parts on the host, whose kernels cannot be timed one by one."""

    def report(self) -> Report: ...


Kernels = Literal["none", "own", "both"]
"""Plans whose kernels are timed one by one: none, the plan, or also the plan without fusion."""


def measure(
    report: Report, plan: Timeable, feeds: Mapping[str, Any], iterations: int, warmup: int = 2, *,
    unfused: Callable[[], Timeable] | None = None, kernels: Kernels = "none",
    clock: Clock = time.perf_counter,
) -> None:  # fmt: skip
    """Time runs of a plan, its kernels, and the plan without fusion, in turns, into the report of
    the plan. unfused: compiles that; where it is not run the report says why. kernels: only of
    plans that are a `Plan`. iterations: of each, at least 1."""
    alone, note = make_unfused(report, unfused) if unfused else (None, "")
    plans = [plan, *([alone] if alone else [])]
    apart = [cast("Plan", one) for one in plans[: {"none": 0, "own": 1, "both": 2}[kernels]]]
    ways: list[Callable[[], list[float]]] = [
        *(timed(functools.partial(one.run, feeds), clock) for one in plans),
        *(functools.partial(_launches, one, feeds) for one in apart),
    ]
    for one in plans:
        for _ in range(warmup):
            one.run(feeds)
    for one in apart:
        _launches(one, feeds)
    found = in_turns(ways, iterations)
    latencies = [latency_of([seconds for (seconds,) in runs]) for runs in found[: len(plans)]]
    times = [typical(runs) for runs in found[len(plans) :]]
    report.latency_ms = latencies[0]
    if apart:
        on_device = None
        if apart[0].target.is_cuda:
            on_device = apart[0].profile_device(feeds, iterations=iterations).median * 1e3
        add_times(report, times[0], iterations, on_device)
    if unfused:
        report.unfused = Unfused(note=note and f"the plan without fusion is predicted: {note}")
    if alone:
        _put_beside(report, alone.report(), latencies[1], times[1] if len(apart) > 1 else ())


def make_unfused(report: Report, compile_unfused: Callable[[], T]) -> tuple[T | None, str]:
    """The plan without fusion, or None and why there is none: where that with fusion, which
    `report` is of, took too long or too much memory, and where it does not compile."""
    if why := _left_out(report):
        return None, why
    try:
        return compile_unfused(), ""
    except FuserError as error:
        return None, f"without fusion it does not compile: {error}"


def _launches(plan: Plan, feeds: Mapping[str, Any]) -> list[float]:
    """Seconds of each launch of one run."""
    return plan.executor.time_kernels(check_feeds(plan.inputs, feeds))


def _put_beside(report: Report, alone: Report, latency: Latency, times: Sequence[float]) -> None:
    """Put the time, launches and bytes of the plan without fusion into the report of the other.
    times: seconds of its kernels, where they were timed."""
    launches = tuple(
        Timed(launch.name, launch.kind, launch.nodes, seconds * 1e6)
        for launch, seconds in zip(alone.launches, times, strict=False)
    )
    report.unfused = Unfused(latency, launches)
    report.kernels = Saving(alone.kernels.after, report.kernels.after)
    report.boundary = _beside(alone.boundary, report.boundary)
    report.dram = _beside(alone.dram, report.dram)
    report.dram_cold = _beside(alone.dram_cold, report.dram_cold)


def add_times(
    report: Report, times: Sequence[float], iterations: int, device_us: float | None = None
) -> None:
    """Put times of kernels, seconds in the order of the launches, into a report. iterations: runs
    that they are a typical one of. device_us: of a run on a GPU with its data in place."""
    total = sum(times)
    report.launches = tuple(
        replace(launch, time_us=seconds * 1e6, share=seconds / (total or 1.0))
        for launch, seconds in zip(report.launches, times, strict=True)
    )
    report.profile = Profiled(iterations, total * 1e6, device_us)


def _left_out(report: Report) -> str:
    """Why a plan without fusion is not made; empty where it is."""
    if report.compile_s > MAX_COMPILE_S:
        return f"compiling took {report.compile_s:.0f} s"
    if report.peak_memory_bytes > MAX_MEMORY_SHARE * physical_bytes():
        return "a second plan would take too much memory"
    return ""


def physical_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _beside(alone: Traffic, fused: Traffic) -> Traffic:
    return replace(fused, before=alone.after, floor=min(alone.floor, fused.floor))
