"""The plan without fusion, run beside the fused one: what fusion is worth in time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from fuser.errors import FuserError
from fuser.runtime.latency import Latency
from fuser.runtime.plan import Plan, latency_of
from fuser.runtime.plan_report import Report, Timed, Unfused
from fuser.runtime.savings import Saving, Traffic

MAX_COMPILE_S = 60.0
"""Of the fused plan. One that took longer is not compiled again without fusion."""
MAX_MEMORY_SHARE = 0.25
"""Of the machine's memory: what a second plan may take."""
ROUNDS = 5
"""Turns that the runs of each plan are divided into, so that both meet the same disturbances."""

Clock = Callable[[], float]


class Runs(Protocol):
    """What can be timed."""

    def run(self, feeds: Mapping[str, Any]) -> Any: ...


class TimesKernels(Protocol):
    """What has kernels that can be timed one by one."""

    def profile_kernels(
        self, feeds: Mapping[str, Any] | None = None, *, iterations: int = 10
    ) -> list[tuple[str, float]]: ...


class Timeable(Runs, Protocol):
    """A plan, or one with parts on the host, whose kernels cannot be timed one by one."""

    def report(self) -> Report: ...


def add_unfused(
    report: Report, plan: Timeable, compile_unfused: Callable[[], Timeable],
    feeds: Mapping[str, Any], iterations: int, warmup: int = 2, kernels: bool = False,
) -> None:  # fmt: skip
    """Compile the plan without fusion, time both in turns, and put latencies and what the unfused
    plan launches and moves into the report of `plan`. Where it is not run, the fused one is timed
    alone and the report says why. kernels: time each kernel of both plans, too."""
    unfused, why = None, _left_out(report)
    if not why:
        try:
            unfused = compile_unfused()
        except FuserError as error:
            why = f"without fusion it does not compile: {error}"
    if unfused is None:
        report.unfused = Unfused(note=why)
        (report.latency_ms,) = latencies([plan], feeds, iterations, warmup)
        return
    report.latency_ms, latency = latencies([plan, unfused], feeds, iterations, warmup)
    alone = unfused.report()
    launches: tuple[Timed, ...] = ()
    if kernels and isinstance(plan, Plan) and isinstance(unfused, Plan):
        from fuser.report.profile import time_kernels

        times, others = kernels_in_turns([plan, unfused], feeds, iterations)
        time_kernels(report, plan, feeds, iterations, times)
        launches = tuple(
            Timed(launch.name, launch.kind, launch.nodes, milliseconds * 1e3)
            for launch, (_, milliseconds) in zip(alone.launches, others, strict=True)
        )
    report.unfused = Unfused(latency, launches)
    report.kernels = Saving(alone.kernels.after, report.kernels.after)
    report.boundary = _beside(alone.boundary, report.boundary)
    report.dram = _beside(alone.dram, report.dram)
    report.dram_cold = _beside(alone.dram_cold, report.dram_cold)


def _left_out(report: Report) -> str:
    """Why a plan without fusion is not made; empty where it is."""
    if report.compile_s > MAX_COMPILE_S:
        return f"compiling took {report.compile_s:.0f} s: the plan without fusion is predicted"
    if report.peak_memory_bytes > MAX_MEMORY_SHARE * physical_bytes():
        return "a second plan would take too much memory: the plan without fusion is predicted"
    return ""


def physical_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _beside(alone: Traffic, fused: Traffic) -> Traffic:
    return replace(fused, before=alone.after, floor=min(alone.floor, fused.floor))


def kernels_in_turns(
    plans: Sequence[TimesKernels], feeds: Mapping[str, Any], iterations: int
) -> list[list[tuple[str, float]]]:
    """The name and milliseconds of each kernel of each plan, medians of turns."""
    turns = min(ROUNDS, iterations)
    found: list[list[list[tuple[str, float]]]] = [[] for _ in plans]
    for _ in range(turns):
        for place, plan in enumerate(plans):
            found[place].append(plan.profile_kernels(feeds, iterations=iterations // turns))
    return [
        [(same[0][0], median(time for _, time in same)) for same in zip(*each, strict=True)]
        for each in found
    ]


def latencies(
    plans: Sequence[Runs], feeds: Mapping[str, Any], iterations: int, warmup: int,
    clock: Clock = time.perf_counter,
) -> list[Latency]:  # fmt: skip
    """The latency of each plan, timed in turns. clock: seconds."""
    times: list[list[float]] = [[] for _ in plans]
    for plan in plans:
        for _ in range(warmup):
            plan.run(feeds)
    for turn in range(ROUNDS):
        runs = iterations * (turn + 1) // ROUNDS - iterations * turn // ROUNDS
        for place, plan in enumerate(plans):
            for _ in range(runs):
                start = clock()
                plan.run(feeds)
                times[place].append(clock() - start)
    return [latency_of(found) for found in times]
