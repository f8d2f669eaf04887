"""The tables of a run, and the section of docs/conformance.md about PyTorch's operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.foreign_sections import replace_section
from tests.opinfo.check import KINDS, Outcome

_INTRODUCTION = """\
The OpInfo database of PyTorch {version} (what PyTorch tests its own operators with) through
`torch.compile(operator, backend="fuser")`: {samples} of every operator that has the dtype,
spread over all that the database draws, and for the backward direction the gradients of a weighted
sum of the results. Judged beside eager PyTorch in float64 and in the dtype itself
(`tests/opinfo/judge.py`). `python -m tests.opinfo` runs it (`--help`).

- right: near float64, and every graph ran in fuser.
- conditioned: farther, but no farther than roundings of the operands move the result of float64.
- fell back: a graph ran in PyTorch, with a warning; the reasons are below.
- not captured: PyTorch found no graph in it, and handed none over.
- skipped: random or uninitialised results, or eager PyTorch raises.
- trace: PyTorch's own trace of the operator, run by PyTorch, is as wrong or raises as well.
- wrong; error: an exception, or a fallback for a defect of fuser; stopped: a crash or a hang.
"""


def summary(runs: Mapping[str, Sequence[Outcome]]) -> str:
    """Counts of samples, a row a run."""
    lines = [
        f"| run | operators | {' | '.join(KINDS)} |",
        "|---|---:|" + "---:|" * len(KINDS),
    ]
    for title, outcomes in runs.items():
        kinds = Counter(item.kind for item in outcomes)
        cells = " | ".join(str(kinds[kind]) for kind in KINDS)
        lines.append(f"| {title} | {len({item.operator for item in outcomes})} | {cells} |")
    return "\n".join(lines)


def reasons(outcomes: Sequence[Outcome], kind: str = "fell back", most: int = 40) -> str:
    """Why samples came out as a kind, the most frequent first."""
    names: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    for item in outcomes:
        if item.kind == kind:
            counts[item.reason] += 1
            names.setdefault(item.reason, set()).add(item.operator)
    lines = [f"| {kind} | samples | operators |", "|---|---:|---|"]
    for reason, count in counts.most_common(most):
        found = sorted(names[reason])
        shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
        lines.append(f"| {reason.replace('|', '/')} | {count} | {shown} |")
    if len(counts) > most:
        rest = sum(count for _, count in counts.most_common()[most:])
        lines.append(f"| {len(counts) - most} other reasons | {rest} | |")
    return "\n".join(lines)


def write(path: Path, runs: Mapping[str, Sequence[Outcome]], most: int) -> None:
    """Put the section into the page. runs: outcomes by title."""
    text = _INTRODUCTION.format(
        version=torch.__version__.split("+")[0],
        samples=f"at most {most} samples" if most else "all samples",
    )
    parts = [text, summary(runs), ""]
    everything = [item for outcomes in runs.values() for item in outcomes]
    parts += [reasons(everything), ""]
    bad = [item.line() for item in everything if item.kind in ("wrong", "error", "stopped")]
    parts += [f"- {line}" for line in bad]
    replace_section(path, "PyTorch's operators: cpu", "\n".join(parts))
