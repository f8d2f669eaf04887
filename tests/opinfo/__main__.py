"""python -m tests.opinfo: PyTorch's OpInfo database through torch.compile with fuser, as a table.

Every operator that the database has for a dtype is called with samples of its arguments; results
(and gradients, for the backward direction) are judged beside eager PyTorch in float64 and in the
dtype itself (tests/opinfo/judge.py). Each sample is handled in a child process with a time limit: a
crash or a hang is a result. Needs the extra `fuzz`. Exits with 1 if a sample is wrong, an error, or
stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.opinfo.cases import DTYPES, operators, samples, spread
from tests.opinfo.check import Outcome
from tests.opinfo.document import reasons, summary, write
from tests.worker_pool import Answer, answers

BAD = ("wrong", "error", "stopped")
KEPT = 1000
"""Samples that one child handles."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--direction", choices=("forward", "backward"), default="forward")
    parser.add_argument("--samples", type=int, default=8, help="of an operator, 0: all")
    parser.add_argument("--every", type=int, default=1, help="only every n-th operator")
    parser.add_argument("--ops", default="", help="only these operators: a,b")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--limit", type=float, default=120, help="seconds a sample may take")
    parser.add_argument("--log", type=Path, help="outcomes; what it has already is not run again")
    parser.add_argument("--doc", type=Path, help="write the tables of all --logs into this page")
    parser.add_argument(
        "--logs", type=Path, nargs="*", default=[],
        help="of other runs, for --doc: files named ...-DTYPE-DIRECTION.jsonl",
    )  # fmt: skip
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is bad at once")
    arguments = parser.parse_args()
    started = time.perf_counter()
    outcomes = read_log(arguments.log) if arguments.log else []
    done = {f"{item.operator} {item.sample}" for item in outcomes}
    log = arguments.log.open("a", buffering=1) if arguments.log else None
    with tempfile.TemporaryDirectory(prefix="opinfo-cache-") as cache:
        os.environ.setdefault("FUSER_CACHE_DIR", cache)
        os.environ.setdefault("FUSER_WORKERS", "1")
        todo = [item for item in _items(arguments) if item not in done]
        command = [sys.executable, "-m", "tests.opinfo.worker"]
        command += [arguments.dtype, arguments.direction]
        for answer in answers(command, todo, arguments.jobs, arguments.limit, KEPT):
            outcome = outcome_of(answer)
            outcomes.append(outcome)
            if log:
                log.write(json.dumps(asdict(outcome)) + "\n")
            if arguments.verbose and outcome.kind in BAD:
                print(outcome.line(), flush=True)
    title = f"{arguments.dtype}, {arguments.direction}"
    outcomes.sort(key=lambda item: (item.operator, item.sample))
    print(summary({title: outcomes}), "\n", reasons(outcomes), sep="")
    for outcome in outcomes:
        if outcome.kind in BAD:
            print(outcome.line())
    print(f"{time.perf_counter() - started:.0f} s")
    if arguments.doc:
        others = {_title(path): read_log(path) for path in arguments.logs}
        write(arguments.doc, {title: outcomes, **others}, arguments.samples)
    return 1 if any(item.kind in BAD for item in outcomes) else 0


def _items(arguments: argparse.Namespace) -> Iterator[str]:
    """Operators and places of samples."""
    names: Sequence[str] = operators(arguments.dtype, arguments.direction)
    if arguments.ops:
        names = [name for name in names if name in arguments.ops.split(",")]
    for name in names[:: arguments.every]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = sum(1 for _ in samples(name, arguments.dtype, arguments.direction))
        for place in spread(count, arguments.samples):
            yield f"{name} {place}"


def outcome_of(answer: Answer) -> Outcome:
    if not answer.ended:
        return Outcome(**answer.reply)
    name, _, place = answer.item.partition(" ")
    return Outcome(name, int(place), "stopped", f"{answer.ended}: {answer.words}")


def _title(path: Path) -> str:
    return ", ".join(path.stem.split("-")[-2:])


def read_log(path: Path) -> list[Outcome]:
    """The outcomes of an earlier run; none if there was none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
