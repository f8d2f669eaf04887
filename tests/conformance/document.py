"""docs/conformance.md from the outcomes of one or several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx

from tests.conformance.categories import ORDER
from tests.conformance.run import Outcome

MODELS_BEGIN = "<!-- models: python -m tests.zoo -->"
"""What follows on the page is not of this suite, and kept."""
WAYS = ("kernels", "folded", "host")

_INTRODUCTION = """# ONNX conformance

The backend tests of onnx {version}, through the package's own runner and the public API
(`fuser.onnx_backend`). Models that would be downloaded are left out; a skipped test counts as not
passed. `python -m tests.conformance` prints the tables and writes this page (`--help`).

- kernels: every operator runs in compiled kernels, or is movement that costs none.
- folded: the result is known once the values that decide its shape are, and no kernel is left.
- host: an operator of the model ran in NumPy, by the reference implementation of the onnx package;
  `InferenceSession.fallbacks` names it.
- dense core: node tests on tensors of f64, f32, f16, bf16, int8-64, uint8-64 and bool, without
  control flow, randomness, Fourier transforms and shapes that depend on data.
"""

# What is known of failures, by the test or the beginning of its name.
_REASONS = {
    "test_bernoulli": "random: the reference implementation fails it too",
    "test_dft_inverse": "the exact result is 0, the expected values hold noise of 2e-7",
    "test_attention_4d": "float16: kernels do not round what is between operators, and an element"
    " differs by more than the tolerance of one unit",
    "test_dynamicquantizelinear": "a division that is not rounded exactly meets a tie",
    "test_gradient_of": "there is no automatic differentiation",
    "test_if_opt": "optionals of sequences, in a form that the runner cannot compare",
    "test_loop16_seq_none": "optionals of sequences, in a form that the runner cannot compare",
}


def write(path: Path, runs: Mapping[str, list[Outcome]]) -> None:
    """Write the page. runs: outcomes by title."""
    lines = [_INTRODUCTION.format(version=onnx.__version__)]
    for title, outcomes in runs.items():
        lines += [f"## {title}", "", *_table(outcomes), "", *_failures(outcomes), ""]
    _, mark, models = path.read_text().partition(MODELS_BEGIN) if path.exists() else ("", "", "")
    path.write_text("\n".join(lines).rstrip() + "\n" + (f"\n{mark}{models}" if mark else ""))


def _table(outcomes: list[Outcome]) -> list[str]:
    lines = ["| category | passed | of | rate | kernels | folded | host |", "|---|" + "---:|" * 6]
    for category in (*ORDER, "all"):
        members = [item for item in outcomes if category in (item.category, "all")]
        if not members:
            continue
        passed = [item for item in members if item.passed]
        ways = Counter(item.how for item in passed)
        rate = f"{100 * len(passed) / len(members):.1f} %"
        cells = [str(len(passed)), str(len(members)), rate, *(str(ways[way]) for way in WAYS)]
        lines.append(f"| {category} | {' | '.join(cells)} |")
    return lines


def _failures(outcomes: list[Outcome]) -> list[str]:
    found: dict[str, list[str]] = {}
    for item in outcomes:
        if not item.passed:
            found.setdefault(_reason(item), []).append(item.name)
    lines = []
    if found:
        lines += ["| does not pass | reason |", "|---|---|"]
    for reason, names in sorted(found.items(), key=lambda entry: -len(entry[1])):
        lines.append(f"| {', '.join(sorted(names))} | {reason} |")
    dense = [item.name for item in outcomes if item.category == "dense core" and item.how == "host"]
    if dense:
        lines += ["", "Of the dense core on the host: " + ", ".join(sorted(dense)) + "."]
    return lines


def _reason(item: Outcome) -> str:
    for start, reason in _REASONS.items():
        if item.name.startswith(start):
            return reason
    text = item.reason.replace("|", "/")
    return text.split(": ", 2)[-1] if "failed on the host" in text else text
