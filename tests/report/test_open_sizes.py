"""What fusion saved, of plans that serve many sizes, that the host runs parts of, and of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser.cli.main import run
from fuser.frontends.onnx.hosted import HostedPlan
from fuser.frontends.onnx.model import open_model, random_feeds
from fuser.pipeline.dynamic import DynamicPlan
from fuser.report.beside import measure
from fuser.report.record import Record
from fuser.runtime.plan_report import Report
from models import TINY, build
from tests.sharding.test_models import MODELS

MAPS = """<ir_version: 9, opset_import: ["": 18]> g (float[rows, n] x) => (float[rows, n] y) {
    a = Relu(x)  y = Neg(a)
}"""


def assert_before_is(report: Report, alone: Report) -> None:
    """Before is what the plan without fusion launches and moves; nothing is below the least."""
    assert report.kernels.before == alone.kernels.after > report.kernels.after
    assert len(report.launches) == report.kernels.after
    assert sum(one.boundary.total for one in report.launches) == report.boundary.after
    for name in ("boundary", "dram", "dram_cold"):
        told, other = getattr(report, name), getattr(alone, name)
        assert told.before == other.after
        assert told.floor <= min(told.before, told.after)
    assert report.boundary.after < report.boundary.before


def test_a_report_is_of_the_sizes_that_ran() -> None:
    """One variant serves all of them."""
    model = open_model(onnx.parser.parse_model(MAPS))
    plan, alone = (DynamicPlan(model, device="cpu", fusion=fusion) for fusion in (True, False))
    for rows, n in ((4, 5), (9, 7), (100, 3)):
        feeds = {"x": np.ones((rows, n), np.float32)}
        report = plan.report(feeds)
        assert report.dims == {"rows": rows, "n": n}
        assert (report.kernels.before, report.kernels.after) == (2, 1)
        assert report.boundary.after == 2 * rows * n * 4 == report.boundary.floor
        assert report.launches[0].flops == 2 * rows * n
        assert_before_is(report, alone.report(feeds))
    assert len(plan.variants) == 1


def test_an_attention_model_of_open_sizes() -> None:
    model = open_model(build("bert", **{**TINY["bert"], "layers": 1}))
    plan, alone = (DynamicPlan(model, device="cpu", fusion=fusion) for fusion in (True, False))
    moved = []
    for dims in ({"batch": 2, "sequence": 9}, {"batch": 5, "sequence": 40}):
        feeds = random_feeds(model, dims)
        report = plan.report(feeds)
        assert_before_is(report, alone.report(feeds))
        assert report.dims == dims
        moved.append(report.boundary.after)
    assert moved[0] < moved[1]


def test_pins_of_open_sizes() -> None:
    text = MAPS.replace("a = Relu(x)  y = Neg(a)", "[one] a = Relu(x)  [two] y = Neg(a)")
    model = open_model(onnx.parser.parse_model(text))
    apart = fuser.Fusion(forbid=(("one", "two"),))
    plan = DynamicPlan(model, device="cpu", fusion=apart)
    change = plan.report({"x": np.ones((4, 5), np.float32)}).forced
    assert change is not None and change["kernels"] == {"unforced": 1, "forced": 2}
    assert change["bytes"] == {"unforced": 2 * 80, "forced": 4 * 80}


@pytest.mark.parametrize("dims", [("rows=4", "n=5"), ("rows=30", "n=7")])
def test_the_command_at_sizes(
    dims: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a model, and of a plan of open sizes, which says what its figures are of."""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(MAPS).SerializeToString())

    def told(*words: str | Path) -> Any:
        capfd.readouterr()
        given = [word for dim in dims for word in ("--dim", dim)]
        command = [
            "run",
            *map(str, words),
            *given,
            "--device",
            "cpu",
            "--iterations",
            "2",
            "--json",
        ]
        assert run(command) == 0
        return json.loads(capfd.readouterr().out)

    report = told(path)
    size = np.prod([int(dim.split("=")[1]) for dim in dims])
    assert report["boundary_bytes"] == {
        "before": 16 * size, "after": 8 * size, "floor": 8 * size
    }  # fmt: skip
    assert report["kernels"] == {"before": 2, "after": 1} and report["unfused"]["latency_ms"]
    assert [one.label for one in Record(report).savings] == ["kernels", "memory", "time"]
    plan = DynamicPlan(open_model(path), device="cpu")
    plan.prepare({"rows": 4, "n": 5})
    plan.save(tmp_path / "a.plan")
    stored = told(tmp_path / "a.plan")
    assert stored["dims"] == report["dims"] and stored["kernels"] == report["kernels"]
    (note,) = stored["fallbacks"]
    assert note.startswith("a saved plan of open sizes: the report's figures are of rows = ")


def test_a_model_with_parts_on_the_host() -> None:
    """Regions of all parts have numbers of their own, so that kernels have names of their own."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[n, 4] x) => (float[k] y) {
        twice = Add(x, x)  big = Relu(twice)
        places = NonZero(big)  found = Transpose(places)  picked = GatherND(big, found)
        a = Neg(picked)  y = Exp(a)
    }"""
    feeds = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    reports = []
    for fusion in (True, False):
        plan = fuser.compile(
            onnx.parser.parse_model(text), device="cpu", host="allow", fusion=fusion
        )
        assert isinstance(plan, HostedPlan)
        plan.run(feeds)
        reports.append(plan.report())
    report, alone = reports
    assert_before_is(report, alone)
    names = [one.own for one in Record(report.to_dict()).launches]
    assert len(set(names)) == len(names) == report.kernels.after >= 2

    def unfused() -> HostedPlan:
        made = fuser.compile(
            onnx.parser.parse_model(text), device="cpu", host="allow", fusion=False
        )
        assert isinstance(made, HostedPlan)
        return made

    plan = fuser.compile(onnx.parser.parse_model(text), device="cpu", host="allow")
    plan.run(feeds)
    told = plan.report()
    measure(told, plan, feeds, 2, unfused=unfused)
    assert told.kernels == report.kernels and told.boundary.before == report.boundary.before
    assert [one.label for one in told.savings()][-1] == "time"


def test_ranks() -> None:
    """Of the first one, with its collectives on both sides."""
    reports = []
    for fusion in (True, False):
        with fuser.compile(MODELS["bert"](1), devices=2, device="cpu", fusion=fusion) as plan:
            reports.append(plan.report())
    report, alone = reports
    assert_before_is(report, alone)
    met = [[one.kind for one in each.launches].count("collective") for each in reports]
    assert met[0] == met[1] > 0
