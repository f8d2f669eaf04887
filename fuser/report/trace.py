"""Compile stages and a run as Chrome trace events, which Perfetto (ui.perfetto.dev) and
chrome://tracing open.

Process 1 is the compile: a span for it, and one a stage inside. Process 2 is a run: a span for it,
inside it one a kernel, laid end to end by their median times, so that the span is their sum; beside
them, each from the same moment, the roofline of each kernel. Times are in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fuser.report.record import Record

COMPILE, RUN = 1, 2
"""The numbers of the processes."""


@dataclass
class Stages:
    """The steps of a compile as they are told, with the time each took. `step` is a progress
    function: it begins one, and hands the name on to `onward`."""

    onward: Callable[[str], None] = lambda step: None
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """Name, begin and end in seconds, by the performance counter."""
    _open: tuple[str, float] | None = None

    def step(self, name: str) -> None:
        self.end()
        self._open = (name, time.perf_counter())
        self.onward(name)

    def end(self) -> None:
        """The step that is open is over."""
        if self._open is not None:
            name, begin = self._open
            self.spans.append((name, begin, time.perf_counter()))
            self._open = None


def trace(record: Record, stages: Iterable[tuple[str, float, float]] = ()) -> dict[str, Any]:
    """The trace of a report and of the stages of its compile. A kernel that was not measured takes
    its roofline time, and its event says so."""
    events = [*_compile(list(stages), record.data["model"]), *_run(record)]
    about = {key: record.data[key] for key in ("model", "device", "dims")}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _compile(stages: list[tuple[str, float, float]], model: str) -> Iterable[dict[str, Any]]:
    if not stages:
        return
    start = stages[0][1]
    yield from _named(COMPILE, "fuser compile", {0: "stages"})
    end = max(end for _, _, end in stages)
    yield _span(f"compile {model}", COMPILE, 0, 0.0, (end - start) * 1e6, {})
    for name, begin, over in stages:
        yield _span(name, COMPILE, 0, (begin - start) * 1e6, (over - begin) * 1e6, {})


def _run(record: Record) -> Iterable[dict[str, Any]]:
    data = record.data
    yield from _named(RUN, f"fuser run on {data['device']}", {0: "kernels", 1: "roofline"})
    facts: dict[str, Any] = {"kernels": len(record.launches), "measured": record.is_measured}
    yield _span(f"run {data['model']}", RUN, 0, 0.0, record.total, facts)
    at = 0.0
    for one in record.launches:
        facts = {
            "kind": one.kind, "region": one.region, "measured": one.time is not None,
            "read_bytes": one.read, "written_bytes": one.written, "dram_bytes": one.dram,
            "flops": one.flops, "roofline_us": one.roofline, "nodes": ", ".join(one.nodes),
            **{f"schedule.{name}": str(value) for name, value in one.schedule.items()},
        }  # fmt: skip
        yield _span(one.own, RUN, 0, at, one.shown_time, facts)
        # The part within the kernel's time, so that events of a track do not overlap.
        yield _span(one.own, RUN, 1, at, min(one.roofline, one.shown_time), {})
        at += one.shown_time


def _span(
    name: str, process: int, thread: int, begin: float, length: float, facts: dict[str, Any]
) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": begin, "dur": length,
            "args": facts}  # fmt: skip


def _named(process: int, name: str, threads: dict[int, str]) -> Iterable[dict[str, Any]]:
    """The events that name a process and its threads."""
    yield {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}
    for number, thread in threads.items():
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": number,
               "args": {"name": thread}}  # fmt: skip
