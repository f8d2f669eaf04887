"""Steps that last are named on stderr, others are not."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from fuser.report import progress as module
from fuser.report.progress import Progress


def test_a_step_that_lasts_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = ""
    with Progress(delay=0.0) as progress:
        progress.step("reading")
        end = time.monotonic() + 60
        while not told and time.monotonic() < end:
            told = capsys.readouterr().err
    assert told == "reading ...\n"


def test_a_step_that_is_over_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Even where its time was up just then."""
    progress = Progress(delay=600.0)
    with progress:
        progress.step("reading")
        over = progress._timer
        assert over is not None
        progress.step("compiling")
        over.function()
        last = progress._timer
    assert last is not None and last.finished.is_set()
    last.function()
    with Progress(enabled=False, delay=0.0) as progress:
        progress.step("reading")
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_long_a_step_has_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line no longer than its width, which is empty afterwards."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(module, "TICK", 0.001)
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    seconds = iter(range(100_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    with Progress(delay=0.0) as progress:
        progress.step("compiling 23 kernels of a model with a name of some length")
        while told.getvalue().count("\r") < 4:
            time.sleep(0.001)
    texts = told.getvalue().split("\r")
    assert all(len(text) < 50 for text in texts) and texts[-1] == "" and not texts[-2].strip()
    lasted = [re.search(r"compiling .*… ?.*\.\.\. (\S+) s", text) for text in texts[1:4]]
    assert [float(found[1]) for found in lasted if found] == [1.0, 2.0, 3.0]
