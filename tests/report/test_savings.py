"""What a report says of fusion: kernels, bytes and time, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser.backend.cpu.host import host_target
from fuser.frontends.onnx.model import open_model
from fuser.partition import Options
from fuser.pipeline.outline import Alternative
from fuser.report.beside import MAX_COMPILE_S, measure
from fuser.report.build import launch_figures
from fuser.runtime.latency import Latency
from fuser.runtime.plan import Plan
from fuser.runtime.savings import Saving, Traffic, is_slower, ratio, savings
from models import build

ZOO = ("mlp", "softmax", "layernorm", "attention", "conv_block", "bert", "tiny_llama")
SMALL: dict[str, dict[str, Any]] = {"bert": {"layers": 1}}


def latency(ms: float) -> Latency:
    return Latency(ms, ms, ms, 10)


def lines(dram: Traffic, fused: float | None = None, alone: float | None = None) -> dict[str, str]:
    memory = Traffic(200_000_000, 100_000_000, 50_000_000)
    times = [None if ms is None else latency(ms) for ms in (fused, alone)]
    return {one.label: str(one) for one in savings(Saving(12, 4), memory, dram, *times)}


def test_lines_say_one_ratio_each() -> None:
    found = lines(Traffic(90_000_000, 60_000_000, 50_000_000), 1.0, 1.5)
    assert found == {
        "kernels": "12 -> 4  (3.00x fewer)",
        "memory": "200 MB -> 100 MB  (2.00x less, at least 50.0 MB)",
        "DRAM": "90.0 MB -> 60.0 MB  (1.50x less, at least 50.0 MB, predicted)",
        "time": "1.50 ms -> 1.00 ms  (1.50x faster, medians of 10 runs each, in turns)",
    }


@pytest.mark.parametrize("after", [100_000_000, 99_000_000, 101_000_000])
def test_dram_traffic_that_fusion_does_not_change_is_not_told(after: int) -> None:
    assert "DRAM" not in lines(Traffic(100_000_000, after, 50_000_000), 2.0, 1.0)


@pytest.mark.parametrize(("fused", "told"), [(None, False), (1.0, False), (3.0, True)])
def test_a_loss_is_told_where_time_is_lost(fused: float | None, told: bool) -> None:
    found = lines(Traffic(100, 150, 50), fused, None if fused is None else 2.0)
    assert ("DRAM" in found) == told
    assert not told or "1.50x more" in found["DRAM"]
    memory = Traffic(100, 150, 50)
    times = [None if fused is None else latency(ms) for ms in (fused or 0.0, 2.0)]
    line = savings(Saving(2, 2), memory, memory, *times)[1]
    assert line.ratio == ("1.50x more" if told else "")


def test_ratios() -> None:
    words = ("fewer", "more")
    assert ratio(10, 5, words) == "2.00x fewer" and ratio(5, 10, words) == "2.00x more"
    assert ratio(5, 5, words) == ratio(0, 5, words) == ratio(5, 0, words) == ""
    assert is_slower(latency(1.03), latency(1.0)) and not is_slower(latency(1.01), latency(1.0))
    assert not is_slower(Latency(9.0, 9.0, 9.0, 4), latency(1.0)), "too few runs"
    assert not is_slower(None, latency(1.0)) and not is_slower(latency(1.0), None)
    spread = Latency(1.0, 1.2, 1.5, 10)
    assert is_slower(latency(1.21), spread) and not is_slower(latency(1.19), spread)


def test_a_difference_that_runs_have_among_themselves_is_no_loss() -> None:
    memory, spread = Traffic(100, 150, 50), Latency(1.0, 1.2, 1.5, 10)
    found = {x.label: x for x in savings(Saving(2, 3), memory, memory, latency(1.1), spread)}
    assert found["time"].ratio == "1.10x slower" and found["time"].note.startswith("runs vary")
    assert not found["kernels"].ratio and not found["memory"].ratio and "DRAM" not in found
    found = {x.label: x for x in savings(Saving(2, 3), memory, memory, latency(1.3), spread)}
    assert "vary" not in found["time"].note and found["memory"].ratio == "1.50x more"
    found = {x.label: x for x in savings(Saving(2, 2), memory, memory, latency(0.9), spread)}
    assert "vary" not in found["time"].note


@pytest.mark.parametrize("name", ZOO)
def test_before_is_what_a_run_without_fusion_launches(name: str) -> None:
    """The report predicts the other plan without its weights and its code."""
    model = open_model(build(name, **SMALL.get(name, {})))
    dims = model.bind({})
    fused = fuser.compile(model, device="cpu", dims=dims)
    alone = fuser.compile(model, device="cpu", dims=dims, fusion=False)
    told, run = fused.report(), alone.report()
    assert told.kernels == Saving(alone.launches, fused.launches)
    assert told.boundary.before == run.boundary.after == run.boundary.before
    assert told.dram.before == run.dram.after
    for saved in (told.boundary, told.dram, told.dram_cold, run.boundary, run.dram):
        assert saved.floor <= min(saved.before, saved.after)
    outlined = Alternative.unfused(model.graph(dims), host_target(), Options()).planned()
    figures = launch_figures(outlined).launches
    assert [(one.boundary, one.dram, one.flops) for one in figures] == [
        (one.boundary, one.dram, one.flops) for one in run.launches
    ]


def test_constants_of_many_axes() -> None:
    shape = (*(1,) * 40, 300, 50)
    weights = (np.ones(shape) * np.arange(50)).astype(np.float32)
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[300, 50] x) => (float y) { y = Add(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    report = fuser.compile(model, device="cpu").report()
    assert report.kernels == Saving(1, 1) and report.boundary.before == 3 * 4 * 300 * 50


def small() -> Plan:
    return fuser.compile(build("mlp"), device="cpu", dims={"batch": 2})


def test_the_unfused_plan_is_run_beside_the_other() -> None:
    plan = small()
    report = plan.report()
    feeds = plan.random_feeds(0)

    def alone() -> Plan:
        return fuser.compile(build("mlp"), device="cpu", dims={"batch": 2}, fusion=False)

    measure(report, plan, feeds, 3, unfused=alone, kernels="both")
    assert report.unfused is not None and report.unfused.latency_ms is not None
    assert report.latency_ms is not None and report.latency_ms.iterations == 3
    assert len(report.unfused.launches) == report.kernels.before == alone().launches
    assert all(one.nodes and one.time_us >= 0 for one in report.unfused.launches)
    table = report.to_dict()["unfused"]
    assert table["note"] == "" and len(table["launches"]) == report.kernels.before
    assert [line.label for line in report.savings()][-1] == "time"


def test_a_plan_that_is_not_made_is_said() -> None:
    def never() -> Plan:
        raise AssertionError

    def broken() -> Plan:
        fuser.compile(onnx.ModelProto(), device="cpu")
        raise AssertionError

    plan = small()
    feeds = {name: np.asarray(array) for name, array in plan.random_feeds(0).items()}
    slow = plan.report()
    slow.compile_s = MAX_COMPILE_S + 1
    measure(slow, plan, feeds, 2, unfused=never)
    failed = plan.report()
    failed.compile_s = 0.0
    measure(failed, plan, feeds, 2, unfused=broken)
    for report, words in ((slow, "is predicted"), (failed, "does not compile: ")):
        assert report.unfused is not None and words in report.unfused.note
        assert report.latency_ms is not None and report.unfused.latency_ms is None
        assert "time" not in [line.label for line in report.savings()]
