"""A sample of random PyTorch programs: `python -m tests.random_torch` runs as many as wanted."""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.fuzzing.draw import Drawing  # noqa: E402
from tests.fuzzing.freedom import step  # noqa: E402
from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED, TRACE  # noqa: E402
from tests.fuzzing.judge import Seen  # noqa: E402
from tests.fuzzing.program import (  # noqa: E402
    BASIC,
    EXACT,
    FOLD,
    FUNCTION,
    SUM,
    Input,
    Program,
    Statement,
)
from tests.random_torch import check as checks  # noqa: E402
from tests.random_torch.check import (  # noqa: E402
    LIBRARY,
    calls,
    check,
    draw,
    evaluated,
    kind_of,
    leaf,
    otherwise,
    verdict,
)
from tests.random_torch.operators import has_ties  # noqa: E402

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


CANCELLED = {
    "x / x": ("v0 = x0 / x0", "bfloat16"),
    "x / x of float16": ("v0 = x0 / x0", "float16"),
    "x - x": ("v0 = x0 * 3 - x0 * 3", "bfloat16"),
    "x - x of float32": ("v0 = x0 * 3 - x0 * 3", "float32"),
    "products": ("v0 = torch.sub(x0 * 0.75, x0 * 0.75)", "float16"),
}


@pytest.mark.parametrize("name", list(CANCELLED))
def test_gradients_whose_terms_cancel_may_be_off_by_units_of_the_terms(name: str) -> None:
    line, dtype = CANCELLED[name]
    target, _, text = line.partition(" = ")
    given = Input("x0", np.array([1.125, 3.5, -2.75, 0.8125]), dtype)
    program = Program((given,), (Statement(target, text, BASIC),), (target,))
    (eager,) = [evaluated(program, arrays, "train") for arrays in calls(program, "train")]

    def off(far: float) -> list[Seen]:
        return [
            Seen(x.label, x.array + far, x.dtype, x.strides) if "gradient" in x.label else x
            for x in eager
        ]

    assert verdict(program, "train", [off(5e-7)]) is None


def test_gradients_whose_terms_do_not_cancel_are_near() -> None:
    given = Input("x0", np.array([1.125, 3.5, -2.75, 0.8125]), "float32")
    program = Program((given,), (Statement("v0", "x0 * x0", BASIC),), ("v0",))
    eager = evaluated(program, calls(program, "train")[0], "train")
    off = [
        Seen(x.label, x.array * (1 + 2e-5), x.dtype, x.strides) if "gradient" in x.label else x
        for x in eager
    ]
    wrong = verdict(program, "train", [off])
    assert wrong is not None and wrong.kind == "gradient"


SETTLED: dict[str, tuple[str, bool, tuple[tuple[str, str, str], ...]]] = {
    "an argument": ("float16", True, ()),
    "what is moved": ("bfloat16", True, (("v0", "x0.flip(0)", EXACT),)),
    "what is chosen": ("float16", True, (("v0", "torch.where(x0 > 0, x0, 2)", EXACT),)),
    "arithmetic of float32": ("float32", True, (("v0", "x0 * 3", BASIC),)),
    "arithmetic of 16 bits": ("float16", False, (("v0", "x0 * 3", BASIC),)),
    "a function": ("float32", False, (("v0", "torch.exp(x0)", FUNCTION),)),
    "an activation": ("float16", False, (("v0", "torch.nn.functional.gelu(x0)", FOLD),)),
    "a sum": ("float32", False, (("v0", "x0.sum(0)", SUM),)),
    "a sum of whole numbers": ("float32", True, (("v0", "x0.round()", EXACT),
                                                ("v0", "v0.sum(0) + 100", SUM))),
    "what is made of it": ("float32", False, (("v0", "torch.sin(x0)", FUNCTION),
                                              ("v0", "v0.mT.contiguous()", EXACT))),
    "changed by way of a view": ("float32", False, (("v0", "x0.clone()", EXACT),
                                                    ("v1", "v0[0]", EXACT),
                                                    ("v1", "v1.exp_()", FUNCTION))),
    "not a number": ("float32", False, (("v0", "x0 * torch.nan", EXACT),)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SETTLED))
def test_bits_are_viewed_of_what_has_one_right_answer(name: str) -> None:
    dtype, settled, lines = SETTLED[name]
    d = Drawing(random.Random(1), checks.LIBRARY, (dtype,))
    d.special = True
    numbers = (np.arange(20.0).reshape(4, 5) * 3 - 28) / 8
    d.begin([Input("x0", numbers, dtype)], checks.make)
    for target, text, freedom in lines:
        in_place = text.endswith("_()")
        statement = Statement(target, text, freedom, in_place)
        step(statement, d.scopes[0])
        d.statements.append(statement)
    assert d.is_settled("v0" if lines else "x0") == settled


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


def test_attention_is_judged_by_both_of_the_ways_that_pytorch_takes() -> None:
    """Where softmax is all but one number, the difference that makes its gradient cancels exactly
    by one way, and not by the other."""
    array = np.random.default_rng(1).normal(size=(1, 3, 4)) * 4
    text = "torch.nn.functional.scaled_dot_product_attention(x0, x0, x0, is_causal=True)"
    line = Statement("v0", text, FOLD)
    program = Program((Input("x0", array, "float32", "{0}.mT.contiguous().mT"),), (line,), ("v0",))
    arrays = calls(program, "train")[0]
    plain = evaluated(program, arrays, "train")
    fused = evaluated(program, arrays, "train", rewrite=otherwise)
    gaps = [float(np.abs(a.array - b.array).max()) for a, b in zip(plain, fused, strict=True)]
    assert max(gaps) > 1e-7
    assert verdict(program, "train", [fused]) is None
    far = [Seen(x.label, x.array + 1e-3, x.dtype, x.strides) for x in fused]
    assert verdict(program, "train", [far]) is not None


def test_ties_are_known() -> None:
    """Of elements selected by rank PyTorch leaves open which of equal ones gets the gradient."""
    drawing = Drawing(random.Random(1), LIBRARY, ("float32",))
    tied, apart = np.array([[1.0, 1.0, 2.0]]), np.array([[1.0, 3.0, 2.0]])
    drawing.begin([Input("x0", tied, "float32"), Input("x1", apart, "float32")], leaf)
    assert has_ties(drawing, "x0", 1) and not has_ties(drawing, "x1", 1)
    assert not has_ties(drawing, "x0", 0)
