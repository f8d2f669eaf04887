"""How long runs take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Latency:
    """Milliseconds a run, over `iterations` timed runs."""

    median: float
    p90: float
    p99: float
    iterations: int
