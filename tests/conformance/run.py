"""Run the backend tests of the onnx package, through its own runner, on fuser.

The runner's tests are used as they are; a skipped test counts as not passed. `real` models, which
would be downloaded, are left out.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from onnx.backend.test.runner import Runner

from fuser.onnx_backend import FuserBackend, FuserRep
from tests.conformance.categories import categorize


class _Backend(FuserBackend):
    """Remembers what was prepared last, and names errors that the runner would take as passes."""

    last: FuserRep | None = None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> FuserRep:
        cls.last = None
        cls.last = super().prepare(model, device, **kwargs)
        return cls.last

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return True


LIMIT = 20
"""Seconds a test may take."""


@dataclass(frozen=True)
class Outcome:
    """One test. how: "kernels", "folded" (nothing is left to compute), "host" (some operator runs
    in NumPy), or "" where it did not pass."""

    name: str
    category: str
    passed: bool
    how: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Test:
    name: str
    category: str
    case: Callable[[], unittest.TestCase]


def load_tests(device: str = "cpu", pattern: str = "") -> list[Test]:
    """Every offline test of a device whose name contains `pattern` (a regular expression)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases divide by zero on purpose
        runner = Runner(_Backend)
        models = {case.name: case.model for case in _node_cases()}
    tests = []
    for name, group in runner.test_cases.items():
        kind = name.removeprefix("OnnxBackend").removesuffix("ModelTest")
        if kind == "Real":
            continue
        for method in dir(group):
            plain = method.removesuffix(f"_{device}")
            if not method.startswith("test_") or plain == method or not re.search(pattern, plain):
                continue
            category = categorize(kind, plain, models.get(plain))
            tests.append(Test(plain, category, lambda group=group, method=method: group(method)))
    return tests


def _node_cases() -> Iterable[Any]:
    from onnx.backend.test.loader import load_model_tests

    cases: Iterable[Any] = load_model_tests(kind="node")
    return cases


def run_tests(tests: list[Test], *, fusion: bool = True, jobs: int = 1) -> Iterator[Outcome]:
    """Outcomes as they come, in `jobs` processes."""
    _Backend.fusion = fusion
    if jobs <= 1:
        yield from map(run_test, tests)
        return
    # Forked workers inherit the tests, which cannot be pickled; nothing has been compiled yet.
    global _TESTS
    _TESTS = tests
    os.environ.setdefault("FUSER_WORKERS", "1")
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_index, range(len(tests)), chunksize=4)


_TESTS: list[Test] = []


def _run_index(index: int) -> Outcome:
    return run_test(_TESTS[index])


def _give_up(*_: object) -> None:
    raise TimeoutError(f"more than {LIMIT} seconds")


def run_test(test: Test) -> Outcome:
    """One test by the rules of unittest."""
    result = unittest.TestResult()
    started = time.perf_counter()
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test.case().run(result)
    finally:
        signal.alarm(0)
    seconds = time.perf_counter() - started
    problems = [text for _, text in (*result.errors, *result.failures)]
    passed = result.testsRun == 1 and not problems and not result.skipped
    reason = "skipped" if result.skipped else _reason(problems[0]) if problems else ""
    return Outcome(test.name, test.category, passed, _how() if passed else "", reason, seconds)


def _how() -> str:
    if _Backend.last is None:
        return ""
    session = _Backend.last.session
    plans = session.plans
    if session.fallbacks:
        return "host"
    return "kernels" if any(plan.launches for plan in plans) else "folded"


def _reason(text: str) -> str:
    """The last exception of a traceback on one line."""
    lines = [line for line in text.strip().splitlines() if line]
    start = max(
        (i for i, line in enumerate(lines) if re.match(r"^[\w.]+(Error|Exception|Exit)\b", line)),
        default=len(lines) - 1,
    )
    return " ".join(line.strip() for line in lines[start : start + 4])[:300]
