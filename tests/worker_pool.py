"""Items handled in child processes, each within a time limit: a child that dies or hangs is a
result like any other, and a new child goes on with the next item.

A child runs `serve(handle)`: it reads an item a line and answers with one line of JSON. What it
prints otherwise goes to a file, whose end tells why a child died.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from typing import Any

KEPT = 200
"""Items that one child handles: what its libraries leak ends with it."""
LAST_WORDS = 1500


@dataclass(frozen=True)
class Answer:
    """What came of an item. ended: "" with a reply, else "crashed" or "hung" with last words."""

    item: str
    reply: dict[str, Any]
    ended: str = ""
    words: str = ""


class Child:
    """A process that answers items, in a process group of its own so that it ends with all that it
    started."""

    def __init__(self, command: Sequence[str]) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.output,
            start_new_session=True,
        )  # fmt: skip
        self.handled = 0

    def ask(self, item: str, seconds: float) -> Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.handled += 1
        try:
            self.process.stdin.write(item.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return Answer(item, {}, "crashed", self.last_words())
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            return Answer(item, {}, "hung", f"more than {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            status = self.process.wait()
            return Answer(item, {}, "crashed", f"status {status}: {self.last_words()}")
        return Answer(item, json.loads(line))

    def last_words(self) -> str:
        self.output.seek(0)
        return self.output.read()[-LAST_WORDS:].decode(errors="replace").strip()

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


def answers(
    command: Sequence[str], items: Iterable[str], jobs: int, seconds: float, kept: int = KEPT
) -> Iterator[Answer]:
    """The answers of `jobs` children as they come, in no order. kept: items of one child."""
    source = iter(items)
    children: list[Child | None] = [None] * jobs

    def work(place: int, item: str) -> tuple[int, Answer]:
        child = children[place]
        if child is None:
            child = children[place] = Child(command)
        answer = child.ask(item, seconds)
        if answer.ended or child.handled >= kept:
            child.end()
            children[place] = None
        return place, answer

    with ThreadPoolExecutor(jobs) as pool:
        try:
            waiting = {pool.submit(work, i, item) for i, item in enumerate(islice(source, jobs))}
            while waiting:
                done = next(as_completed(waiting))
                waiting.remove(done)
                place, answer = done.result()
                following = next(source, None)
                if following is not None:
                    waiting.add(pool.submit(work, place, following))
                yield answer
        finally:
            for child in children:
                if child is not None:
                    child.end()


def serve(handle: Callable[[str], dict[str, Any]]) -> None:
    """The child's loop. Output of the handled code goes to where errors go."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(handle(line.rstrip("\n"))), file=replies, flush=True)
