"""Counters of hardware, kernel by kernel: what `fuser profile` adds to the times.

On NVIDIA GPUs a child runs the plan under Nsight Compute (counters_ncu.py), on CPUs the kernel's
perf events count in this process (counters_perf.py). Where neither can be had, one line says what
is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuser.runtime.plan import Plan


class MissingCountersError(Exception):
    """There are no counters; the text says what is missing."""


@dataclass(frozen=True)
class Counted:
    """source: what counted, with its version. launches: of each launch of a plan, by the names in
    docs/report.md."""

    source: str
    launches: Sequence[Mapping[str, float]]


def count(plan: Plan, inputs: Sequence[np.ndarray], ordinal: int = 0) -> Counted:
    """Counters of each launch in one run. inputs: in the plan's order. ordinal: which GPU. Raises
    MissingCountersError."""
    if plan.target.is_cuda:
        from fuser.report.counters_ncu import count_under_ncu

        return count_under_ncu(plan, inputs, ordinal)
    from fuser.report.counters_perf import count_events

    return count_events(plan, inputs)
