"""The results of a run, as lines of text and as a section of docs/conformance.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.foreign_sections import replace_section

Row = dict[str, Any]
ORDER = ("right", "untold", "refused", "wrong", "failed", "crashed", "hung")

_INTRODUCTION = """\
{count} random models of {nodes} operators by NNSmith (numbers {first} to {last}), float16, float32,
float64, integers and bool, each with four kinds of feeds. Every element of every output is held
against the proven interval of `tests/random_graphs`; {told:.1f} % of the elements are told by one
(elsewhere a comparison, a cast or an undefined operation could go either way). Every fourth model
runs without fusion as well. right: nothing outside of its interval; untold: likewise, but less than
half of the elements are told. Two other runtimes run the models, too, and the list says where they
leave the intervals: they pass NaN over in maxima, minima and pools, compute Erf and Gelu of float64
and the coordinates of Resize in float32, or approximate Sigmoid.
`python -m tests.nnsmith` runs it (`--help`).
"""


def summary(rows: Sequence[Row]) -> list[str]:
    """A table of verdicts."""
    found = Counter(row["verdict"] for row in rows)
    lines = ["| " + " | ".join(("models", *ORDER)) + " |", "|" + "---:|" * (len(ORDER) + 1)]
    counts = (str(found[verdict]) for verdict in ORDER)
    return [*lines, f"| {len(rows)} | {' | '.join(counts)} |"]


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why models were not right, and where ONNX Runtime leaves the intervals or does not run."""
    lines = []
    refused = Counter(general(row["what"]) for row in rows if row["verdict"] == "refused")
    lines += [f"- refused, {count} times: {what}" for what, count in refused.most_common()]
    places = Counter(_place(row) for row in rows if "outside" in row.get("peer", ""))
    lines += [f"- {place}: {count} models" for place, count in places.most_common()]
    silent = sum("does not run" in row.get("peer", "") for row in rows)
    return lines + ([f"- no other runtime runs {silent} models"] if silent else [])


def _place(row: Row) -> str:
    """Which runtime leaves the bounds at which operator."""
    peer, _, rest = row["peer"].partition(" outside, ")
    kind, at, *_ = rest.split(":")[0].split(", ")
    return f"{peer} leaves the intervals {at}" + (", edges" if kind.startswith("edges") else "")


def general(text: str) -> str:
    """An error without the names and numbers of one model."""
    text = re.sub(r" \(at .*?\)(?=;|$)", "", text)
    text = re.sub(r"'[^']*'", "...", text)
    return re.sub(r"\d+", "n", text)[:200].replace("|", "/")


def write(path: Path, device: str, nodes: str, rows: Sequence[Row]) -> None:
    """Put the section into the page."""
    told = [row["told"] for row in rows if row["verdict"] in ("right", "untold", "wrong")]
    text = _INTRODUCTION.format(
        count=len(rows), nodes=nodes.replace(":", " to "), first=int(rows[0]["name"]),
        last=int(rows[-1]["name"]), told=100 * sum(told) / max(1, len(told)),
    )  # fmt: skip
    lines = [text, *summary(rows), "", *reasons(rows)]
    replace_section(path, f"NNSmith: {device}", "\n".join(lines))
