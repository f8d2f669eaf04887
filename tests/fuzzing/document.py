"""The section of docs/conformance.md about a run of random programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASONS = 30
"""Reasons of refusals that are listed, the most frequent ones."""


def section(about: str, module: str, told: Mapping[str, Any]) -> str:
    """The text of a section. told: what the last line of a run says."""
    failures = {**told["failures"], **told["left out"]}
    lines = [
        f"{about}\n`python -m {module}` runs it (`--help`).", "",
        "| programs | right | refused | as PyTorch's trace | failures |",
        "|---:|---:|---:|---:|---:|",
        f"| {told['programs']} | {told.get('right', 0)} | {told.get('refused', 0)} | "
        f"{told.get('trace', 0)} | {sum(failures.values())} |", "",
    ]  # fmt: skip
    lines += [f"- {kind}: {count}" for kind, count in sorted(failures.items())]
    if told["refusals"]:
        listed = list(told["refusals"].items())
        lines += ["", "| refused | reason |", "|---:|---|"]
        lines += [f"| {n} | {reason.replace('|', '/')} |" for reason, n in listed[:REASONS]]
        others = listed[REASONS:]
        if others:
            lines.append(f"| {sum(n for _, n in others)} | {len(others)} other reasons |")
    return "\n".join(lines)
