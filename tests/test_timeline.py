"""benchmarks/timeline.py: what kernels add to a run, from the events that a profiler gives."""

from __future__ import annotations

import pytest

from benchmarks.timeline import Event, runs_of, show


def kernel(name: str, start: float, lasts: float) -> Event:
    facts = {"grid": [4, 1, 1], "block": [128, 1, 1]}
    return {"name": name, "ts": start, "dur": lasts, "cat": "kernel", "args": facts}


def test_kernels_that_overlap_add_what_they_end_later(capsys: pytest.CaptureFixture[str]) -> None:
    """The second starts under the first; a run that the profiler did not see whole is left out."""
    events = [
        kernel(name, 100.0 * run + start, lasts)
        for run in range(5)
        for name, start, lasts in (("one", 0, 10), ("two", 4, 9), ("one", 14, 2))
    ][:-1]
    runs = runs_of(events, 3)
    assert [[event["ts"] for event in run] for run in runs] == [[200, 204, 214], [300, 304, 314]]
    show("model", runs, 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model: 3 kernels, 2 runs, 16.0 us"
    adds = [line.split("adds")[1].split()[0] for line in lines[1:3]]
    assert adds == ["10.00", "3.00"]
    assert lines[4].split()[:6] == ["13.0", "us", "in", "2,", "6.50", "each"]
