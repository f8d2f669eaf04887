"""Constants of the 8-bit format that rules are checked in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuser import dtypes
from tests.rules.check import f8


@pytest.fixture(autouse=True)
def small_format(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(dtypes._BY_NUMPY, f8.numpy, f8)
    yield
