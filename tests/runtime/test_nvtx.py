"""Ranges for profilers: there on request, and reported where they cannot be made."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

import fuser
from fuser.runtime import nvtx


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    nvtx._functions.cache_clear()
    yield
    nvtx._functions.cache_clear()


def run_one() -> None:
    double = fuser.trace(lambda x: x + x, fuser.spec((3,), np.float32), device="cpu")
    plan = double.plan
    (name,) = (spec.name for spec in plan.inputs)
    plan.run({name: np.ones(3, np.float32)})


def test_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    fake = SimpleNamespace(push_range=told.append, pop_range=lambda: told.append("end"))
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    run_one()
    assert not told
    monkeypatch.setenv("FUSER_NVTX", "1")
    run_one()
    assert told[0].startswith("fuser compile ") and told[-2].startswith("fuser run ")
    assert told.count("end") == len(told) / 2 == 2


def test_ranges_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent(name: str | None, **options: bool) -> object:
        if name is None:  # the process itself, which plans are linked with
            return real(name, **options)
        raise OSError(name)

    real = ctypes.CDLL

    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setattr(ctypes, "CDLL", absent)
    monkeypatch.setenv("FUSER_NVTX", "1")
    with caplog.at_level(logging.WARNING, "fuser"):
        run_one()
        run_one()
    assert [m for m in caplog.messages if "nvtx" in m and "pip install" in m] == caplog.messages
    assert len(caplog.messages) == 1
