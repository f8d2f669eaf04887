"""The command goes on after what fails, hangs or dies, and its last lines say what did."""

from __future__ import annotations

import argparse
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.random_graphs import __main__ as command
from tests.random_graphs.coverage import Recorder, known, merged, report


def arguments(**changed: object) -> argparse.Namespace:
    plain = {
        "seed": 0, "count": 5, "jobs": 1, "native_every": 0, "cuda_every": 0, "most_nodes": 12,
        "edition": 2, "limit": 600.0, "seconds": float("inf"), "coverage": True, "strict": True,
        "child": False,
    }  # fmt: skip
    return argparse.Namespace(**{**plain, **changed})


def test_a_run_ends_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run_all(arguments()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "5 graphs, 0 failed"
    assert lines[0].startswith("coverage of 5 graphs: ")
    assert any(line.endswith("region map") and "RARE" not in line for line in lines)


def test_a_run_goes_on_after_what_died(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[tuple[int, int]] = []

    def child(first: int, count: int, _: argparse.Namespace) -> tuple[int, int, str, str]:
        begun.append((first, count))
        if first == 0:  # the process dies at seed 1
            return -signal.SIGSEGV, 1, "", "words"
        if first == 2:  # killed at seed 2
            return -signal.SIGKILL, 2, "", ""
        return 1, 4, f"FAILED 3 numpy: off\n{command.DONE}{count}\n", ""

    monkeypatch.setattr(command, "one_child", child)
    assert command.run_all(arguments(coverage=False)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert begun == [(0, 5), (2, 3), (3, 2)]
    assert lines[-2:] == ["failed seeds: 1 2 3", "5 graphs, 3 failed"]
    assert "FAILED 2 process: no graph for too long (-9)" in lines


def test_time_is_limited() -> None:
    with pytest.raises(command.TimeExceeded), command.limited(0.05):
        time.sleep(5)
    with command.limited(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_never_reached_is_listed() -> None:
    items = known()
    assert {"region attention", "refusal cycle", "tile op store"} <= set(items)
    assert "tilegen/emit/maps.py backward" in items and len(set(items)) == len(items)
    text = report(100_000, {"region map": 99, "region sort": 49})
    assert "       99  region map\n" in text and "RARE     49  region sort\n" in text
    assert "RARE      0  region attention\n" in text


def test_records_add_up() -> None:
    one, two = Recorder(), Recorder()
    for recorder, count in ((one, 2), (two, 3)):
        for _ in range(count):
            with recorder.calls():
                Counter([Path("a")])
            recorder.next_graph()
    assert merged([one.dump(), two.dump()]) == (5, Counter())
