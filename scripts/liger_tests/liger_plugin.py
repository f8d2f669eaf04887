"""The pytest plugin of scripts/liger-tests: imports, a sample, counts, a comparison."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import suite_counts

from fuser.triton.imports import imports

PACKAGES = ("liger_kernel", "test")
PAUSE = 5
"""Seconds between two writings of the counts."""
_answers = ExitStack()
"""Holds for the whole run."""


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--triton", action="store_true", help="run with the real Triton")
    parser.addoption("--most", type=int, default=0, help="cases of a test function, 0: all")
    parser.addoption("--seconds", type=float, default=0, help="stop after so many, 0: at the end")
    parser.addoption("--counts", default="", help="write counts to this file, as JSON")
    parser.addoption("--compare", default="", help="a counts file to compare with")


def pytest_load_initial_conftests(early_config: Any) -> None:
    if not early_config.known_args_namespace.triton:
        _answers.enter_context(imports(*PACKAGES))


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "flaky: run again by a plugin that need not be there")


def pytest_unconfigure(config: Any) -> None:
    _answers.close()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    most = config.getoption("--most")
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


def pytest_sessionstart(session: Any) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Record(session), "liger_record")


class _Record:
    """Keeps reports; writes counts as they grow, so that they outlive a run that is killed; ends
    a session in time."""

    def __init__(self, session: Any) -> None:
        self.session, self.config = session, session.config
        self.end = time.monotonic() + (self.config.getoption("--seconds") or math.inf)
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

    def write(self) -> suite_counts.Counts:
        """The counts so far, also in the file."""
        found = suite_counts.count(self.stats, "test/")
        path = self.config.getoption("--counts")
        if path:
            record = {
                "date": time.strftime("%Y-%m-%d"), "most": self.config.getoption("--most"),
                "triton": self.config.getoption("--triton"), "files": found.files,
                "reasons": found.reasons, "failures": found.failures, "failed": found.failed,
                "functions": found.functions,
                "passed functions": sorted(found.passed_functions()),
            }  # fmt: skip
            Path(path).write_text(json.dumps(record, indent=1, sort_keys=True))
        return found


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    record = config.pluginmanager.get_plugin("liger_record")
    if record is None:
        return
    write = terminalreporter.write_line
    found = record.write()
    suite_counts.show(found, write)
    write(f"functions: {len(found.passed_functions())} of {len(found.functions)} passed")
    path = config.getoption("--compare")
    if path:
        _compare(json.loads(Path(path).read_text()), found, write)


def _compare(other: dict[str, Any], found: suite_counts.Counts, write: Any) -> None:
    """Which functions passed in the other run and do not in this one."""
    wanted = set(other["passed functions"])
    both = wanted & found.passed_functions()
    write(f"of {len(wanted)} functions that passed there, {len(both)} pass here")
    for name in sorted(wanted - both):
        counts = found.functions.get(name, Counter())
        write(f"    {name}: {dict(counts) or 'did not run'}")
