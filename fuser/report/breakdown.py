"""Where the time of a run goes: kinds of kernels, between kernels, the host.

The parts add up to the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuser.graph.units import microseconds
from fuser.report.markup import percent

BETWEEN, HOST = "between kernels", "host, copies of inputs and outputs"


@dataclass(frozen=True)
class Part:
    """A part of a run, in microseconds. kind: of its kernels; empty for what is no kernel."""

    label: str
    us: float
    kind: str = ""


def breakdown(
    kernels: Iterable[tuple[str, float]], run_us: float, device_us: float | None = None
) -> list[Part]:
    """The parts of a run, kinds of kernels by their time. kernels: kind and microseconds of each;
    run_us: of the whole run as a caller sees it; device_us: of the run on a GPU with its data in
    place.

    Kernels are timed one by one. Where they take longer so than in a run, in which they overlap,
    each kind gets its share of the run."""
    totals: dict[str, float] = {}
    for kind, us in kernels:
        totals[kind] = totals.get(kind, 0.0) + us
    together = sum(totals.values())
    busy = min(run_us, run_us if device_us is None else device_us)
    scale = min(1.0, busy / together) if together else 1.0
    found = [Part(kind, us * scale, kind) for kind, us in totals.items()]
    found.sort(key=lambda part: -part.us)
    between = busy - together * scale
    if device_us is None:
        return [*found, Part(f"{BETWEEN}, {HOST}", between)]
    return [*found, Part(BETWEEN, between), Part(HOST, run_us - busy)]


def sentence(parts: Sequence[Part]) -> str:
    """The parts in words."""
    whole = sum(part.us for part in parts)
    told = (f"{part.label} {microseconds(part.us)} ({percent(part.us, whole)})" for part in parts)
    return f"a run of {microseconds(whole)}: " + ", ".join(told)
