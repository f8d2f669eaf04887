"""A fixed part of the onnx backend suite, quick enough for every change.

Every twelfth test of each category runs; the counts below may only grow. `python -m
tests.conformance` runs all.
"""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from tests.conformance.run import load_tests, run_test

STEP = 12
HOST = 0
"""Dense tests of this part that run on the host."""
PASSING = {
    "dense core": 132,
    "narrow numbers": 12,
    "strings": 3,
    "sequences, optionals, maps": 2,
    "control flow": 3,
    "data-dependent shape": 2,
    "training": 1,
    "Fourier": 1,
    "simple": 2,
    "pytorch-converted": 7,
    "pytorch-operator": 3,
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
