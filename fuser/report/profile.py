"""Measured kernels in the report: what `fuser run --profile` and `fuser profile` add to it.

Counters are read by a child under Nsight Compute on NVIDIA GPUs (counters_ncu.py), by perf events
in this process on CPUs (counters_perf.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fuser.graph.units import counted, microseconds
from fuser.report.counters import Counted
from fuser.report.counters_ncu import count_under_ncu
from fuser.report.counters_perf import count_events
from fuser.report.kernel_table import kernel_table
from fuser.report.record import Record
from fuser.report.report import Report
from fuser.report.summary import where_time_goes
from fuser.runtime.critical_path import CriticalPath
from fuser.runtime.plan import Plan
from fuser.runtime.terminal import paragraphs

MOST_OFF = 5
"""Kernels off the critical path that are named."""


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
    """Where the time of a measured run goes, the table of its kernels, and its critical path.
    verbose: as in `kernel_table`."""
    record = Record(report.to_dict())
    parts = [where_time_goes(record), kernel_table(record, verbose=verbose)]
    return "\n\n".join(filter(None, [*parts, paragraphs(path_text(report))]))


def path_text(report: Report) -> str:
    """The critical path of a run in a few lines, and that without memory that values share where it
    is shorter; "" where it is not known."""
    path = report.critical_path()
    if path is None or not path.kernels:
        return ""
    lines = [_path_line("critical path", path), *_off_path(path)]
    if path.data_us < 0.99 * path.us:
        apart = report.critical_path(reuse=False)
        assert apart is not None
        lines += [_path_line("if no values shared memory", apart), *_off_path(apart)]
    return "\n".join(lines)


def _path_line(what: str, path: CriticalPath) -> str:
    chain = _nodes([one.name for one in path.kernels])
    return f"{what}: {microseconds(path.us)} of {microseconds(path.total_us)}, {chain}"


def _off_path(path: CriticalPath) -> Iterator[str]:
    """What is not on the path."""
    if not path.off:
        yield f"  all {counted(len(path.kernels), 'kernel')} wait for one another: no overlap"
        return
    off = sum(one.time_us for one in path.off)
    yield (
        f"  off it {counted(len(path.off), 'kernel')}, {microseconds(off)};"
        f" overlap could save {microseconds(path.overlap_us)} at most"
    )
    for one in path.off[:MOST_OFF]:
        yield f"    {microseconds(one.time_us):>8}  {one.name}"
    if len(path.off) > MOST_OFF:
        yield f"    ... {len(path.off) - MOST_OFF} more"


def _nodes(names: Sequence[str]) -> str:
    """The first and the last, and how many there are."""
    if len(names) < 3:
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"
