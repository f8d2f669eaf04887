"""Children that answer, die, hang and print."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

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
        time.sleep(60)
    return {"item": item, "pid": os.getpid()}

serve(handle)
"""
COMMAND = [sys.executable, "-c", CHILD]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_crash_and_a_hang_are_answers(jobs: int) -> None:
    items = ["a", "dies", "b", "hangs", "c"]
    found = {answer.item: answer for answer in answers(COMMAND, items, jobs, 3)}
    assert set(found) == set(items)
    assert [found[item].reply["item"] for item in "abc"] == ["a", "b", "c"]
    assert found["dies"].ended == "crashed"
    assert "last words" in found["dies"].words and "-9" in found["dies"].words
    assert found["hangs"].ended == "hung"


def test_a_child_is_renewed_and_none_is_left() -> None:
    pids = [a.reply["pid"] for a in answers(COMMAND, [str(n) for n in range(KEPT + 1)], 1, 20)]
    assert len(pids) == KEPT + 1 and len(set(pids)) == 2
    for pid in set(pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    child = f"""
import subprocess, sys
from tests.worker_pool import serve
subprocess.Popen([sys.executable, "-c",
    "import time; time.sleep(2); open({str(tmp_path / "alive")!r}, 'w')"])
serve(lambda item: {{}})
"""
    assert [a.ended for a in answers([sys.executable, "-c", child], ["a"], 1, 20)] == [""]
    time.sleep(3)
    assert not (tmp_path / "alive").exists()
