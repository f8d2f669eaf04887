"""A fixed part of the onnx backend suite, quick enough for every change.

Every eighth test of each category runs; the counts below may only grow. `python -m
tests.conformance` runs all.
"""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from tests.conformance.run import load_tests, run_test

STEP = 8
HOST = 1
"""BitCast between floats and integers."""
PASSING = {
    "dense core": 192,
    "narrow numbers": 21,
    "strings": 4,
    "sequences, optionals, maps": 6,
    "control flow": 3,
    "data-dependent shape": 3,
    "training": 2,
    "Fourier": 2,
    "ai.onnx.ml": 1,
    "simple": 2,
    "pytorch-converted": 10,
    "pytorch-operator": 4,
}


@pytest.mark.skipif(not onnx.__version__.startswith("1.23"), reason="counts are of onnx 1.23")
def test_subset() -> None:
    found: Counter[str] = Counter()
    on_host: Counter[str] = Counter()
    failures = []
    for test in load_tests()[::STEP]:
        outcome = run_test(test)
        found[outcome.category] += outcome.passed
        on_host[outcome.category] += outcome.how == "host"
        if not outcome.passed:
            failures.append(f"{outcome.name}: {outcome.reason}")
    assert on_host["dense core"] <= HOST and not on_host["control flow"], on_host
    short = {name: found[name] for name, count in PASSING.items() if found[name] < count}
    assert not short, f"{short} fewer than {PASSING}\n" + "\n".join(failures)
