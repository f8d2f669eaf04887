"""What a plan says of itself, as far as the runtime knows it."""

from __future__ import annotations

from typing import Any, Protocol

from fuser.runtime.latency import Latency


class PlanReport(Protocol):
    """What `plan.report()` gives: a `fuser.report.report.Report`, which documents the fields."""

    model: str
    device: str
    kernels: Any
    bytes: Any
    compile_s: float
    cache_hits: int
    peak_memory_bytes: int
    regions: tuple[Any, ...]
    fallbacks: tuple[str, ...]
    dims: dict[str, int]
    values: tuple[str, ...]
    precision: str
    tuned: tuple[Any, ...]
    latency_ms: Latency | None
    compare: Any

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the keys in the order of the schema."""
