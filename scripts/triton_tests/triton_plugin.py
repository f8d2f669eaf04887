"""The pytest plugin of scripts/triton-tests: imports, the device, rules, a sample, counts."""

from __future__ import annotations

import gc
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fuser_bridge
import pytest
import suite_counts
from suite_counts import LEFT_OUT

fuser_bridge.install()

from fuser.triton.compiled import NoStageError  # noqa: E402
from fuser.triton.driver import Driver, driver  # noqa: E402

RULES = Path(__file__).with_name("rules")
TEXT = re.compile(r"\b(ptx|sass|asm|amdgcn)\b")
"""In an assertion: it is about the text of a program."""


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--every", type=int, default=1, help="run every N-th case of each file only")
    parser.addoption("--first", type=int, default=0, help="with --every: the first case, from 0")
    parser.addoption("--counts", default="", help="write counts to this file, as JSON")
    parser.addoption("--no-rules", action="store_true", help="leave nothing out")


def pytest_configure(config: Any) -> None:
    driver.set_active(Driver(config.getoption("--device")))


def rules(device: str) -> list[tuple[re.Pattern[str], str]]:
    """(pattern of test ids, reason) that hold for a device."""
    found, reason = [], ""
    for line in RULES.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            reason = line.strip().rstrip(":")
            continue
        where, _, pattern = line.strip().rpartition(" ")
        if where in ("", device):
            found.append((re.compile(pattern), reason))
    return found


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    every, first = config.getoption("--every"), config.getoption("--first")
    if every > 1:
        kept, dropped, counts = [], [], Counter()
        for item in items:
            (kept if counts[item.fspath] % every == first else dropped).append(item)
            counts[item.fspath] += 1
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
    if config.getoption("--no-rules"):
        return
    known = rules(config.getoption("--device"))
    for item in items:
        name = item.nodeid.rpartition("/")[2]
        for pattern, reason in known:
            if pattern.search(name):
                item.add_marker(pytest.mark.skip(reason=LEFT_OUT + reason))
                break


def pytest_collection_finish() -> None:
    """Triton's tests collect garbage after each case: not among the cases themselves."""
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """A test that goes on to read a stage that fuser has not, or to look for instructions in the
    text of one, is left out from there: it has compared its numbers by then."""
    outcome = yield
    report = outcome.get_result()
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, AssertionError) and report.failed:
        statement = str(call.excinfo.traceback[-1].statement)
        if TEXT.search(statement):
            report.outcome = "skipped"
            reason = f"{LEFT_OUT}looks for instructions in the text of Triton's programs"
            report.longrepr = (str(item.fspath), 0, reason)
            return
    while error is not None and not isinstance(error, NoStageError):
        error = error.__cause__ or error.__context__
    if isinstance(error, NoStageError) and report.failed:
        report.outcome = "skipped"
        place = (str(item.fspath), 0, f"{LEFT_OUT}reads Triton's intermediate code")
        report.longrepr = place


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    found = suite_counts.count(terminalreporter.stats, "unit/")
    suite_counts.show(found, terminalreporter.write_line)
    path = config.getoption("--counts")
    if path:
        record = {
            "date": time.strftime("%Y-%m-%d"), "device": config.getoption("--device"),
            "every": config.getoption("--every"), "first": config.getoption("--first"),
            "files": found.files, "reasons": found.reasons, "failures": found.failures,
            "failed": found.failed,
        }  # fmt: skip
        Path(path).write_text(json.dumps(record, indent=1, sort_keys=True))
