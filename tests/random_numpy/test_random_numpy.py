"""A sample of random NumPy programs: `python -m tests.random_numpy` runs as many as wanted."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED
from tests.fuzzing.judge import Seen
from tests.fuzzing.program import Program
from tests.random_numpy import check as checks
from tests.random_numpy.check import check, draw, kind_of, verdict

OPTIONS = argparse.Namespace(left_out=[], whole=False)


@pytest.mark.parametrize("seed", range(100, 130))
def test_programs(seed: int) -> None:
    for finding in check(seed, OPTIONS):
        assert finding.kind in (RIGHT, REFUSED, SKIPPED), finding.reason + "\n" + finding.script


def test_a_seed_is_a_program() -> None:
    for seed in range(6):
        one, two = draw(seed), draw(seed)
        assert one.text() == two.text()
        for a, b in zip(one.inputs, two.inputs, strict=True):
            np.testing.assert_array_equal(a.array, b.array)


def test_most_programs_have_something_to_compare() -> None:
    drawn = [draw(seed) for seed in range(60)]
    assert sum(bool(program.statements) for program in drawn) >= 55
    assert sum(len(program.statements) >= 3 for program in drawn) >= 30


def test_a_wrong_result_is_seen_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler whose float results are off by one unit in a thousand."""
    right = checks.compiled

    def off(program: Program) -> list[Seen]:
        found = right(program)
        return [Seen(x.label, x.array * 1.001, x.dtype) if x.is_float else x for x in found]

    monkeypatch.setattr(checks, "compiled", off)
    seeds = [seed for seed in range(100, 120) if kind_of(draw(seed))[0] == "wrong"]
    assert len(seeds) >= 8
    (finding,) = check(seeds[0], OPTIONS)
    assert finding.kind == "wrong" and finding.script.count("    v") <= 1


def test_numpy_is_one_of_the_right_answers() -> None:
    for seed in range(25):
        program = draw(seed)
        if program.statements:
            assert verdict(program, checks.evaluated(program)) is None
