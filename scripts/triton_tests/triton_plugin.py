"""The pytest plugin of scripts/triton-tests: imports, the device, rules, a sample, counts."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import fuser_bridge
import pytest

fuser_bridge.install()

from fuser.triton.compiled import NoStageError  # noqa: E402
from fuser.triton.driver import Driver, driver  # noqa: E402

RULES = Path(__file__).with_name("rules")
LEFT_OUT = "left out: "


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--every", type=int, default=1, help="run every N-th case of each file only")
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
    every = config.getoption("--every")
    if every > 1:
        kept, dropped, counts = [], [], Counter()
        for item in items:
            (kept if counts[item.fspath] % every == 0 else dropped).append(item)
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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """A test that goes on to read a stage that fuser has not is left out from there."""
    outcome = yield
    report = outcome.get_result()
    error = call.excinfo.value if call.excinfo is not None else None
    while error is not None and not isinstance(error, NoStageError):
        error = error.__cause__ or error.__context__
    if isinstance(error, NoStageError) and report.failed:
        report.outcome = "skipped"
        place = (str(item.fspath), 0, f"{LEFT_OUT}reads Triton's intermediate code")
        report.longrepr = place


def _reason(report: Any) -> str:
    text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "")
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    files: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    failed: list[str] = []
    for kind in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(kind, ()):
            if not hasattr(report, "nodeid") or (kind == "passed" and report.when != "call"):
                continue
            name = report.nodeid.partition("::")[0].removeprefix("unit/")
            label = "failed" if kind == "error" else kind
            if kind == "skipped":
                why = _reason(report)
                label = "left out" if why.startswith(LEFT_OUT) else "skipped"
                reasons[name][why.removeprefix(LEFT_OUT)] += 1
            if label == "failed":
                failed.append(report.nodeid)
            files[name][label] += 1
            if "interpreter" in getattr(report, "keywords", ()):
                files[name][f"interpreter {label}"] += 1
    for name, counts in sorted(files.items()):
        terminalreporter.write_line(f"{name}: {dict(counts)}")
        for why, count in reasons[name].most_common():
            terminalreporter.write_line(f"    {count} {why}")
    path = config.getoption("--counts")
    if path:
        found = {
            "date": time.strftime("%Y-%m-%d"), "device": config.getoption("--device"),
            "every": config.getoption("--every"), "files": files, "reasons": reasons,
            "failed": failed,
        }  # fmt: skip
        Path(path).write_text(json.dumps(found, indent=1, sort_keys=True))
