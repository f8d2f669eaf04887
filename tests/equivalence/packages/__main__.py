"""python -m tests.equivalence.packages --packages FOLDER,... --programs 10000 --jobs 16

Changes kernels of installed packages so that they mean the same (branches that are never taken,
some on reduced data, loops that run once, tiles that go through memory, doubled masks), launches
both on the CPU on the arguments with which a function of the package launched the kernel, and
compares all memory bit by bit.

Functions are those of `benchmarks/foreign_cases.py`, forward and backward; cases whose package is
not in the folders are left out. A mutant that fails is printed with as few changes as make it fail.
The last line is JSON: programs, failures by kind, refusals by reason (functions that do not run on
a CPU among them), how often each change was made and each kernel was taken. Exits with 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.foreign_cases import BY_KEY, CASES, Case
from benchmarks.foreign_worker import Prepared, answered, limit_configs
from tests.equivalence.kernels.check import Failure
from tests.equivalence.packages.check import check, mutant, reduced
from tests.equivalence.packages.launches import Launch, first_of_each, launches_of
from tests.fuzzing.jobs import REFUSED, RIGHT, Finding, main

GROUP = 25
"""Programs in a row that come from one case, whose function is called for them once."""
CLASSES = 2
"""Launches of one kernel that are taken from a case, on arguments of other classes."""


@functools.cache
def cases(packages: str, only: str) -> Sequence[Case]:
    """Those of packages that are in some folders."""
    for folder in filter(None, packages.split(",")):
        if not Path(folder).is_dir():
            raise SystemExit(f"there is no folder {folder}")
        if folder not in sys.path:
            sys.path.append(folder)
    named = [case for case in CASES if only in case.key]
    found = [case for case in named if find_spec(case.package) is not None]
    if not found:
        raise SystemExit(f"none of {', '.join(sorted({case.package for case in named}))} is there")
    return found


@functools.cache
def launches(key: str) -> Sequence[Launch] | str:
    """The launches of a case, forward and backward; why there are none, such as that it asks for a
    GPU."""
    case = BY_KEY[key]
    limit_configs("fuser", 1, True)
    torch.manual_seed(0)
    with answered("fuser", case.package):
        module, _, path = case.function.partition(":")
        function: Any = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        try:
            found = launches_of(Prepared(case, function, "cpu").call)
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    return first_of_each(found, CLASSES) or "no launch that can be repeated"


def findings(number: int, options: argparse.Namespace) -> list[Finding]:
    """What became of a mutant, and of failures a small text."""
    known = cases(options.packages, options.only)
    group, _ = divmod(number, GROUP)
    case = known[group % len(known)]
    taken = launches(case.key)
    if isinstance(taken, str):
        return [Finding(REFUSED, f"{case.key}: {taken}")]
    made = mutant(number, taken)
    what = f"{case.key}: {made.launch.name}"
    told = (*made.applied, f"kernel {made.launch.name}")
    failure = check(made)
    if isinstance(failure, bool):
        return [Finding(RIGHT, changes=(*told, *["same bits"] * failure))]
    if failure.kind == "refused":
        return [Finding(REFUSED, failure.what, changes=told)]
    small = made if options.whole else reduced(made, failure)
    found = check(small)
    again = found if isinstance(found, Failure) else failure
    text = f"# {what}: {', '.join(small.applied)}\n{small.text}{again.trace[-1500:]}"
    return [Finding(failure.kind, f"{what}: {again.what}", text, what, changes=told)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--packages", default="", metavar="FOLDER,...", help="where packages are installed"
    )
    parser.set_defaults(limit=300)  # a function of a package compiles up to 15 kernels, twice over
    parser.add_argument("--only", default="", help="part of the names of cases")


if __name__ == "__main__":
    title = "Mutated kernels of packages: cpu"
    sys.exit(main("tests.equivalence.packages", __doc__ or "", title, findings, options))
