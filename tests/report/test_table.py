"""The summary of a run as text."""

from __future__ import annotations

import pytest

from fuser.report.table import percent_saved


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(8, 3, "62 % saved"), (10, 10, "0 % saved"), (0, 0, "nothing to save")],
)
def test_what_is_saved_is_never_left_out(before: int, after: int, words: str) -> None:
    assert percent_saved(before, after) == words
