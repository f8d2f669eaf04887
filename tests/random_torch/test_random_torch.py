"""A sample of random PyTorch programs: `python -m tests.random_torch` runs as many as wanted."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED, TRACE  # noqa: E402
from tests.fuzzing.judge import Seen  # noqa: E402
from tests.fuzzing.program import Input, Program, Statement  # noqa: E402
from tests.random_torch import check as checks  # noqa: E402
from tests.random_torch.check import calls, check, draw, evaluated, kind_of, verdict  # noqa: E402

OPTIONS = argparse.Namespace(left_out=[], whole=False, entry="")


@pytest.mark.parametrize("seed", range(12, 22))
def test_programs(seed: int) -> None:
    for finding in check(seed, OPTIONS):
        fine = finding.kind in (RIGHT, REFUSED, SKIPPED, TRACE)
        assert fine, finding.reason + "\n" + finding.script


def test_entry_points_and_layouts_are_drawn() -> None:
    drawn = [draw(seed) for seed in range(80)]
    assert {entry for entry, _ in drawn} == set(checks.ENTRY_POINTS)
    assert sum(s.in_place for _, program in drawn for s in program.statements) >= 10
    assert sum(x.layout != "{0}" for _, program in drawn for x in program.inputs) >= 10
    assert any(x.array.size == 0 for _, program in drawn for x in program.inputs)


@pytest.mark.parametrize("entry", list(checks.ENTRY_POINTS))
def test_pytorch_is_one_of_the_right_answers(entry: str) -> None:
    for seed in range(6):
        _, program = draw(seed, entry)
        found = [evaluated(program, arrays, entry) for arrays in calls(program, entry)]
        assert verdict(program, entry, found) is None


def test_a_result_that_is_no_view_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that copies what should share the argument's memory."""
    line = Input("x0", np.ones((3, 4)), "float32")
    program = Program((line,), (Statement("v0", "x0[1:]"),), ("v0",))

    def copied(made: Program, entry: str, backend: object = "") -> object:
        function = made.function(checks.LIBRARY.names)
        values = checks.operands(made, calls(made, entry)[0], entry)
        results = [y.clone() for y in function(*values)]
        return [checks.observed(results, values, entry)], []

    monkeypatch.setattr(checks, "_trace_is_right", lambda *_: True)
    assert kind_of(program, "compile")[0] == RIGHT
    monkeypatch.setattr(checks, "compiled", copied)
    assert kind_of(program, "compile")[0] == "alias"


@pytest.mark.parametrize("text", ["torch.floor_divide(x0, x0[0])", "torch.exp(x0)"])
def test_strides_are_those_of_eager_or_of_tensors_without_values(text: str) -> None:
    """Which are row-major for `floor_divide`, and in eager as the operand's."""
    line = Input("x0", np.ones((3, 4)), "float32", "{0}.mT.contiguous().mT")
    program = Program((line,), (Statement("v0", text),), ("v0",))
    arrays = calls(program, "compile")[0]
    (seen, *others) = evaluated(program, arrays, "compile")
    assert seen.strides == (1, 3)
    for strides, is_right in (((1, 3), True), ((4, 1), "floor" in text), ((8, 2), False)):
        wrong = verdict(program, "compile", [[replace(seen, strides=strides), *others]])
        assert (wrong is None) == is_right


@pytest.mark.parametrize("text", ["torch.pow(x0, True)", "x0.logical_not()"])
@pytest.mark.parametrize("dtype", ["bool", "int64", "int32"])
@pytest.mark.parametrize("off", [0, 1])
def test_dtypes_are_those_of_eager_or_of_tensors_without_values(
    text: str, dtype: str, off: int
) -> None:
    """Which are int64 for `pow` of booleans, and in eager bool. The values are eager's."""
    line = Input("x0", np.array([True, False]), "bool")
    program = Program((line,), (Statement("v0", text),), ("v0",))
    arrays = calls(program, "module")[0]
    (seen, *others) = evaluated(program, arrays, "module")
    found = replace(seen, array=(seen.array ^ off).astype(dtype), dtype=dtype)
    wrong = verdict(program, "module", [[found, *others]])
    is_right = dtype == "bool" or (dtype == "int64" and "pow" in text)
    assert (wrong is None) == (is_right and not off)


def test_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler whose gradients are off."""
    line = Input("x0", np.ones((3, 4)), "float32")
    program = Program((line,), (Statement("v0", "x0 * 3"),), ("v0",))
    arrays = calls(program, "train")[0]
    found = [evaluated(program, arrays, "train")]
    assert verdict(program, "train", found) is None
    off = [
        Seen(x.label, x.array * 1.001, x.dtype, x.strides) if "gradient" in x.label else x
        for x in found[0]
    ]
    wrong = verdict(program, "train", [off])
    assert wrong is not None and wrong.kind == "gradient"
