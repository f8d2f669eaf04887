"""python -m tests.equivalence.graphs --programs 2000 --seed 0 --jobs 8

Draws random graphs (tests/random_graphs), injects changes that keep their meaning (branches that
are never taken, on data and on reduced data, doubled masks, operands the other way round, maps cut
in two, movements that are undone, opaque ones and zeros, reductions in steps), compiles both and
compares: equal bits where every correct compiler computes the same ones, else the bounds that hold
for the graph.

A graph that fails is printed, made small, with its changes. The last line is JSON: programs,
failures by kind, refusals by reason. Exits with 1 if anything failed that `--skip-kind` does not
name.
"""

from __future__ import annotations

import argparse
import sys

from tests.equivalence.graphs.check import MUTANTS, check
from tests.fuzzing.jobs import main


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="of each graph")
    parser.add_argument(
        "--route", default="", help="native, cpu, sm_80, sm_90a (interpreted); default: a mixture"
    )


if __name__ == "__main__":
    title = "Mutated graphs: cpu"
    sys.exit(main("tests.equivalence.graphs", __doc__ or "", title, check, options))
