"""python -m tests.random_torch --programs 2000 --seed 0 --jobs 8

Draws random PyTorch programs (views, changes in place, indexing, dtypes, odd and empty sizes), runs
them by `fuser.compile`, by `torch.compile` with one size and with several, and with a backward
pass, and compares results, changed inputs, gradients, strides and what shares memory with eager
PyTorch.

What may differ follows from the operators: evaluations that use the freedom of each say how far
right answers lie apart (tests/fuzzing). A program that fails is printed, made small, as a script;
one that PyTorch's own trace gets wrong is counted as "trace". The last line is JSON: programs,
failures by kind, refusals by reason. Exits with 1 if anything failed that `--skip-kind` does not
name.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzzing.jobs import main


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--entry", default="", help="module, compile, dynamic, always dynamic, train"
    )


if __name__ == "__main__":
    from tests.random_torch.check import check

    title = "Random PyTorch programs: cpu"
    sys.exit(main("tests.random_torch", __doc__ or "", title, check, options))
