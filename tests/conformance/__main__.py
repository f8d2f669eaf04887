"""python -m tests.conformance: the onnx backend suite on fuser, as a table."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.conformance.categories import ORDER
from tests.conformance.document import write
from tests.conformance.run import Outcome, load_tests, run_tests


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="only tests whose name has it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-fusion", action="store_true", help="every operator on its own")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--doc", type=Path, help="write this run (and --also) as Markdown")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="files of --json to add")
    parser.add_argument("-v", "--verbose", action="store_true", help="print failures as they come")
    arguments = parser.parse_args()
    started = time.perf_counter()
    tests = load_tests(arguments.device, arguments.pattern)
    outcomes = []
    for outcome in run_tests(tests, fusion=not arguments.no_fusion, jobs=arguments.jobs):
        outcomes.append(outcome)
        if arguments.verbose and not outcome.passed:
            print(f"{outcome.name}: {outcome.reason}", flush=True)
    outcomes.sort(key=lambda item: (ORDER.index(item.category), item.name))
    print(table(outcomes))
    print(f"{time.perf_counter() - started:.0f} s")
    title = f"{arguments.device}, {'no fusion' if arguments.no_fusion else 'fused'}"
    if arguments.json:
        data = {"title": title, "outcomes": [vars(item) for item in outcomes]}
        arguments.json.write_text(json.dumps(data, indent=0))
    if arguments.doc:
        others = [json.loads(path.read_text()) for path in arguments.also]
        runs = {item["title"]: [Outcome(**row) for row in item["outcomes"]] for item in others}
        write(arguments.doc, {title: outcomes, **runs})
    return 0 if all(item.passed for item in outcomes) else 1


def table(outcomes: list[Outcome]) -> str:
    """Passes by category, and how they were computed."""
    rows = [("category", "passed", "of", "rate", "kernels", "folded", "host")]
    for category in (*ORDER, "all"):
        members = [item for item in outcomes if category in (item.category, "all")]
        if not members:
            continue
        passed = [item for item in members if item.passed]
        ways = Counter(item.how for item in passed)
        rows.append(
            (
                category, str(len(passed)), str(len(members)),
                f"{100 * len(passed) / len(members):.1f} %",
                *(str(ways[way]) for way in ("kernels", "folded", "host")),
            )
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
