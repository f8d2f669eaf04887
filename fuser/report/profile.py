"""Measured kernels in the report: what `fuser run --profile` and `fuser profile` add to it.

Counters are read by a child under Nsight Compute on NVIDIA GPUs (counters_ncu.py), by perf events
in this process on CPUs (counters_perf.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.report.breakdown import breakdown, sentence
from fuser.report.counters import Counted
from fuser.report.counters_ncu import count_under_ncu
from fuser.report.counters_perf import count_events
from fuser.report.kernel_table import kernel_table, own_names
from fuser.report.record import Record
from fuser.report.report import Report
from fuser.report.verdict import Measured, verdicts
from fuser.runtime.latency import Latency
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Profiled
from fuser.runtime.terminal import paragraphs


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


def profile_text(report: Report, verbose: bool = False) -> str:
    """Where the time of a measured run goes, and the table of its kernels. verbose: as in
    `kernel_table`."""
    kernels = kernel_table(Record(report.to_dict()), verbose=verbose)
    return "\n\n".join(filter(None, [paragraphs(where_time_goes(report)), kernels]))


def where_time_goes(report: Report) -> str:
    """Where the time of a run goes, and what bounds the costliest kernels; "" where no run was
    timed."""
    if report.latency_ms is None or report.profile is None:
        return ""
    kernels = [(launch.kind, launch.time_us or 0.0) for launch in report.launches]
    parts = breakdown(kernels, report.latency_ms.median * 1e3, report.profile.device_us)
    kernels_us = report.profile.kernels_us
    measured = [
        Measured(at, name, one.kind, one.time_us or 0.0, one.roofline_us, one.dram.total,
                 one.programs)
        for at, (one, name) in enumerate(
            zip(report.launches, own_names(report.launches), strict=True)
        )
    ]  # fmt: skip
    assert report.target is not None
    found = verdicts(measured, report.target, report.precision.split(" ")[0])
    return "\n".join([sentence(parts), "", *(one.sentence(kernels_us) for one in found)])
