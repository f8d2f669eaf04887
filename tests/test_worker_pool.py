"""Children that answer, die, hang and print."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import worker_pool
from tests.worker_pool import KEPT, answers

CHILD = """
import os, sys, time
from tests.worker_pool import serve

def handle(item):
    print("noise", item)
    if item == "dies":
        os.write(2, b"last words")
        os.kill(os.getpid(), 9)
    if item == "hangs":
        with open(os.environ["HANGING"], "w") as file:
            file.write(f"{os.getpid()} hangs")
        time.sleep(1000)
    return {"item": item, "pid": os.getpid()}

serve(handle)
"""
COMMAND = [sys.executable, "-c", CHILD]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_crash_and_a_hang_are_answers(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a child is over as soon as it hangs, and not before."""
    hanging, here, ask = tmp_path / "hanging", threading.local(), worker_pool.Child.ask

    def noted(child: worker_pool.Child, item: str, seconds: float) -> worker_pool.Answer:
        here.pid = child.process.pid
        return ask(child, item, seconds)

    def until(read: list[Any], write: list[Any], other: list[Any], seconds: float) -> Any:
        assert seconds == 3
        while True:
            ready = select.select(read, write, other, 0.01)
            if ready[0] or (hanging.exists() and hanging.read_text() == f"{here.pid} hangs"):
                return ready

    monkeypatch.setenv("HANGING", str(hanging))
    monkeypatch.setattr(worker_pool.Child, "ask", noted)
    monkeypatch.setattr(worker_pool, "select", SimpleNamespace(select=until))
    items = ["a", "dies", "b", "hangs", "c"]
    found = {answer.item: answer for answer in answers(COMMAND, items, jobs, 3)}
    assert set(found) == set(items)
    assert [found[item].reply["item"] for item in "abc"] == ["a", "b", "c"]
    assert found["dies"].ended == "crashed"
    assert "last words" in found["dies"].words and "-9" in found["dies"].words
    assert found["hangs"].ended == "hung"


def test_a_child_is_renewed_and_none_is_left() -> None:
    pids = [a.reply["pid"] for a in answers(COMMAND, [str(n) for n in range(KEPT + 1)], 1, 300)]
    assert len(pids) == KEPT + 1 and len(set(pids)) == 2
    for pid in set(pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_a_child_started_ends_with_it() -> None:
    child = """
import subprocess, sys
from tests.worker_pool import serve
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
serve(lambda item: {"pid": started.pid})
"""
    [answer] = answers([sys.executable, "-c", child], ["a"], 1, 300)
    assert answer.ended == ""
    end = time.monotonic() + 300
    while is_running(answer.reply["pid"]):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
