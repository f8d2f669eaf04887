"""A process that runs the command line on model after model: requests on stdin, answers on stdout.

A request is a line of JSON, the arguments of `fuser`; the answer is a line of JSON with the exit
code, what was printed and how many Python functions were called. The parent sees a crash as an end
of the stream.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from select import select


@dataclass(frozen=True)
class Answer:
    """code: None where the process died or was too slow."""

    code: int | None
    out: str
    err: str
    calls: int


class Worker:
    """Runs `fuser ARGUMENTS` in a child that lives on from call to call."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[str] | None = None

    def run(self, *arguments: str, limit: float = 300) -> Answer:
        """What the command line did; a call that takes longer than `limit` seconds is killed."""
        if self.child is None:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "tests.malformed.worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
            self.run("--version")
        child = self.child
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(json.dumps(arguments) + "\n")
        child.stdin.flush()
        ready, _, _ = select([child.stdout], [], [], limit)
        line = child.stdout.readline() if ready else ""
        if line:
            return Answer(**json.loads(line))
        child.kill()
        words = child.stderr.read()[-2000:]
        self.close()
        return Answer(None, "", f"{'died' if ready else 'too slow'}: {words}", 0)

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
            self.child = None


def counted(work: Callable[[], int]) -> tuple[int, int]:
    """What some work gives, and the Python functions that are called for it."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        return work(), count
    finally:
        sys.setprofile(None)


def main() -> None:
    import faulthandler

    from fuser.cli.main import run

    faulthandler.enable()
    answers = sys.stdout
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code, calls = counted(functools.partial(run, json.loads(line)))
        answer = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "calls": calls}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
