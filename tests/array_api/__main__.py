"""python -m tests.array_api CHECKOUT: the array API test suite on the namespace of traced arrays.

CHECKOUT is a clone of data-apis/array-api-tests with its submodule (git clone --recursive);
it needs the packages of its requirements.txt. Tests about no function that the namespace claims,
and those of complex numbers, are skipped. Exits with 1 if a test is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.foreign_sections import replace_section

KINDS = ("passed", "as NumPy", "refused", "wrong")
FILES = (
    "array_object", "creation_functions", "data_type_functions", "indexing_functions", "linalg",
    "manipulation_functions", "operators_and_elementwise_functions", "searching_functions",
    "sorting_functions", "special_cases", "statistical_functions", "utility_functions",
)  # fmt: skip

_INTRODUCTION = """\
The [array API test suite](https://github.com/data-apis/array-api-tests) on the namespace of traced
arrays: every call of a function that a test is about is traced, compiled and run on its own
(`tests/array_api/eager.py`); {examples} examples a test. `python -m tests.array_api` runs it
(`--help`).

- as NumPy: NumPy's own function fails the same test; fuser does what NumPy does.
- refused: a documented limit (a shape that depends on data, an empty result).
- Not counted: {skipped} tests about functions that are not claimed, and about complex numbers.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.array_api", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--examples", type=int, default=20, help="of a test")
    parser.add_argument("--files", nargs="*", default=FILES, help="test_FILE.py of the suite")
    parser.add_argument("--json", type=Path, help="write every outcome to this file, a line each")
    parser.add_argument("--doc", type=Path, help="write the table into this page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="array-api-") as folder:
        log = arguments.json or Path(folder) / "outcomes"
        log.unlink(missing_ok=True)
        os.environ.setdefault("FUSER_CACHE_DIR", folder)
        run_suite(arguments.checkout, arguments.files, arguments.examples, log.resolve())
        rows = read(log)
    print("\n".join(table(rows)))
    for row in rows:
        if row["kind"] in ("refused", "wrong"):
            print(f"{row['kind']}: {row['test']}: {row['reason'][:300]}")
    if arguments.doc:
        write(arguments.doc, rows, arguments.examples)
    return 1 if not rows or any(row["kind"] == "wrong" for row in rows) else 0


def run_suite(checkout: Path, files: Sequence[str], examples: int, log: Path) -> None:
    """Run the suite in a process of its own, in its own folder."""
    environment = {
        **os.environ, "ARRAY_API_TESTS_MODULE": "tests.array_api.eager", "ARRAY_API_LOG": str(log),
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-q", "--tb=no", "-W", "ignore", "-p", "no:cacheprovider",
        "-p", "tests.array_api.plugin", "--disable-deadline", "--derandomize",
        "--max-examples", str(examples), *(f"array_api_tests/test_{name}.py" for name in files),
    ]  # fmt: skip
    subprocess.run(command, cwd=checkout, env=environment, check=False)


def read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts by file of the suite."""
    lines = [f"| tests of | {' | '.join(KINDS)} |", "|---|" + "---:|" * len(KINDS)]
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        name = Path(row["test"].partition("::")[0]).stem.removeprefix("test_").replace("_", " ")
        counted[name, row["kind"]] += 1
        counted["all", row["kind"]] += 1
    names = dict.fromkeys(name for name, _ in counted if name != "all")
    for name in (*names, "all"):
        if any(counted[name, kind] for kind in KINDS):
            lines.append(f"| {name} | {' | '.join(str(counted[name, k]) for k in KINDS)} |")
    return lines


def write(path: Path, rows: Sequence[dict[str, Any]], examples: int) -> None:
    """Put the section into the page."""
    skipped = sum(row["kind"] == "skipped" for row in rows)
    text = _INTRODUCTION.format(examples=examples, skipped=skipped)
    others = [row for row in rows if row["kind"] in ("refused", "wrong")]
    lines = [
        f"- {row['kind']}: {row['test'].partition('::')[2]}: {row['reason'][:120]}"
        for row in others
    ]
    replace_section(path, "Array API tests: cpu", "\n".join([text, *table(rows), "", *lines]))


if __name__ == "__main__":
    sys.exit(main())
