"""A process that runs the command line on model after model: requests on stdin, answers on stdout.

A request is a line of JSON, the arguments of `fuser`; the answer is a line of JSON with the exit
code, what was printed and the seconds of the processor that it took: other work on the machine does
not count. The parent sees a crash as an end of the stream.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from select import select


@dataclass(frozen=True)
class Answer:
    """code: None where the process died or was too slow."""

    code: int | None
    out: str
    err: str
    seconds: float


class Worker:
    """Runs `fuser ARGUMENTS` in a child that lives on from call to call."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[str] | None = None

    def run(self, *arguments: str, limit: float = 5.0) -> Answer:
        """What the command line did; a call that takes longer than `limit` seconds is killed."""
        if self.child is None:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "tests.malformed.worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
            self.run("--version", limit=60)
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
        return Answer(None, "", f"{'died' if ready else 'too slow'}: {words}", limit)

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
            self.child = None


def main() -> None:
    import faulthandler

    from fuser.cli.main import run

    faulthandler.enable()
    answers = sys.stdout
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        started = time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(json.loads(line))
        seconds = time.process_time() - started
        answer = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "seconds": seconds}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
