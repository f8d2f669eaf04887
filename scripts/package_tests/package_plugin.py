"""The pytest plugin of scripts/package-tests: rules, a sample, a time limit, counts."""

from __future__ import annotations

import json
import math
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import start
import suite_counts
from packages import PACKAGES
from start import OPTIONS
from suite_counts import LEFT_OUT

PACKAGE = PACKAGES[OPTIONS["name"]]
ON_CPU = OPTIONS["device"] == "cpu"
PAUSE = 5
"""Seconds between two writings of the counts."""
RECORDED = ("name", "device", "cuda_is_cpu", "most", "triton")
"""Options that the counts name."""
ASKS_FOR_CUDA = "asks for CUDA"
NEEDS_CUDA = re.compile(r"\b(cuda|gpus?|nvidia|hopper|blackwell|sm_?\d+)\b", re.IGNORECASE)
"""In the reason of a skip, in a run on the CPU."""
NO_CUDA = re.compile(
    "not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
)
"""In what PyTorch raises for a device of CUDA where there is none."""


def pytest_load_initial_conftests(early_config: Any) -> None:
    start.answer()  # pytest has a finder of its own by now


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "flaky: run again by a plugin that need not be there")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    rules = [*PACKAGE.left_out, *(PACKAGE.cpu_left_out if ON_CPU else ())]
    for item in items:
        why = next((reason for pattern, reason in rules if re.search(pattern, item.nodeid)), None)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT + why))
    most = OPTIONS["most"]
    if not most:
        return
    cases: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for group in cases.values():
        taken = min(most, len(group))
        kept |= {group[n * len(group) // taken] for n in range(taken)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds of the clock, in Python code. 0: no limit."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    with _limit(OPTIONS["case_seconds"]):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    outcome = yield
    _sort(outcome.get_result(), str(item.path))


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: Any) -> Any:
    outcome = yield
    _sort(outcome.get_result(), str(getattr(collector, "path", "")))


def _sort(report: Any, path: str) -> None:
    """In a run on the CPU, what asks for CUDA is left out."""
    if not ON_CPU:
        return
    if report.skipped:
        asks = bool(NEEDS_CUDA.search(suite_counts.reason_of_skip(report)))
        asks = asks and not hasattr(report, "wasxfail")
    else:
        asks = report.failed and bool(NO_CUDA.search(str(report.longrepr)))
    if asks:
        report.outcome = "skipped"
        report.longrepr = (path, 0, LEFT_OUT + ASKS_FOR_CUDA)


def pytest_sessionstart(session: Any) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Record(session), "package_record")


class _Record:
    """Keeps reports; writes counts as they grow, so that they outlive a run that is killed; ends
    a session in time."""

    def __init__(self, session: Any) -> None:
        self.session, self.config = session, session.config
        self.end = time.monotonic() + (OPTIONS["seconds"] or math.inf)
        self.written = 0.0
        self.stats: dict[str, list[Any]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: Any) -> None:
        status = self.config.hook.pytest_report_teststatus(report=report, config=self.config)
        self.stats[status[0]].append(report)
        now = time.monotonic()
        if now > self.end:
            self.session.shouldstop = "its time is over"
        if now > self.written + PAUSE:
            self.written = now
            self.write()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.stats["error"].append(report)
        if report.skipped:
            self.stats["skipped"].append(report)

    def write(self) -> suite_counts.Counts:
        """The counts so far, also in the file."""
        found = suite_counts.count(self.stats)
        if OPTIONS["counts"]:
            record = {
                "date": time.strftime("%Y-%m-%d"), "files": found.files,
                "reasons": found.reasons, "failures": found.failures, "failed": found.failed,
                "functions": found.functions,
                "passed functions": sorted(found.passed_functions()),
                **{name: OPTIONS[name] for name in RECORDED},
            }  # fmt: skip
            Path(OPTIONS["counts"]).write_text(json.dumps(record, indent=1, sort_keys=True))
        return found


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    record = config.pluginmanager.get_plugin("package_record")
    if record is None:
        return
    write = terminalreporter.write_line
    found = record.write()
    suite_counts.show(found, write)
    write(f"functions: {len(found.passed_functions())} of {len(found.functions)} passed")
    if OPTIONS["compare"]:
        _compare(json.loads(Path(OPTIONS["compare"]).read_text()), found, write)


def _compare(other: dict[str, Any], found: suite_counts.Counts, write: Any) -> None:
    """Which functions passed in the other run and do not in this one."""
    wanted = set(other["passed functions"])
    both = wanted & found.passed_functions()
    write(f"of {len(wanted)} functions that passed there, {len(both)} pass here")
    for name in sorted(wanted - both):
        counts = found.functions.get(name, Counter())
        write(f"    {name}: {dict(counts) or 'did not run'}")
