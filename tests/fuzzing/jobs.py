"""Random programs by their numbers, in child processes, and one line of JSON at the end.

A child prints a line of JSON before and after each program, so that the parent knows which one
ended a process or hangs; another child goes on with the next. A module with a command calls `main`
with itself and a function of (seed, options) that returns the findings of one program.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.foreign_sections import replace_section
from tests.fuzzing.document import section

RIGHT, REFUSED, SKIPPED, TRACE = "right", "refused", "skipped", "trace"
"""Kinds that are no failures: nothing is wrong; fuser says that it cannot; there was nothing to
compare; the framework's own trace is wrong, too."""


@dataclass(frozen=True)
class Finding:
    """What became of a program. reason: why it was refused, or what is wrong; script: a program
    that shows it; group: what it has in common with other failures; changes: what was done to a
    program that should mean the same."""

    kind: str
    reason: str = ""
    script: str = ""
    group: str = ""
    changes: Sequence[str] = ()

    @property
    def failed(self) -> bool:
        return self.kind not in (RIGHT, REFUSED, SKIPPED, TRACE)


@dataclass
class Summary:
    """Counts of a run."""

    programs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, seed: int, findings: Sequence[Finding], left_out: Sequence[str]) -> None:
        self.programs += 1
        for finding in findings:
            self.kinds[finding.kind] += 1
            self.changes.update(finding.changes)
            if finding.kind == REFUSED:
                self.refusals[finding.reason] += 1
        if any(finding.failed and finding.kind not in left_out for finding in findings):
            self.failed.append(seed)

    def line(self, left_out: Sequence[str], seconds: float) -> str:
        calm = (RIGHT, REFUSED, SKIPPED, TRACE)
        known = {kind: n for kind, n in self.kinds.items() if kind not in calm}
        return json.dumps({
            "programs": self.programs,
            **{kind: self.kinds[kind] for kind in calm if self.kinds[kind]},
            "failures": {kind: n for kind, n in known.items() if kind not in left_out},
            "left out": {kind: n for kind, n in known.items() if kind in left_out},
            "refusals": dict(self.refusals.most_common()),
            "groups": dict(self.groups.most_common(60)),
            "changes": dict(self.changes.most_common()),
            "failed seeds": sorted(self.failed)[:100],
            "seconds": round(seconds),
        })  # fmt: skip


def save(options: argparse.Namespace, name: str, kind: str, seed: int, text: str) -> None:
    """Write a script into the folder of `--scripts`, if there is one."""
    if getattr(options, "scripts", ""):
        folder = Path(options.scripts)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}_{kind.replace(' ', '_')}_{seed}.py").write_text(text + "\n")


Check = Callable[[int, argparse.Namespace], Sequence[Finding]]


SCRIPTS = 2
"""Scripts printed of failures that have the same lines."""


class TimeExceeded(BaseException):
    """A program took longer than it may. Not an Exception: what is fuzzed catches those."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeExceeded in the block once it has taken so long."""

    def end(*_: Any) -> None:
        raise TimeExceeded

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def checked(check: Check, seed: int, options: argparse.Namespace) -> Sequence[Finding]:
    """The findings of one program; a limit or an error of the fuzzer itself is one as well."""
    try:
        with limited(options.limit):
            return check(seed, options)
    except TimeExceeded:
        return [Finding("slow", f"more than {options.limit:g} s")]
    except Exception as error:
        import traceback

        text = traceback.format_exc()[-1500:]
        return [Finding("fuzzer", f"{type(error).__name__}: {error}\n{text}")]


def child(check: Check, options: argparse.Namespace) -> int:
    """Check programs `seed` to `seed + programs - 1` and print a line for each."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the programs print is no answer
    started = time.monotonic()
    for seed in range(options.seed, options.seed + options.programs):
        if time.monotonic() - started > options.seconds:
            break
        print(json.dumps({"begin": seed}), file=stream, flush=True)
        findings = [asdict(finding) for finding in checked(check, seed, options)]
        print(json.dumps({"seed": seed, "findings": findings}), file=stream, flush=True)
    return 0


def arguments(module: str, about: str, add: Callable[[argparse.ArgumentParser], None]) -> Any:
    """The command line that all fuzzers share, and what `add` adds."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first program")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--chunk", type=int, default=100, help="programs of a process")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a program may take")
    parser.add_argument(
        "--skip-kind", default="", metavar="KIND,...", help="count these failures, no more"
    )
    parser.add_argument("--document", default="", metavar="PAGE", help="write the section there")
    parser.add_argument("--scripts", default="", metavar="FOLDER", help="write failures here")
    parser.add_argument("--whole", action="store_true", help="do not make failing programs small")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    add(parser)
    options = parser.parse_args()
    options.left_out = [kind for kind in options.skip_kind.split(",") if kind]
    return options


def main(
    module: str, about: str, title: str, check: Check,
    add: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> int:  # fmt: skip
    """The command of a module. about: its docstring, of which the second paragraph says what is
    done; title: that of its section in the page of `--document`. Returns 1 if a program failed in a
    way that is not left out."""
    text = about.split("\n\n")[1]
    options = arguments(module, text, add)
    if options.child:
        return child(check, options)
    summary, seconds = run_all(module, options)
    line = summary.line(options.left_out, seconds)
    print(line)
    if options.document:
        page = section(text, module, json.loads(line))
        replace_section(Path(options.document), title, page)
    return int(bool(summary.failed))


def run_all(module: str, options: argparse.Namespace) -> tuple[Summary, float]:
    """All programs, in `jobs` processes at a time, and the seconds they took; prints failures."""
    started = time.monotonic()
    last = options.seed + options.programs
    summary = Summary()
    lock = threading.Lock()

    def tell(seed: int, findings: Sequence[Finding]) -> None:
        with lock:
            summary.add(seed, findings, options.left_out)
            for finding in findings:
                if finding.failed and finding.kind not in options.left_out:
                    print(f"FAILED {seed} {finding.kind}: {finding.reason}", flush=True)
                    name = f"{finding.kind}: {finding.group}"
                    summary.groups[name] += bool(finding.group)
                    if finding.script and summary.groups[name] <= SCRIPTS:
                        print(finding.script, flush=True)

    def left() -> float:
        return float(options.seconds - (time.monotonic() - started))

    def work(first: int) -> None:
        stop = min(first + options.chunk, last)
        while first < stop and left() > 0:
            first = follow(module, options, first, stop - first, tell, left)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.seed, last, options.chunk)))
    return summary, time.monotonic() - started


def follow(
    module: str, options: argparse.Namespace, first: int, count: int,
    tell: Callable[[int, Sequence[Finding]], None], left: Callable[[], float],
) -> int:  # fmt: skip
    """One child for programs from `first` on; the number to go on with."""
    given = {key: value for key, value in vars(options).items() if key not in OWN}
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in given.items() if value not in
             (True, False, "", None)]  # fmt: skip
    flags += [f"--{key.replace('_', '-')}" for key, value in given.items() if value is True]
    command = [sys.executable, "-m", module, "--child", "--seed", str(first),
               "--programs", str(count), "--seconds", str(left()), *flags]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FUSER_WORKERS": "1",
                   "FUSER_THREADS": "1", **os.environ}  # fmt: skip
    seen = {"at": first, "next": first, "when": time.monotonic()}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, text=True, env=environment,
            errors="replace",
        )  # fmt: skip

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                seen["when"] = time.monotonic()
                if "begin" in told:
                    seen["at"] = told["begin"]
                    continue
                seen["next"] = told["seed"] + 1
                tell(told["seed"], [Finding(**finding) for finding in told["findings"]])

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while process.poll() is None:
            time.sleep(0.05)
            idle = time.monotonic() - seen["when"]
            if idle > 3 * options.limit + 60:
                process.kill()
        reader.join(timeout=10)
        if not process.returncode or seen["next"] == first + count:
            return first + count
        words.seek(0)
        last_words = words.read()[-1500:]
    kind = "hang" if process.returncode == -signal.SIGKILL else "died"
    at = int(seen["at"]) if seen["at"] >= seen["next"] else int(seen["next"])
    tell(at, [Finding(kind, f"the process ended with {process.returncode}\n{last_words}")])
    return at + 1


OWN = ("seed", "programs", "seconds", "jobs", "chunk", "child", "left_out", "document")
"""Options that are the parent's."""
