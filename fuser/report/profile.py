"""Measured kernels in the report: what `fuser run --profile` and `fuser profile` add to it.

Counters are read by a child under Nsight Compute on NVIDIA GPUs (counters_ncu.py), by perf events
in this process on CPUs (counters_perf.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.graph.units import byte_size
from fuser.report.breakdown import breakdown, sentence
from fuser.report.counters import Counted
from fuser.report.counters_ncu import count_under_ncu
from fuser.report.counters_perf import count_events
from fuser.report.report import KernelReport, Report
from fuser.report.table import columns, printable
from fuser.report.verdict import Measured, verdicts
from fuser.runtime.latency import Latency
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Profiled


def add_times(
    report: Report, times: Sequence[tuple[str, float]], iterations: int,
    device: Latency | None = None,
) -> None:  # fmt: skip
    """Put the times of `Plan.profile_kernels` into the report of that plan, and on a GPU those of
    `Plan.profile_device`."""
    total = sum(milliseconds for _, milliseconds in times) or 1.0
    report.launches = tuple(
        replace(launch, time_us=milliseconds * 1e3, share=milliseconds / total)
        for launch, (_, milliseconds) in zip(report.launches, times, strict=True)
    )
    kernels = sum(milliseconds for _, milliseconds in times) * 1e3
    report.profile = Profiled(iterations, kernels, device.median * 1e3 if device else None)


def time_kernels(report: Report, plan: Plan, feeds: Mapping[str, Any], iterations: int) -> None:
    """Time the kernels of a plan one by one into its report."""
    device = plan.profile_device(feeds, iterations=iterations) if plan.target.is_cuda else None
    add_times(report, plan.profile_kernels(feeds, iterations=iterations), iterations, device)


def count(plan: Plan, inputs: Sequence[np.ndarray], ordinal: int = 0) -> Counted:
    """Counters of each launch in one run. inputs: in the plan's order. ordinal: which GPU. Raises
    MissingCountersError."""
    if plan.target.is_cuda:
        return count_under_ncu(plan, inputs, ordinal)
    return count_events(plan, inputs)


def add_counters(report: Report, counted: Counted | None, missing: str = "") -> None:
    """Put counters into a report that has times, or why there are none."""
    assert report.profile is not None
    if counted is None:
        report.profile = replace(report.profile, missing=missing)
        return
    report.profile = replace(report.profile, counters=counted.source)
    report.launches = tuple(
        replace(launch, counters=dict(values))
        for launch, values in zip(report.launches, counted.launches, strict=True)
    )


def kernel_table(report: Report) -> str:
    """A line for each kernel, that with the longest time first, and what the numbers are."""
    profile = report.profile
    assert profile is not None
    counters = [*dict.fromkeys(name for item in report.launches for name in item.counters or ())]
    rows = [
        ("#", "kernel", "time us", "share", "roofline us", "x roofline", "boundary",
         "DRAM predicted", *(_heading(name) for name in counters), "nodes", "schedule"),
    ]  # fmt: skip
    places = sorted(range(len(report.launches)), key=lambda i: -(report.launches[i].time_us or 0))
    for place in places:
        launch = report.launches[place]
        rows.append(
            (
                str(place), printable(launch.name), f"{launch.time_us or 0:.2f}",
                f"{100 * (launch.share or 0):.1f} %", f"{launch.roofline_us:.2f}", _ratio(launch),
                byte_size(launch.boundary.total), byte_size(launch.dram.total),
                *(_number(name, (launch.counters or {}).get(name)) for name in counters),
                printable(_nodes(launch.nodes)), _schedule(launch),
            )
        )  # fmt: skip
    lines = [
        *_where(report),
        columns(rows),
        f"sum of the kernels {profile.kernels_us:.2f} us, medians of {profile.iterations} runs",
    ]
    if profile.counters:
        lines.append(f"counters by {profile.counters}")
    measured = [
        item.counters["dram_read_bytes"] + item.counters["dram_written_bytes"]
        for item in report.launches
        if item.counters and "dram_read_bytes" in item.counters
    ]
    if measured:
        predicted = sum(item.dram.total for item in report.launches)
        total = byte_size(int(sum(measured)))
        lines.append(f"DRAM read and written {total}, predicted {byte_size(predicted)}")
    if profile.missing:
        lines.append(f"no counters: {profile.missing}")
    return "\n".join(lines)


def _where(report: Report) -> list[str]:
    """Where the time of a run goes, if a run was timed."""
    if report.latency_ms is None or report.profile is None:
        return []
    kernels = [(launch.kind, launch.time_us or 0.0) for launch in report.launches]
    parts = breakdown(kernels, report.latency_ms.median * 1e3, report.profile.device_us)
    kernels_us = report.profile.kernels_us
    measured = [
        Measured(at, one.name, one.kind, one.time_us or 0.0, one.roofline_us, one.dram.total,
                 one.programs)
        for at, one in enumerate(report.launches)
    ]  # fmt: skip
    assert report.target is not None
    found = verdicts(measured, report.target, report.precision.split(" ")[0])
    return [sentence(parts), "", *(one.sentence(kernels_us) for one in found), ""]


def _ratio(launch: KernelReport) -> str:
    if not launch.roofline_us or launch.time_us is None:
        return ""
    return f"{launch.time_us / launch.roofline_us:.1f}"


def _heading(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ").replace("dram", "DRAM").replace("l2", "L2")


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return byte_size(int(value))
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _nodes(names: Sequence[str]) -> str:
    """The first and the last, and how many there are."""
    if len(names) < 3:
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"


def _schedule(launch: KernelReport) -> str:
    return " ".join(f"{name}={value}" for name, value in launch.schedule.items())
