"""python -m tests.ort_operators CHECKOUT: ONNX Runtime's operator tests on fuser.

CHECKOUT is a copy of https://github.com/microsoft/onnxruntime, or a part of it. The C++ files of
its tests under `onnxruntime/test` are read as text (interpret.py): what they give an operator, and
what they expect. Tests that need more of C++ than is read, or that expect an error, are left out.
Exits with 1 if a case that ONNX Runtime confirms is wrong, or one fails, crashes or hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.foreign_sections import replace_section
from tests.worker_pool import answers

ORDER = ("right", "refused", "wrong", "failed", "crashed", "hung", "unread")
CHILD = [sys.executable, "-m", "tests.ort_operators.child"]
FOLDERS = ("onnxruntime/test/providers/cpu", "onnxruntime/test/contrib_ops")

_INTRODUCTION = """\
The C++ tests of ONNX Runtime's operators, read as text: what they give an operator and what they
expect ({where}). {read} of {tests} tests were read to their end and make {cases} distinct cases;
the others need more of C++ than is read. Tolerances are those of the tests. confirmed: ONNX Runtime
{version} on a CPU gives the expected results, too; the others are of types or operators that it
lacks there, or differ. `python -m tests.ort_operators CHECKOUT` runs it (`--help`).
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ort_operators", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("pattern", nargs="?", default="", help="only files whose name has it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-fusion", action="store_true", help="every primitive on its own")
    parser.add_argument("--no-peer", action="store_true", help="without ONNX Runtime")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=60, help="seconds a case may take")
    parser.add_argument("--json", type=Path, help="write every outcome to this file, a line each")
    parser.add_argument("--doc", type=Path, help="write the results into this page")
    arguments = parser.parse_args()
    files = sorted(
        str(path)
        for folder in FOLDERS
        for path in (arguments.checkout / folder).rglob("*test*.cc")
        if re.search(arguments.pattern, path.name)
    )
    if not files:
        parser.error(f"there are no tests under {arguments.checkout}")
    os.environ.setdefault("FUSER_WORKERS", "1")
    with tempfile.TemporaryDirectory(prefix="ort-cases-") as made:
        cases, counts, why = read(files, Path(made), arguments.jobs)
        os.environ.setdefault("FUSER_CACHE_DIR", f"{made}/cache")
        rows = run(cases, arguments)
    rows.sort(key=lambda row: row["name"])
    lines = [*table(rows), "", *reasons(rows)]
    print("\n".join(lines))
    print(f"{counts['read']} of {counts['tests']} tests read; what they need otherwise:")
    for reason, count in why.most_common(15):
        print(f"  {count} {reason}")
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if arguments.doc:
        write(arguments, rows, counts)
    bad = [row for row in rows if is_bad(row)]
    return int(bool(bad))


def is_bad(row: dict[str, Any]) -> bool:
    if row["verdict"] == "wrong":
        return not row.get("confirmed")
    return row["verdict"] in ("failed", "crashed", "hung")


def read(files: list[str], folder: Path, jobs: int) -> tuple[list[str], Counter[str], Counter[str]]:
    """Stored cases, counts of tests, and why some were not read."""
    cases: list[str] = []
    counts: Counter[str] = Counter()
    why: Counter[str] = Counter()
    for answer in answers([*CHILD, "read", str(folder)], files, jobs, 600):
        if answer.ended:
            print(f"{answer.item} {answer.ended}: {answer.words[-200:]}")
            continue
        reply = answer.reply
        cases += reply["cases"]
        missed = {line.split(": ")[0] for line in reply["why"]}
        counts["tests"] += reply["tests"]
        counts["read"] += reply["tests"] - len(missed)
        why.update(re.sub(r" \(line \d+\)$", "", line.split(": ", 1)[1]) for line in reply["why"])
    print(f"{len(cases)} cases", file=sys.stderr, flush=True)
    return cases, counts, why


def run(cases: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    command = [*CHILD, "run", arguments.device]
    command += [] if arguments.no_fusion else ["fused"]
    command += [] if arguments.no_peer else ["peer"]
    rows: list[dict[str, Any]] = []
    for answer in answers(command, cases, arguments.jobs, arguments.limit):
        name = Path(answer.item).stem
        row = answer.reply or {"name": name, "verdict": answer.ended, "what": answer.words}
        rows.append(row)
        if is_bad(row):
            print(
                f"{row['name']} {row.get('op')} {row['verdict']}: {row['what'][:300]}", flush=True
            )
        if len(rows) % 500 == 0:
            print(f"{len(rows)} of {len(cases)}", file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"| cases | {' | '.join(ORDER)} |", "|---|" + "---:|" * len(ORDER)]
    for title, of in (("confirmed", True), ("not confirmed", False)):
        found = Counter(row["verdict"] for row in rows if (not row.get("confirmed")) == of)
        lines.append(f"| {title} | {' | '.join(str(found[verdict]) for verdict in ORDER)} |")
    return lines


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Refusals by reason, and ways to compute."""
    how = Counter(row["how"] for row in rows if row["verdict"] == "right")
    lines = ["Right: " + ", ".join(f"{count} {way}" for way, count in how.most_common()) + "."]
    refused = Counter(general(row["what"]) for row in rows if row["verdict"] == "refused")
    lines += ["", "| refused | reason |", "|---:|---|"] if refused else []
    return lines + [f"| {count} | {what} |" for what, count in refused.most_common(25)]


# Why confirmed cases differ, by the beginning of the operator's name.
_REASONS = {
    "ai.onnx.ml.": "on the host, by the reference implementation of the onnx package",
    "StringSplit": "on the host, by the reference implementation of the onnx package",
    "NonZero": "on the host, by the reference implementation: the indices of a scalar",
    "Resize": "sizes by scales and integers are rounded as the reference implementation does",
    "Upsample": "integers are rounded as the reference implementation does",
    "MaxUnpool": "output_shape pads, as ONNX's own test of it expects",
    "Dropout": "the mask of inference before opset 12, which ONNX does not define",
    "Attention": "masked scores are minus infinity, there the least float32",
    "MaxPool": "a window of padding alone gives minus infinity, there the least float32",
    "RNN": "the last state of a sequence of length 0, which ONNX does not define",
}


def differences(rows: list[dict[str, Any]]) -> list[str]:
    """Confirmed cases that differ, by operator."""
    found = Counter(row.get("op", "") for row in rows if row["verdict"] == "wrong" and is_bad(row))
    lines = ["", "| differs | operator | why |", "|---:|---|---|"] if found else []
    for op, count in found.most_common():
        why = next((text for start, text in _REASONS.items() if op.startswith(start)), "open")
        lines.append(f"| {count} | {op} | {why} |")
    return lines


def general(text: str) -> str:
    """An error without the names and numbers of one case."""
    text = re.sub(r" \(at .*?\)(?=;|$)", "", text)
    text = re.sub(r"(the host cannot run it|failed on the host): .*", r"\1", text)
    return re.sub(r"\d+", "n", text)[:140].replace("|", "/")


def write(arguments: argparse.Namespace, rows: list[dict[str, Any]], counts: Counter[str]) -> None:
    try:
        from onnxruntime import __version__ as version
    except ImportError:
        version = ""
    way = "no fusion" if arguments.no_fusion else "fused"
    text = _INTRODUCTION.format(
        where=", ".join(FOLDERS), read=counts["read"], tests=counts["tests"], cases=len(rows),
        version=version,
    )  # fmt: skip
    title = f"ONNX Runtime's operator tests: {arguments.device}, {way}"
    lines = [text, *table(rows), *differences(rows), "", *reasons(rows)]
    replace_section(arguments.doc, title, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
