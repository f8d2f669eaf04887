"""Steps that last are named on stderr, others are not."""

from __future__ import annotations

import time

import pytest

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
