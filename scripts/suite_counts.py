"""What a run of somebody else's test suite gave: by file, by test function, by reason.

Shared by the pytest plugins of scripts/triton-tests and scripts/package-tests.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEFT_OUT = "left out: "
KINDS = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def reason_of_skip(report: Any) -> str:
    text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "")
    return text.removeprefix("Skipped: ")


def reason_of_failure(report: Any) -> str:
    """The first line of what was raised, with numbers and addresses taken out."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "").strip()
    first = text.strip().partition("\n")[0]
    return re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[-+]?\d+)?", "N", first)[:160]


@dataclass
class Counts:
    """files: outcomes by file. functions: outcomes by test function, of all its cases. reasons: of
    what was skipped, by file. failures: cases by reason. failed: ids of cases."""

    files: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    functions: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)

    def passed_functions(self) -> set[str]:
        """Functions with a case that passed and none that failed."""
        return {
            name
            for name, counts in self.functions.items()
            if counts["passed"] and not counts["failed"]
        }


def count(stats: Mapping[str, Sequence[Any]], prefix: str = "") -> Counts:
    """The counts of a terminal reporter's stats. prefix: of file names, left away."""
    found = Counts()
    for kind in KINDS:
        for report in stats.get(kind, ()):
            if not hasattr(report, "nodeid") or (kind == "passed" and report.when != "call"):
                continue
            name = report.nodeid.partition("::")[0].removeprefix(prefix)
            label = "failed" if kind == "error" else kind
            if kind == "skipped":
                why = reason_of_skip(report)
                label = "left out" if why.startswith(LEFT_OUT) else "skipped"
                found.reasons[name][why.removeprefix(LEFT_OUT)] += 1
            if label == "failed":
                found.failed.append(report.nodeid)
                found.failures[reason_of_failure(report)].append(report.nodeid)
            found.files[name][label] += 1
            found.functions[report.nodeid.removeprefix(prefix).partition("[")[0]][label] += 1
            if "interpreter" in getattr(report, "keywords", ()):
                found.files[name][f"interpreter {label}"] += 1
    return found


def show(found: Counts, write: Any) -> None:
    """Print counts by file, and failures by reason. write: takes a line."""
    for name, counts in sorted(found.files.items()):
        write(f"{name}: {dict(counts)}")
        for why, times in found.reasons[name].most_common():
            write(f"    {times} {why}")
    if found.failures:
        write("failures by reason:")
    for why, cases in sorted(found.failures.items(), key=lambda item: -len(item[1])):
        write(f"    {len(cases)} {why}")
        write(f"        such as {cases[0]}")
