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
        seconds = session.config.getoption("--seconds")
        session.config.pluginmanager.register(_Clock(session, seconds or math.inf))


class _Clock:
    """Ends a session in time, so that its counts are printed."""

    def __init__(self, session: Any, seconds: float) -> None:
        self.session, self.end = session, time.monotonic() + seconds

    def pytest_runtest_logreport(self, report: Any) -> None:
        if time.monotonic() > self.end:
            self.session.shouldstop = "its time is over"


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if hasattr(config, "workerinput"):
        return
    write = terminalreporter.write_line
    found = suite_counts.count(terminalreporter.stats, "test/")
    suite_counts.show(found, write)
    passed = found.passed_functions()
    write(f"functions: {len(passed)} of {len(found.functions)} passed")
    path = config.getoption("--compare")
    if path:
        _compare(json.loads(Path(path).read_text()), found, write)
    path = config.getoption("--counts")
    if path:
        record = {
            "date": time.strftime("%Y-%m-%d"), "most": config.getoption("--most"),
            "triton": config.getoption("--triton"), "files": found.files,
            "reasons": found.reasons, "failures": found.failures, "failed": found.failed,
            "functions": found.functions, "passed functions": sorted(passed),
        }  # fmt: skip
        Path(path).write_text(json.dumps(record, indent=1, sort_keys=True))


def _compare(other: dict[str, Any], found: suite_counts.Counts, write: Any) -> None:
    """Which functions passed in the other run and do not in this one."""
    wanted = set(other["passed functions"])
    both = wanted & found.passed_functions()
    write(f"of {len(wanted)} functions that passed there, {len(both)} pass here")
    for name in sorted(wanted - both):
        counts = found.functions.get(name, Counter())
        write(f"    {name}: {dict(counts) or 'did not run'}")
