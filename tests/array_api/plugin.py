"""A pytest plugin for the foreign suite: tests that are about no claimed function are skipped, and
every outcome becomes a line of JSON in the file that $ARRAY_API_LOG names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.array_api import eager

REFUSALS = ("TraceError", "UnsupportedError", "UnsupportedDTypeError", "UnsupportedOpError")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The suite's settings, but a failure is reported as it was found: shrinking one compiles
    hundreds of functions."""
    settings.register_profile(
        "found", parent=settings(), phases=(Phase.explicit, Phase.generate),
        suppress_health_check=tuple(HealthCheck),
    )  # fmt: skip
    settings.load_profile("found")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        words = eager.subjects(item.nodeid)
        foreign = any(word in item.nodeid for word in ("complex", "real(", "imag("))
        if foreign or not any(map(eager.claimed, words)):
            item.add_marker(pytest.mark.skip(reason="not claimed"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    before = getattr(item, "calls", eager.calls)
    item.calls = eager.calls
    outcome: Any = yield
    report = outcome.get_result()
    if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
        return
    kind, reason = "passed", ""
    if report.outcome == "failed":
        kind, reason = _failure(call.excinfo.value)
        if kind == "wrong" and _numpy_fails(item):
            kind = "as NumPy"
    elif report.outcome == "skipped":
        kind = "skipped"
        reason = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else ""
    elif eager.calls == before:
        kind, reason = "skipped", "nothing was compiled"
    with open(os.environ["ARRAY_API_LOG"], "a") as log:
        log.write(json.dumps({"test": item.nodeid, "kind": kind, "reason": reason}) + "\n")


def _numpy_fails(item: Any) -> bool:
    """Whether the same test finds NumPy's own functions at fault."""
    eager.numpy_only = True
    try:
        item.runtest()
    except Exception:
        return True
    finally:
        eager.numpy_only = False
    return False


def _failure(error: BaseException) -> tuple[str, str]:
    """Refused, if nothing else failed; and the first of what happened."""
    errors = list(getattr(error, "exceptions", (error,)))
    others = [one for one in errors if type(one).__name__ not in REFUSALS]
    first = (others or errors)[0]
    text = re.sub(r"\s+", " ", f"{type(first).__name__}: {first}")
    return ("wrong" if others else "refused"), text[:500]
