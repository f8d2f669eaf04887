"""python -m tests.equivalence.kernels --programs 5000 --seed 0 --jobs 8

Changes kernels of the block language so that they mean the same (branches that are never taken,
swapped operands, peeled loops, regrouped pointers, doubled masks, opaque constants), and compares
what both compute, bit by bit, compiled and in the interpreter.

A mutant that fails is printed with as few changes as make it fail. The last line is JSON: programs,
failures by kind, refusals by reason, how often each change was made. Exits with 1 if anything
failed.
"""

from __future__ import annotations

import argparse
import sys

from tests.equivalence.kernels.check import check, mutant, reduced
from tests.equivalence.kernels.corpus import BY_NAME, CASES
from tests.fuzzing.jobs import RIGHT, Finding, main


def findings(number: int, options: argparse.Namespace) -> list[Finding]:
    """What became of a mutant, and of failures a small text."""
    cases = [BY_NAME[name] for name in options.names.split(",") if name] or CASES
    made = mutant(number, cases)
    failure = check(made)
    if failure is None:
        return [Finding(RIGHT, changes=made.applied)]
    if failure.kind == "refused":
        return [Finding("refused", failure.what, changes=made.applied)]
    small = reduced(made, failure)
    again = check(small) or failure
    text = f"# {', '.join(small.applied)}\n{small.text}{again.trace[-1500:]}"
    return [Finding(failure.kind, again.what, text, changes=made.applied)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--names", default="", help="of the kernels to start from, with commas")


if __name__ == "__main__":
    title = "Mutated kernels: cpu"
    sys.exit(main("tests.equivalence.kernels", __doc__ or "", title, findings, options))
