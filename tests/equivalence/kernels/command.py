"""One mutant of `python -m tests.equivalence kernels`."""

from __future__ import annotations

import argparse
from typing import Any

from tests.equivalence.kernels.check import check, mutant, reduced
from tests.equivalence.kernels.corpus import BY_NAME, CASES


def checked(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """What became of a mutant: its kind, its changes, and of failures a small text."""
    cases = [BY_NAME[name] for name in options.names.split(",") if name] or CASES
    made = mutant(number, cases)
    failure = check(made)
    found: dict[str, Any] = {"kind": "right", "changes": made.applied}
    if failure is None:
        return found
    found |= {"kind": failure.kind, "what": failure.what}
    if failure.kind != "refused":
        small = reduced(made, failure)
        again = check(small) or failure
        found["what"] = again.what
        found["text"] = f"# {', '.join(small.applied)}\n{small.text}{again.trace[-1500:]}"
    return found
