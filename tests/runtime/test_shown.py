"""What plans and their like print: short, true, escaped, and never an error."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import onnx.parser
import pytest

import fuser
from fuser.base.target import X86_64_V3
from fuser.dtypes import f32
from fuser.report.report import RegionReport, Report, Saving, Traffic
from fuser.runtime.plan import Plan
from fuser.runtime.program import BufferRef, Copy, Program, TensorSpec
from fuser.runtime.shown import Shown, Summary


def plan_of(name: str, *inputs: str) -> Plan:
    """A plan that hands on its inputs."""
    specs = tuple(TensorSpec(label, f32, (2, 3)) for label in inputs)
    copies = tuple(Copy(BufferRef("input", i), i) for i in range(len(specs)))
    return Plan(Program(X86_64_V3, specs, specs[:1], (), (), 0, copies[:1], name), threads=1)


def cells(shown: Shown) -> list[tuple[str, str]]:
    """The rows of the table for notebooks, which parses."""
    rows = ElementTree.fromstring(shown._repr_html_()).findall("tr")
    return [(row[0].text or "", row[1].text or "") for row in rows]


def test_a_plan() -> None:
    plan = plan_of("mlp", "x", "w")
    assert repr(plan) == "<Plan mlp: x f32[2, 3], w f32[2, 3] -> x f32[2, 3]; cpu, 0 kernels>"
    rows = cells(plan)
    assert ("device", "cpu (x86-64-v3, 1 thread)") in rows and ("kernels", "0") in rows
    assert [text for label, text in rows if label in ("input", "output")] == [
        "x: f32[2, 3]", "w: f32[2, 3]", "x: f32[2, 3]"
    ]  # fmt: skip
    assert list(plan.__rich_repr__()) == ["mlp", *rows]
    plan.close()
    assert repr(plan).endswith("cpu, 0 kernels, closed>") and ("state", "closed") in cells(plan)


def test_large_and_hostile_models() -> None:
    plan = plan_of("<script>\n" + "m" * 300, *(f"past_{i}" for i in range(200)))
    assert len(repr(plan)) < 250 and "\n" not in repr(plan) and "197 more" in repr(plan)
    text = plan._repr_html_()
    assert "<script" not in text and "&lt;script&gt;" in text and len(text) < 3000
    assert ("inputs", "188 more") in cells(plan)


def test_what_is_half_made_shows_itself() -> None:
    class Broken(Shown):
        def _summary(self) -> Summary:
            raise RuntimeError("<the device is gone>")

    kinds: list[Any] = [fuser.Plan, fuser.DynamicPlan, fuser.InferenceSession, Report]
    for made in (Broken(), *(kind.__new__(kind) for kind in kinds)):
        assert type(made).__name__ in repr(made) and len(repr(made)) < 100
        assert ElementTree.fromstring(made._repr_html_()).text == repr(made)
        assert len(list(made.__rich_repr__())) == 1


def test_a_report_is_short() -> None:
    regions = tuple(RegionReport(i, "map", ("node",) * 50, 1, 1) for i in range(500))
    traffic = Traffic(12_000_000, 5_000_000, 4_000_000)
    report = Report(
        "bert", "cpu", Saving(700, 100), Traffic(1, 1, 1), 1.5, 0, 10,
        regions, fallbacks=("Resize <a>",), dims={"batch": 8}, boundary=traffic,
    )  # fmt: skip
    assert repr(report) == ("<Report bert; cpu, kernels 700 -> 100, memory 12.0 MB -> 5.00 MB>")
    rows = cells(report)
    assert ("batch", "8") in rows and ("fallback", "Resize <a>") in rows
    assert "regions" in report.to_dict(schema=1)


def test_a_traced_function() -> None:
    traced = fuser.trace(lambda x: np.exp(x).sum(axis=0), fuser.spec((4, 5)), device="cpu")
    assert repr(traced) == "<Traced lambda: x f32[4, 5] -> output f32[5]; not compiled yet>"
    assert "plan" not in vars(traced)  # to show it does not compile it
    assert ("state", "not compiled yet") in cells(traced)


def test_a_session() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> '
        "m (float[batch, 3] x, int64 n) => (float[batch, 3] y) { y = Relu(x) }"
    )
    session = fuser.InferenceSession(model, device="cpu")
    assert repr(session) == (
        "<InferenceSession x tensor(float)[batch, 3], n tensor(int64)[] -> "
        "y tensor(float)[batch, 3]; cpu, 0 plans>"
    )
    session.run(None, {"x": np.ones((2, 3), np.float32), "n": np.int64(1)})
    assert repr(session).endswith("cpu, 1 plan>")
    assert ("1 kernel", "x f32[2, 3], n i64[]") in cells(session)


def test_the_module_lists_its_names() -> None:
    assert {*fuser.__all__, "errors"} <= set(dir(fuser))
    assert all(hasattr(fuser, name) for name in fuser.__all__)
    with pytest.raises(AttributeError):
        fuser.nothing  # noqa: B018
