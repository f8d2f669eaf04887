"""The judge sees what is wrong and allows what is right; failing programs become small; a run goes
on after what fails, dies or hangs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.foreign_sections import replace_section
from tests.fuzzing import jobs
from tests.fuzzing.document import section
from tests.fuzzing.freedom import Freedom
from tests.fuzzing.jobs import REFUSED, RIGHT, Finding, Summary, TimeExceeded, checked, limited
from tests.fuzzing.judge import Seen, judged
from tests.fuzzing.program import (
    BASIC,
    CANCEL,
    EXACT,
    FOLD,
    FUNCTION,
    ORDER,
    PARTS,
    SUM,
    Input,
    Program,
    Statement,
    signature,
)
from tests.fuzzing.shrink import shrunk
from tests.random_numpy import check as numpy_check


def program(*statements: Statement, array: object = (1.5, 41.0, 2.25), dtype: str = "float32",
            outputs: tuple[str, ...] = ()) -> Program:  # fmt: skip
    given = Input("x0", np.asarray(array, np.float64), dtype)
    return Program((given,), statements, outputs or (statements[-1].target,))


def spread(made: Program) -> float:
    """How far evaluations that use their freedom lie from eager's, in units of the result."""
    (eager,) = numpy_check.evaluated(made)
    gaps = []
    for seed in range(8):
        (other,) = numpy_check.evaluated(made, Freedom(numpy_check.LIBRARY, seed))
        gaps.append(np.abs(other.array - eager.array) / np.abs(eager.array))
    return float(np.max(gaps))


def seen(array: object, dtype: str = "float32", label: str = "result 0") -> Seen:
    return Seen(label, np.asarray(array), dtype)


@pytest.mark.parametrize(
    "freedom, text, dtype, least, most",
    [
        (EXACT, "np.abs(x0)", "float16", 0, 0), (BASIC, "x0 / 41", "float32", 0, 0),
        (BASIC, "x0 / 41", "float16", 2.0**-13, 2.0**-9), (ORDER, "np.max(x0)", "float32", 0, 0),
        (FUNCTION, "np.exp(x0)", "float32", 2.0**-25, 2.0**-20),
        (FUNCTION, "np.exp(x0)", "float64", 2.0**-54, 2.0**-49),
        (SUM, "np.sum(x0)", "float32", 2.0**-25, 2.0**-20),
        (FOLD, "np.var(x0)", "float32", 2.0**-25, 2.0**-18),
        (CANCEL, "x0 - np.tanh(x0)", "float32", 2.0**-24, 2.0**-18),
        (FOLD, "np.exp(x0 / 41)", "float16", 2.0**-14, 2.0**-8.5),
        (PARTS, "np.exp(x0 / 41)", "float16", 2.0**-11, 2.0**-7),
    ],
)  # fmt: skip
def test_freedom_is_that_of_the_statement(
    freedom: str, text: str, dtype: str, least: float, most: float
) -> None:
    assert least <= spread(program(Statement("v0", text, freedom), dtype=dtype)) <= most


def test_sums_of_small_whole_numbers_are_exact() -> None:
    line = Statement("v0", "np.mean(x0)", SUM)
    assert spread(program(line, array=(1.0, 1.0, 5.0))) == 0
    assert spread(program(line, array=(1.0, 1.0, 5.5))) > 0


def test_a_unit_too_much_is_seen() -> None:
    """Where eager and its rivals agree, a result has their bits."""
    eager = seen([1.0, 2.0])
    near = seen([1.0, 2.0 + 2.0**-22])
    assert judged([eager], [eager], [[eager]], [eager]) is None
    verdict = judged([near], [eager], [[eager]], [eager])
    assert verdict is not None and verdict.kind == "bits"
    far = judged([seen([1.0, 2.001])], [eager], [[eager]], [eager])
    assert far is not None and far.kind == "wrong"
    rival = seen([1.0, 2.0 - 2.0**-22])
    assert judged([near], [eager], [[rival]], [eager]) is None


@pytest.mark.parametrize(
    "found, eager, kind",
    [
        (seen([0.0, 1.0]), seen([-0.0, 1.0]), "sign"), (seen([np.nan]), seen([1.0]), "wrong"),
        (seen([np.inf]), seen([-np.inf]), "wrong"),
        (seen([1, 2], "int32"), seen([1, 3], "int32"), "wrong"),
        (seen([1], "int32"), seen([1], "int64"), "dtype"), (seen([1.0]), seen([[1.0]]), "shape"),
        (seen([1.0], label="result 0 written"), seen([2.0], label="result 0 written"), "alias"),
        (seen([1.0], label="gradient 0"), seen([2.0], label="gradient 0"), "gradient"),
    ],
)  # fmt: skip
def test_kinds(found: Seen, eager: Seen, kind: str) -> None:
    verdict = judged([found], [eager], [[eager]], [eager])
    assert verdict is not None and verdict.kind == kind


def test_equal_nans_and_other_strides() -> None:
    nan = seen([np.nan, 1.0])
    assert judged([nan], [nan], [[nan]], [nan]) is None
    verdict = judged([replace(nan, strides=(1,))], [replace(nan, strides=(2,))], [[nan]], None)
    assert verdict is not None and verdict.kind == "strides"


def test_a_decision_that_rounding_makes_may_go_either_way() -> None:
    """The floor of exp(log(3)) is 2 or 3; that of 3 is 3."""
    lines = (Statement("v0", "np.log(x0)", FUNCTION), Statement("v1", "np.exp(v0)", FUNCTION),
             Statement("v2", "np.floor(v1)"))  # fmt: skip
    made = program(*lines, array=(3.0,))
    (two, three) = (seen([n]) for n in (2.0, 3.0))
    assert numpy_check.verdict(made, [two]) is None
    assert numpy_check.verdict(made, [three]) is None
    wrong = numpy_check.verdict(made, [seen([7.0])])
    assert wrong is not None and wrong.kind == "wrong"
    plain = program(Statement("v0", "np.floor(x0 + 0.0)", BASIC), array=(3.0,))
    wrong = numpy_check.verdict(plain, [two])
    assert wrong is not None and wrong.kind == "wrong"


def test_what_fails_becomes_small() -> None:
    """Of many lines the one that matters stays, its operand an input."""
    lines = [Statement(f"v{n}", f"v{n - 1} + {n}" if n else "x0 * 2") for n in range(6)]
    lines += [Statement("v6", "np.floor(v3)"), Statement("v7", "v6 - x0")]
    made = program(*lines, outputs=("v7", "v5", "v2"))

    def values(trial: Program) -> Mapping[str, Input]:
        return numpy_check.values_of(trial)

    small = shrunk(made, lambda trial: "floor" in trial.text(), values, seconds=600)
    assert [s.text for s in small.statements] == ["np.floor(x0)"] and len(small.inputs) == 1
    assert small.inputs[0].array.size == 1
    assert signature(small) == "v = np.floor(v)"


def options(**changed: object) -> argparse.Namespace:
    plain = {"seed": 0, "programs": 4, "seconds": float("inf"), "jobs": 1, "chunk": 4, "limit": 600,
             "left_out": ["bits"], "whole": False, "child": False}  # fmt: skip
    return argparse.Namespace(**{**plain, **changed})


def test_a_limit_ends_a_program_that_catches_exceptions() -> None:
    def hangs(_: int, __: argparse.Namespace) -> list[Finding]:
        while True:
            try:
                time.sleep(1)
            except Exception:
                continue

    (finding,) = checked(hangs, 0, options(limit=0.05))
    assert finding.kind == "slow" and finding.failed
    with pytest.raises(TimeExceeded), limited(0.01):
        time.sleep(5)


def test_an_error_of_the_fuzzer_is_a_finding() -> None:
    (finding,) = checked(lambda seed, _: [Finding(RIGHT)][seed:1][0:0] or [][1], 0, options())
    assert finding.kind == "fuzzer"


def test_the_summary_counts_kinds_and_reasons() -> None:
    summary = Summary()
    summary.add(1, [Finding(RIGHT)], ["bits"])
    summary.add(2, [Finding(REFUSED, "no such operator")], ["bits"])
    summary.add(3, [Finding("bits")], ["bits"])
    summary.add(4, [Finding("wrong")], ["bits"])
    told = json.loads(summary.line(["bits"], 1.0))
    assert told["programs"] == 4 and told["failures"] == {"wrong": 1}
    assert told["left out"] == {"bits": 1} and told["refusals"] == {"no such operator": 1}
    assert told["failed seeds"] == [4]


def test_a_run_is_a_section_of_the_page(tmp_path: Path) -> None:
    summary = Summary()
    for seed, kind in enumerate((RIGHT, RIGHT, REFUSED, "wrong", "bits")):
        summary.add(seed, [Finding(kind, "a | b" if kind == REFUSED else "")], ["bits"])
    text = section("Programs.", "tests.x", json.loads(summary.line(["bits"], 1.0)))
    assert "| 5 | 2 | 1 | 0 | 2 |" in text and "- bits: 1\n- wrong: 1" in text
    assert "| 1 | a / b |" in text
    page = tmp_path / "page.md"
    for _ in range(2):
        replace_section(page, "Programs: cpu", text)
    assert page.read_text().count("## Programs: cpu") == 1


def test_no_program_begins_after_its_time() -> None:
    begun = []

    def check(seed: int, _: argparse.Namespace) -> list[Finding]:
        begun.append(seed)
        return [Finding(RIGHT)]

    with patch("os.dup2"), patch("os.dup", return_value=os.open(os.devnull, os.O_WRONLY)):
        assert jobs.child(check, options(seconds=-1.0)) == 0
    assert begun == []
    with patch("os.dup2"), patch("os.dup", return_value=os.open(os.devnull, os.O_WRONLY)):
        assert jobs.child(check, options(programs=2)) == 0
    assert begun == [0, 1]


CHILD = """
import os, sys
from tests.fuzzing.jobs import Finding, main
def check(seed, options):
    print("words")
    if seed == 1:
        os.abort()
    return [Finding("wrong" if seed == 2 else "right", "off", "print()", "group")]
sys.exit(main("dying", "dying" + chr(10) * 2 + "a test", "Dying", check))
"""


def test_a_run_goes_on_after_what_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dying.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    summary, seconds = jobs.run_all("dying", options())
    lines = capsys.readouterr().out.splitlines()
    told = json.loads(summary.line([], seconds))
    assert told["programs"] == 4 and told["right"] == 2
    assert told["failures"] == {"died": 1, "wrong": 1} and told["failed seeds"] == [1, 2]
    assert "FAILED 2 wrong: off" in lines
