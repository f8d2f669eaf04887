"""`fuser bench`: the loop that times engines in turns, and the command."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.cli.bench_models import Onnx
from fuser.cli.main import run
from fuser.report import bench
from fuser.report.bench import Bench, Case, Effort, Engine, Measured, Row, Thresholds
from fuser.report.bench_peers import AbsentError, Request, open_peer
from fuser.report.bench_table import CSV_FIELDS
from fuser.report.compare import compare
from fuser.runtime import plan as plan_module
from models import TINY, build, save

Command = Callable[..., tuple[int, str, str]]
FAST = ("--warmup", "1", "--iterations", "3", "--duration", "0", "--threads", "1")


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `fuser bench` in this process, on the CPU: (exit code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["bench", *map(str, arguments), "--device", "cpu"])
        return code, *capfd.readouterr()

    return call


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    save(build("bert", **{**TINY["bert"], "layers": 1}), path)
    return path


# The loop -----------------------------------------------------------------------------------------


class Hands:
    """A clock that only calls move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(name: str, *calls: Callable[[], Any]) -> Engine:
    return Engine(name, "1", "nowhere", calls, lambda results: {"y": results})


def test_every_number_is_of_the_timed_runs_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    clock, log = Hands(), []
    lengths = {"a": itertools.count(1), "b": itertools.repeat(7)}

    def call(name: str) -> Callable[[], None]:
        def work() -> None:
            log.append(name)
            clock.now += next(lengths[name])

        return work

    effort = Effort(warmup=2, iterations=4, duration_s=0)
    a, b = bench.measure([engine("a", call("a")), engine("b", call("b"))], effort, clock)
    assert "".join(log) == "aabb" + "aabb" * 4  # warm-up; then turns: one run to wake, one timed
    # a's calls last 1, 2, 3, ... seconds: 1, 2 warm up, 3, 5, 7, 9 wake, 4, 6, 8, 10 are timed
    times = np.array([4, 6, 8, 10]) * 1e3
    found = a.latency_ms
    assert (found.min, found.mean, found.p50, found.max) == (4e3, 7e3, 7e3, 1e4)
    assert [found.p90, found.p95, found.p99] == list(np.percentile(times, [90, 95, 99]))
    assert (a.runs, a.throughput) == (4, 4 / 28)
    assert (b.runs, b.latency_ms.p99, b.throughput) == (4, 7e3, 1 / 7)


def test_runs_go_on_until_both_limits_are_reached() -> None:
    def runs(iterations: int, seconds: float) -> int:
        clock = Hands()

        def work() -> None:
            clock.now += 1

        effort = Effort(0, iterations, seconds)
        return bench.measure([engine("a", work)], effort, clock)[0].runs

    assert runs(10, 0) == 10
    assert runs(10, 40) == 40
    assert runs(1, 3) == 3
    assert runs(12, 10) == 15  # in five turns


def test_callers_run_at_once() -> None:
    together = threading.Barrier(3)

    def work() -> None:
        together.wait(timeout=60)

    found = bench.measure([engine("a", work, work, work)], Effort(0, 4, 0))[0]
    assert found.runs == 12


@pytest.mark.parametrize("streams", [1, 3])
def test_an_engine_that_fails_ends_the_measurement(streams: int) -> None:
    count = itertools.count()

    def work() -> None:
        if next(count) == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.measure([engine("a", *[work] * streams)], Effort(0, 100, 0))


def test_a_turn_agrees_with_a_profile(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both time the same call of the same executor, once: a clock moves by what a run is said to
    take, and by nothing else."""
    plan = fuser.compile(bert, device="cpu", dims={"batch": 8}, threads=1)
    feeds = plan.random_feeds()
    own = engine("fuser", lambda: plan.run(feeds))
    clock, run = Hands(), plan.executor.run

    def lasting(arrays: Any) -> Any:
        found = run(arrays)
        clock.now += 0.25
        return found

    monkeypatch.setattr(plan.executor, "run", lasting)
    monkeypatch.setattr(plan_module, "time", SimpleNamespace(perf_counter=clock))
    for _ in range(3):
        measured = bench.measure([own], Effort(0, 1, 0), clock)[0]
        assert measured.latency_ms.min == measured.latency_ms.max == 250
        assert plan.profile(feeds, iterations=2, warmup=1).median == 250


# Results ------------------------------------------------------------------------------------------


def bench_of(speedup: float = 2.0, off: float = 0.0, limit: float = 1e-5) -> Bench:
    measured = Measured(5, bench.percentiles([0.001, 0.002, 0.004]), 100.0)
    result = compare({"y": np.ones(4)}, {"y": np.full(4, 1 + off)}, tolerance=limit, name="peer")
    rows = (
        Row("fuser", "1", "cpu", measured),
        Row("peer", "2", "cpu", measured, speedup, 1.5, result),
    )
    case = Case({"batch": 4}, 4, 3, 0.5, rows, {"other": "not installed"})
    return Bench("m.onnx", "cpu", "model", 2, 1, Effort(), (case,))


def test_thresholds_name_what_is_missed() -> None:
    assert bench_of().failures(Thresholds()) == []
    assert bench_of().failures(Thresholds(2.0, 2.0)) == []  # reached, to the digit
    (line,) = bench_of().failures(Thresholds(max_latency_ms=1.9))
    assert "2.000 ms" in line and "1.9" in line and "batch 4" in line
    (line,) = bench_of(speedup=0.9).failures(Thresholds(min_speedup=1))
    assert "0.900" in line and "peer" in line
    (line,) = bench_of(off=1e-3).failures(Thresholds())
    assert "peer" in line and "y" in line


def test_a_threshold_that_nothing_was_measured_for_is_missed() -> None:
    found = bench_of()
    alone = replace(found, cases=(replace(found.cases[0], rows=found.cases[0].rows[:1]),))
    assert len(alone.failures(Thresholds(min_speedup=1, max_error=1))) == 2
    assert alone.failures(Thresholds()) == []


# The command --------------------------------------------------------------------------------------


def test_json_has_a_record_of_each_engine_in_each_case(
    command: Command, bert: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    code, out, err = command(
        bert, *FAST, "--against", "onnxruntime,torch", "--batch", "1,3", "--dim", "sequence=8",
        "--streams", "2", "--json", "--csv", file,
    )  # fmt: skip
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == [
        "schema", "model", "device", "precision", "threads", "streams", "warmup", "iterations",
        "duration_s", "rounds", "cases", "failures",
    ]  # fmt: skip
    assert (found["threads"], found["streams"], found["rounds"]) == (1, 2, 3)
    assert found["failures"] == []
    assert [case["dims"] for case in found["cases"]] == [
        {"batch": 1, "sequence": 8}, {"batch": 3, "sequence": 8},
    ]  # fmt: skip
    for case, size in zip(found["cases"], (1, 3), strict=True):
        assert list(case) == [
            "dims", "batch", "kernels", "compile_s", "device_ms", "engines", "absent",
        ]  # fmt: skip
        assert case["batch"] == size and case["kernels"] > 1
        assert case["absent"] == {"torch": "torch runs exported programs (.pt2), not ONNX files"}
        own, peer = case["engines"]
        for row in (own, peer):
            assert list(row) == [
                "name", "version", "device", "runs", "latency_ms", "throughput", "items_per_s",
                "speedup", "throughput_gain", "compare",
            ]  # fmt: skip
            times = row["latency_ms"]
            order = ("min", "p50", "p90", "p95", "p99", "max")
            assert list(times) == ["min", "mean", *order[1:]]
            assert sorted(times[key] for key in order) == [times[key] for key in order]
            assert row["runs"] == 6
            assert row["items_per_s"] == row["throughput"] * size
        assert own["name"] == "fuser" and own["speedup"] is None and own["compare"] is None
        assert peer["name"] == "onnxruntime"
        assert peer["speedup"] == peer["latency_ms"]["p50"] / own["latency_ms"]["p50"]
        assert peer["throughput_gain"] == own["throughput"] / peer["throughput"]
        assert peer["compare"]["ok"] and 0 < peer["compare"]["max_rel"] < 2e-5
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == CSV_FIELDS
    assert [(row["batch"], row["engine"]) for row in rows] == [
        (size, name) for size in "13" for name in ("fuser", "onnxruntime", "torch")
    ]
    assert float(rows[4]["p95_ms"]) == found["cases"][1]["engines"][1]["latency_ms"]["p95"]
    assert rows[5]["absent"].startswith("torch runs") and rows[5]["p50_ms"] == ""


def test_thresholds_are_the_exit_code(command: Command, bert: Path) -> None:
    small = (bert, *FAST, "--dim", "sequence=8")
    code, out, err = command(*small, "--max-latency-ms", "1e-6")
    assert code == 1 and " p50 " in out and " µs " in out and "failed: median latency" in err
    assert command(*small, "--max-latency-ms", "1e6")[0] == 0
    code, out, _ = command(*small, "--against", "onnxruntime", "--max-error", "1e-30", "--json")
    assert code == 1 and "relative error" in json.loads(out)["failures"][0]
    code, _, err = command(*small, "--against", "torch", "--min-speedup", "0.001")
    assert code == 1 and "no peer was measured" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--against", "tensorrt"), "tensorrt"),
        (("--against", "onnxruntime:tpu"), "tpu"),
        (("--min-speedup", "1"), "--against"),
        (("--batch", "1,x"), "whole numbers"),
        (("--batch", "0"), "whole numbers"),
        (("--batch", "rows=2"), "rows"),
        (("--batch", "2", "--dim", "batch=3"), "both give 'batch'"),
        (("--batch", "2", "-i", "x.npz"), "-i"),
    ],
)
def test_usage(command: Command, bert: Path, arguments: Sequence[str], words: str) -> None:
    code, out, err = command(bert, *FAST, *arguments)
    assert (code, out) == (2, "") and words in err.splitlines()[-1]


def test_which_dim_is_the_batch_must_be_said_where_there_are_several(
    command: Command, tmp_path: Path
) -> None:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", ["a", 4]), ("y", ["b", 4]), ("z", ["c", 4]))]  # fmt: skip
    nodes = [helper.make_node("Concat", ["x", "y"], ["z"], axis=0)]
    graph = helper.make_graph(nodes, "two", ends[:2], ends[2:])
    path = tmp_path / "two.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    code, _, err = command(path, *FAST, "--batch", "2")
    assert code == 2 and "a, b" in err
    code, out, _ = command(path, *FAST, "--batch", "b=2,3", "--json")
    assert code == 0
    assert [case["dims"]["b"] for case in json.loads(out)["cases"]] == [2, 3]


def test_time_on_the_device_stands_beside_that_of_a_run(
    command: Command, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Onnx.open

    def on_a_gpu(self: Onnx, dims: Any) -> Any:
        return replace(opened(self, dims), on_device=lambda: 0.25)

    small = (bert, *FAST, "--dim", "sequence=8")
    assert json.loads(command(*small, "--json")[1])["cases"][0]["device_ms"] is None
    monkeypatch.setattr(Onnx, "open", on_a_gpu)
    assert json.loads(command(*small, "--json")[1])["cases"][0]["device_ms"] == 0.25
    assert "250 µs on the device" in " ".join(command(*small)[1].split())


# Peers --------------------------------------------------------------------------------------------


def asked(bert: Path, **changes: Any) -> Request:
    feeds = fuser.compile(bert, device="cpu", dims={"sequence": 8}).random_feeds()
    dims = {"batch": 1, "sequence": 8}
    return replace(Request(str(bert), feeds, ["logits"], dims, 1, 1, "cpu"), **changes)


def test_what_is_not_there_says_why(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    with pytest.raises(AbsentError, match="CUDAExecutionProvider"):
        open_peer("onnxruntime:cuda", asked(bert))
    with pytest.raises(AbsentError, match="refused this model: "):
        open_peer("onnxruntime", asked(bert, outputs=["nothing of the kind"]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("onnxruntime", "openvino"):
        with pytest.raises(AbsentError, match="not installed"):
            open_peer(name, asked(bert))


def test_openvino_takes_part_where_it_is_installed(command: Command, bert: Path) -> None:
    pytest.importorskip("openvino")
    code, out, err = command(
        bert, *FAST, "--against", "openvino", "--dim", "sequence=8", "--streams", "2", "--json"
    )
    assert code == 0, err
    _, peer = json.loads(out)["cases"][0]["engines"]
    assert peer["name"] == "openvino" and 0 < peer["compare"]["max_rel"] < 2e-5


@pytest.mark.export
def test_an_exported_program_runs_beside_pytorch(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    torch = pytest.importorskip("torch")
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    module = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.GELU()).eval()
    path = tmp_path / "module.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(4, 24),)), path)
    code, out, err = command(path, *FAST, "--against", "torch,onnxruntime", "--json")
    assert code == 0, err
    (case,) = json.loads(out)["cases"]
    own, peer = case["engines"]
    assert (own["name"], peer["name"], peer["device"]) == ("fuser", "torch", "cpu")
    assert peer["compare"]["ok"] and case["batch"] is None and own["items_per_s"] is None
    assert case["absent"] == {"onnxruntime": "it runs ONNX files, not exported programs"}
    code, _, err = command(path, *FAST, "--batch", "2")
    assert code == 2 and "exported with" in err
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"not a program")
    assert command(broken, *FAST)[0] == 3
    assert command(tmp_path / "none.pt2", *FAST)[0] == 2


@pytest.mark.cuda
def test_a_gpu_is_timed_by_its_own_clock_too(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [str(bert), *FAST, "--device", "cuda", "--against", "onnxruntime:cpu", "--json"]
    assert run(["bench", *arguments]) == 0
    (case,) = json.loads(capfd.readouterr().out)["cases"]
    own, peer = case["engines"]
    assert 0 < case["device_ms"] < own["latency_ms"]["max"]
    assert (peer["device"], peer["compare"]["ok"]) == ("CPUExecutionProvider", True)
