"""python -m tests.equivalence [kernels] --count 5000 --seed 0

Draws programs that mean what another one means (kernels: of the block language), and compares what
both compute, bit by bit. Programs number `seed` to `seed + count - 1` are checked in child
processes of `--chunk` each, since machine code may end a process; one that takes longer than
`--limit` fails, and the run goes on. What fails is printed with as few changes as make it fail. The
last lines are what was refused, how often each change was made, and a summary. Exits with 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

KINDS = ("kernels",)
"""Folders beside this file that have a `command.py` with `checked(number, options)`."""


def child(options: argparse.Namespace) -> int:
    """Check programs in this process; a line of JSON before and after each."""
    checked = import_module(f"tests.equivalence.{options.what}.command").checked
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what programs print is not an answer
    for number in range(options.seed, options.seed + options.count):
        print(json.dumps({"begin": number}), file=answers, flush=True)
        found = checked(number, options)
        print(json.dumps({"number": number, **found}), file=answers, flush=True)
    return 0


class Tally:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failed: list[int] = []
        self.lock = threading.Lock()

    def add(self, found: dict[str, Any]) -> None:
        with self.lock:
            kind = found["kind"]
            self.kinds[kind] += 1
            self.changes.update(found.get("changes", ()))
            if kind == "refused":
                self.refused[found["what"]] += 1
            elif kind != "right":
                self.failed.append(found["number"])
                print(f"FAILED {found['number']} {kind}: {found['what']}", flush=True)
                print(found.get("text", ""), flush=True)


def follow(options: argparse.Namespace, first: int, count: int, tally: Tally) -> int:
    """One child from a program on; the number to go on with."""
    command = [
        sys.executable, "-m", "tests.equivalence", options.what, "--child", "--seed", str(first),
        "--count", str(count), "--names", options.names,
    ]  # fmt: skip
    environment = {"OPENBLAS_NUM_THREADS": "1", "FUSER_WORKERS": "1", "FUSER_CACHE": "0",
                   **os.environ}  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        errors="replace",
    )  # fmt: skip
    seen = {"at": first, "next": first, "when": time.monotonic()}
    words: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            seen["when"] = time.monotonic()
            if "begin" in told:
                seen["at"] = told["begin"]
            else:
                seen["next"] = told["number"] + 1
                tally.add(told)

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            words.append(line)
            del words[:-30]

    readers = [threading.Thread(target=task, daemon=True) for task in (read, listen)]
    for reader in readers:
        reader.start()
    late = False
    while process.poll() is None:
        time.sleep(0.05)
        if not late and time.monotonic() - seen["when"] > options.limit:
            late = True
            process.kill()
    for reader in readers:
        reader.join(timeout=10)
    if seen["next"] == first + count:
        return first + count
    kind = "slow" if late else "died"
    what = f"more than {options.limit:g} s" if late else f"exit status {process.returncode}"
    tally.add({"number": int(seen["next"]), "kind": kind, "what": what, "text": "".join(words)})
    return int(seen["next"]) + 1


def run_all(options: argparse.Namespace) -> int:
    """Check all programs; prints failures and the summary."""
    started = time.monotonic()
    last = options.seed + options.count
    tally = Tally()

    def work(first: int) -> None:
        stop = min(first + options.chunk, last)
        while first < stop and time.monotonic() - started < options.seconds:
            first = follow(options, first, stop - first, tally)
        counted = f"{tally.kinds.total()} {options.what}, {len(tally.failed)} failed"
        print(f"{counted}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.seed, last, options.chunk)))
    for what, times in tally.refused.most_common():
        print(f"refused {times}: {what}")
    for what, times in tally.changes.most_common():
        print(f"{what}: {times}")
    if tally.failed:
        print("failed:", *sorted(tally.failed))
    done, refused = tally.kinds.total(), tally.kinds["refused"]
    spent = time.monotonic() - started
    print(f"{done} {options.what}, {len(tally.failed)} failed, {refused} refused, {spent:.0f} s")
    return int(bool(tally.failed))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.equivalence", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("what", nargs="?", default="kernels", choices=KINDS)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--chunk", type=int, default=250, help="programs of a process")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one may take")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after")
    parser.add_argument("--names", default="", help="of the programs to start from, with commas")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return child(options) if options.child else run_all(options)


if __name__ == "__main__":
    sys.exit(main())
