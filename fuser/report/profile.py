"""Measured kernels in the report: what `fuser run --profile` and `fuser profile` add to it.

Counters are read by a child under Nsight Compute on NVIDIA GPUs (counters_ncu.py), by perf events
in this process on CPUs (counters_perf.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuser.report.counters import Counted
from fuser.report.counters_ncu import count_under_ncu
from fuser.report.counters_perf import count_events
from fuser.report.report import Report
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Profiled


def add_times(report: Report, times: Sequence[tuple[str, float]], iterations: int) -> None:
    """Put the times of `Plan.profile_kernels` into the report of that plan."""
    total = sum(milliseconds for _, milliseconds in times) or 1.0
    report.launches = tuple(
        replace(launch, time_us=milliseconds * 1e3, share=milliseconds / total)
        for launch, (_, milliseconds) in zip(report.launches, times, strict=True)
    )
    report.profile = Profiled(iterations, sum(milliseconds for _, milliseconds in times) * 1e3)


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
