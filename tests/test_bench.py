"""`fuser bench`: the loop that times engines in turns, and the command."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fuser
from fuser.cli.bench_models import Onnx
from fuser.cli.main import run
from fuser.report import bench, beside
from fuser.report.bench import Bench, Case, Effort, Engine, Measured, Ratio, Row, Thresholds
from fuser.report.bench_chart import chart_of
from fuser.report.bench_load import Load, busy_seconds
from fuser.report.bench_peers import AbsentError, Request, open_peer
from fuser.report.bench_table import CSV_FIELDS, table_of
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
    assert a.turns_ms == (4e3, 6e3, 8e3, 1e4) and b.turns_ms == (7e3,) * 4


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


# Disturbed runs -----------------------------------------------------------------------------------


def timed(*lengths: float) -> tuple[Engine, Hands]:
    """An engine whose calls take these seconds, over and over, and its clock."""
    clock, left = Hands(), itertools.cycle(lengths)

    def work() -> None:
        clock.now += next(left)

    return engine("a", work), clock


def quiet() -> Load:
    return Load(0.0, 0.0)


def test_a_spread_is_told_from_ten_runs_on() -> None:
    steady, clock = timed(1.0)
    (found,) = bench.measure([steady], Effort(0, 10, 0), clock)
    assert (found.spread, found.drift) == (1.0, 1.0)
    one, clock = timed(1.0, 2.0)  # a run that wakes, one that counts and so on: 2, 2, 1, 1, 2, ...
    (found,) = bench.measure([one], Effort(0, 20, 0), clock)
    assert found.spread == found.latency_ms.p90 / found.latency_ms.p50 > 1.25
    (found,) = bench.measure([one], Effort(0, 9, 0), clock)  # ten of them, in five turns
    assert found.runs == 10 and found.spread is not None
    (found,) = bench.measure([one], Effort(0, 5, 0), clock)
    assert (found.runs, found.spread, found.drift) == (5, None, None)


def test_one_slow_turn_of_many_is_a_drift_and_no_spread() -> None:
    measured = Measured(100, bench.percentiles([1.0] * 95 + [1.5] * 5), 1.0, (1e3, 1e3, 1.5e3))
    assert (measured.spread, measured.drift) == (1.0, 1.5)
    (line,) = bench_with(measured).warnings()
    assert line.startswith("fuser at batch 4: ") and "1.50 times the fastest" in line


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([1.0] * 8 + [1.25] * 2, None),
        ([1.0] * 8 + [1.26] * 2, "p90 is 1.26 times p50"),
        ([1.0] * 8 + [2.0] * 2, "p90 is 2.00 times p50"),
        ([1.0] * 9, None),
    ],
)
def test_a_disturbed_run_warns(times: list[float], said: str | None) -> None:
    found = bench_with(Measured(len(times), bench.percentiles(times), 1.0))
    assert found.to_dict()["warnings"] == found.warnings()
    assert [said in line for line in found.warnings()] == ([True] if said else [])  # type: ignore[operator]


def bench_with(own: Measured) -> Bench:
    found = bench_of()
    row = replace(found.cases[0].rows[0], measured=own)
    case = replace(found.cases[0], rows=(row, *found.cases[0].rows[1:]))
    return replace(found, cases=(case,))


def test_measuring_goes_on_until_it_is_stable() -> None:
    """Ten runs in five turns, each turn with one more that wakes: 15 calls a measurement."""
    for bad in (0, 1, 3):
        one, clock = timed(*[1.0, 1.0, 2.0] * 5 * bad, *[3.0] * 15)
        found = bench.measure_until_stable(
            [one], Effort(0, 10, 0), busy=1, attempts=5, clock=clock, load=quiet
        )
        assert (found.attempts, found.stable) == (bad + 1, True)
        assert found.engines[0].latency_ms.max == 3e3


def test_measuring_ends_and_keeps_the_least_disturbed() -> None:
    one, clock = timed(*[1.0, 1.0, 4.0] * 5, *[1.0, 1.0, 2.0] * 5, *[1.0, 1.0, 3.0] * 5)
    effort = Effort(0, 10, 0)
    found = bench.measure_until_stable([one], effort, busy=1, attempts=3, clock=clock, load=quiet)
    assert (found.attempts, found.stable) == (3, False)
    assert found.engines[0].latency_ms.max == 2e3
    assert bench.measure_until_stable([one], effort, busy=1, clock=clock, load=quiet).attempts == 1


def test_cores_that_others_keep_busy_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "cores", lambda: 4)

    def found(others: float, busy: int) -> bench.Measurement:
        one, clock = timed(1.0)
        readings = iter([Load(0.0, 5.0), Load(10.0, 5.0 + 10 * others)])
        return bench.measure_until_stable(
            [one], Effort(0, 10, 0), busy=busy, clock=clock, load=lambda: next(readings)
        )

    assert found(1.0, 4).crowded and not found(1.0, 4).stable
    assert found(1.0, 4).others == 1.0
    assert not found(1.0, 3).crowded  # there is a core for it
    assert found(1.5, 3).crowded
    assert not found(0.2, 4).crowded
    assert found(0.5, 9).crowded  # more threads than cores: none is free
    case = replace(bench_of().cases[0], others=1.0, crowded=True)
    (line,) = replace(bench_of(), cases=(case,)).warnings()
    assert "other processes kept 1.0 cores busy at batch 4" in line


def test_what_cores_have_done_is_read_of_the_cores_allowed() -> None:
    text = (
        "cpu  9 9 9 9 9 9 9 9 0 0\n"
        "cpu0 100 20 30 5000 600 1 2 3 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 7 7\n"
    )
    tick = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(text, {0}) == 156 / tick
    assert busy_seconds(text, {0, 1}) == 162 / tick
    assert busy_seconds(text, {0, 2}) is None
    assert busy_seconds("cpu0 0 0 0 0 0 0 0 0\n", {0}) is None
    assert Load(1.0, 2.0).cores_of_others(Load(1.1, 2.1)) is None  # too short for 10 ms steps
    assert Load(1.0, 2.0).cores_of_others(Load(3.0, 5.0)) == 1.5
    assert Load(1.0, 2.0).cores_of_others(Load(3.0, 1.9)) == 0.0


# Results ------------------------------------------------------------------------------------------


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


def bench_of(speedup: float = 2.0, off: float = 0.0, limit: float = 1e-5) -> Bench:
    measured = Measured(5, bench.percentiles([0.001, 0.002, 0.004]), 100.0)
    result = compare({"y": np.ones(4)}, {"y": np.full(4, 1 + off)}, tolerance=limit, name="peer")
    rows = (
        Row("fuser", "1", "cpu", measured, (Ratio("peer", speedup, 1.5),)),
        Row("peer", "2", "cpu", measured, (), result),
    )
    case = Case({"batch": 4}, 4, 3, 0.5, rows, {})
    return Bench("m.onnx", "cpu", "model", 2, 1, Effort(), (case,))


def test_thresholds_name_what_is_missed() -> None:
    assert bench_of().failures(Thresholds()) == []
    assert bench_of().failures(Thresholds(2.0, 2.0)) == []  # reached, to the digit
    (line,) = bench_of().failures(Thresholds(max_latency_ms=1.9))
    assert line == "median latency 2.00 ms at batch 4, above --max-latency-ms 1.9"
    (line,) = bench_of(speedup=0.9).failures(Thresholds(min_speedup=1))
    assert "0.900" in line and "peer" in line
    (line,) = bench_of(off=1e-3).failures(Thresholds())
    assert "peer" in line and "y" in line


def test_a_threshold_that_nothing_was_measured_for_is_missed() -> None:
    found = bench_of()
    alone = replace(found, cases=(replace(found.cases[0], rows=found.cases[0].rows[:1]),))
    assert len(alone.failures(Thresholds(min_speedup=1, max_error=1))) == 2
    assert alone.failures(Thresholds()) == []


def test_an_engine_that_was_not_measured_is_a_failure() -> None:
    found = bench_of()
    case = replace(found.cases[0], absent={"other": "refused this model: no"})
    (line,) = replace(found, cases=(case,)).failures(Thresholds())
    assert line == "other was not measured at batch 4: refused this model: no"


@pytest.mark.parametrize(
    ("speedup", "words", "sentence"),
    [
        (1.324, "1.32x faster", "1.32x faster than peer"),
        (0.868, "0.87x: slower", "0.87x: slower than peer"),
        (1.004, "1.00x: as fast", "1.00x: as fast as peer"),
        (0.996, "1.00x: as fast", "1.00x: as fast as peer"),
        (1.006, "1.01x faster", "1.01x faster than peer"),
        (0.0042, "0.004x: slower", "0.004x: slower than peer"),
        (123.4, "123.40x faster", "123.40x faster than peer"),
    ],
)
def test_a_ratio_says_its_direction(speedup: float, words: str, sentence: str) -> None:
    assert (Ratio("peer", speedup, 1.0).words, Ratio("peer", speedup, 1.0).sentence) == (
        words, sentence,
    )  # fmt: skip


def test_the_ratio_stands_in_the_row_of_fuser_and_80_columns_do() -> None:
    lines = table_of(bench_of(speedup=0.87)).splitlines()
    head, own, peer = lines[-3:]
    assert head.endswith("over peer") and own.endswith("0.87x: slower")
    assert own.split()[:2] == ["4", "fuser"] and "slower" not in peer and "0.87" not in peer
    assert max(map(len, lines)) <= 80
    # digits of a column stand below each other
    assert own.index("2.00 ms") == peer.index("2.00 ms")


def test_the_picture_has_a_bar_and_a_spread_for_each_engine() -> None:
    found = bench_of()
    wide = replace(found.cases[0], dims={"batch": 8, "a <b> & c": 3}, batch=8)
    root = ElementTree.fromstring(chart_of(replace(found, cases=(found.cases[0], wide))))
    ns = "{http://www.w3.org/2000/svg}"
    bars = [x for x in root.iter(f"{ns}rect") if x.get("class") in ("own", "peer")]
    assert [bar.get("class") for bar in bars] == ["own", "peer"] * 2
    # runs of 1, 2 and 4 ms: p50 2, p90 3.6, which is the end of the scale
    scale = 760 - 130 - 210
    assert {bar.get("width") for bar in bars} == {f"{2 / 3.6 * scale:.1f}"}
    marks = [x for x in root.iter(f"{ns}line") if x.get("class") == "spread"]
    assert len(marks) == 3 * len(bars)
    across = marks[0]
    assert [float(across.get(at) or 0) for at in ("x1", "x2")] == pytest.approx(
        [130 + scale / 3.6, 130 + scale], abs=0.05
    )
    texts = [x.text or "" for x in root.iter(f"{ns}text")]
    assert "batch = 4: fuser 2.00x faster than peer" in texts
    assert "batch = 8, a <b> & c = 3: fuser 2.00x faster than peer" in texts
    assert texts.count("2.00 ms, p90 3.60 ms") == 4
    style = root.find(f"{ns}style")
    assert style is not None and "prefers-color-scheme: dark" in (style.text or "")
    sizes = [int(size) for size in re.findall(r"(\d+)px", style.text or "")]
    assert min(sizes) >= 2 and "13px system-ui" in (style.text or "")
    height = float(root.get("height") or 0)
    for text in root.iter(f"{ns}text"):  # nothing is cut off on the right
        if text.get("text-anchor") is None:
            assert float(text.get("x") or 0) + 6.5 * len(text.text or "") < 760
    assert height == 78 + 2 * (30 + 2 * 34 + 40)


# The command --------------------------------------------------------------------------------------


def test_json_has_a_record_of_each_engine_in_each_case(
    command: Command, bert: Path, tmp_path: Path
) -> None:
    file, drawn = tmp_path / "rows.csv", tmp_path / "bars.svg"
    code, out, err = command(
        bert, *FAST, "--against", "onnxruntime,torch", "--batch", "1,3", "--dim", "sequence=8",
        "--streams", "2", "--json", "--csv", file, "--svg", drawn,
    )  # fmt: skip
    why = "torch runs exported programs (.pt2), not ONNX files"
    lines = [f"torch was not measured at batch {size}: {why}" for size in (1, 3)]
    failed = [line for line in err.splitlines() if not line.startswith(("warning: ", "note: "))]
    assert (code, failed) == (1, [f"failed: {line}" for line in lines])
    found = json.loads(out)
    assert list(found) == [
        "schema", "model", "device", "precision", "threads", "streams", "warmup", "iterations",
        "duration_s", "rounds", "cases", "warnings", "failures",
    ]  # fmt: skip
    assert (found["threads"], found["streams"], found["rounds"]) == (1, 2, 3)
    assert found["failures"] == lines
    assert [case["dims"] for case in found["cases"]] == [
        {"batch": 1, "sequence": 8}, {"batch": 3, "sequence": 8},
    ]  # fmt: skip
    for case, size in zip(found["cases"], (1, 3), strict=True):
        assert list(case) == [
            "dims", "batch", "kernels", "compile_s", "device_ms", "others", "attempts", "engines",
            "absent", "note",
        ]  # fmt: skip
        assert case["note"] == "" and case["batch"] == size and case["kernels"] > 1
        assert case["absent"] == {"torch": why} and case["attempts"] == 1
        own, alone, peer = case["engines"]
        for row in (own, alone, peer):
            assert list(row) == [
                "name", "version", "device", "runs", "latency_ms", "turns_ms", "spread", "drift",
                "throughput", "items_per_s", "against", "compare",
            ]  # fmt: skip
            times = row["latency_ms"]
            order = ("min", "p50", "p90", "p95", "p99", "max")
            assert list(times) == ["min", "mean", *order[1:]]
            assert sorted(times[key] for key in order) == [times[key] for key in order]
            assert row["runs"] == 6
            assert row["items_per_s"] == row["throughput"] * size
            assert row["spread"] is None and len(row["turns_ms"]) == 3  # too few runs to tell
        assert own["name"] == "fuser" and own["compare"] is None
        assert (alone["name"], alone["compare"]) == ("fuser, no fusion", None)
        assert peer["name"] == "onnxruntime" and peer["against"] == alone["against"] == {}
        assert list(own["against"]) == ["fuser, no fusion", "onnxruntime"]
        for other in (alone, peer):
            speedup = other["latency_ms"]["p50"] / own["latency_ms"]["p50"]
            gain = own["throughput"] / other["throughput"]
            words = Ratio(other["name"], speedup, gain).words
            assert own["against"][other["name"]] == {
                "speedup": speedup, "throughput_gain": gain, "words": words
            }  # fmt: skip
        assert peer["compare"]["ok"] and 0 < peer["compare"]["max_rel"] < 2e-5
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert tuple(rows[0]) == CSV_FIELDS
    assert [(row["batch"], row["engine"]) for row in rows] == [
        (size, name)
        for size in "13"
        for name in ("fuser", "fuser, no fusion", "onnxruntime", "torch")
    ]
    own, alone, peer, absent = rows[4:]
    assert float(peer["p95_ms"]) == found["cases"][1]["engines"][2]["latency_ms"]["p95"]
    assert absent["absent"].startswith("torch runs") and absent["p50_ms"] == ""
    ratios = found["cases"][1]["engines"][0]["against"]
    assert float(peer["fuser_speedup"]) == ratios["onnxruntime"]["speedup"]
    assert float(alone["fuser_speedup"]) == ratios["fuser, no fusion"]["speedup"]
    assert own["fuser_speedup"] == ""
    assert drawn.read_text().count('class="own"') == 2


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
    ("asked", "package"),
    [
        ("onnxruntime", "pip install onnxruntime"),
        ("onnxruntime:cpu", "pip install onnxruntime"),
        ("onnxruntime:cuda", "pip install onnxruntime-gpu"),
        ("openvino,torch", "pip install openvino torch"),
    ],
)
def test_an_engine_that_is_not_installed_is_an_error(
    command: Command, bert: Path, monkeypatch: pytest.MonkeyPatch, asked: str, package: str
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    peers = ("onnxruntime", "openvino", "torch")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in peers else find(name)
    )
    monkeypatch.setattr(Onnx, "open", lambda *_: pytest.fail("it compiled first"))
    code, out, err = command(bert, *FAST, "--against", asked)
    assert (code, out) == (2, "") and err.rstrip().endswith(package)


def test_a_disturbed_run_is_told_and_measured_again_on_request(
    command: Command, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock moves by 1, or by 2 in a run of each turn of the first measurement: one run for the
    outputs, then five turns of three."""
    clock, opened, count = Hands(), Onnx.open, itertools.count()

    def slow(self: Onnx, dims: Any) -> Any:
        found = opened(self, dims)

        def call() -> Any:
            at = next(count)
            clock.now += 2.0 if at < 16 and at % 3 == 2 else 1.0
            return found.engine.callers[0]()

        return replace(found, engine=replace(found.engine, callers=[call]))

    monkeypatch.setattr(Onnx, "open", slow)
    monkeypatch.setattr(
        bench, "measure_until_stable",
        functools.partial(bench.measure_until_stable, load=quiet, clock=clock),
    )  # fmt: skip
    small = (bert, "--warmup", "0", "--duration", "0", "--threads", "1", "--dim", "sequence=8",
             "--no-measure")  # fmt: skip
    code, out, err = command(*small, "--json")
    assert code == 0 and json.loads(out)["cases"][0]["attempts"] == 1
    assert "warning: fuser at batch 1: runs differ, p90 is 1.33 times p50" in err.splitlines()
    assert "--until-stable" in err.splitlines()[-1]
    count = itertools.count()
    code, out, err = command(*small, "--json", "--until-stable")
    found = json.loads(out)
    assert (code, found["warnings"], found["cases"][0]["attempts"]) == (0, [], 2)
    assert found["cases"][0]["engines"][0]["latency_ms"]["max"] == 1e3 and "warning" not in err


def test_the_plan_without_fusion_takes_its_turns(
    command: Command, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that a run moves by 2, and one without fusion by 3. It is no peer."""
    clock, opened = Hands(), Onnx.open
    called: list[str] = []

    def moved(found: Engine, length: float) -> Engine:
        def call() -> Any:
            called.append(found.name)
            clock.now += length
            return found.callers[0]()

        return replace(found, callers=[call])

    def slow(self: Onnx, dims: Any) -> Any:
        found = opened(self, dims)
        make = found.unfused
        return replace(
            found, engine=moved(found.engine, 2.0), unfused=make and (lambda: moved(make(), 3.0))
        )

    monkeypatch.setattr(Onnx, "open", slow)
    monkeypatch.setattr(
        bench, "measure_until_stable",
        functools.partial(bench.measure_until_stable, load=quiet, clock=clock),
    )  # fmt: skip
    small = (bert, *FAST, "--dim", "sequence=8")
    code, out, err = command(*small)
    assert (code, err) == (0, "")
    head, own, alone = out.splitlines()[-3:]
    assert head.endswith("over no fusion") and own.endswith("1.50x faster")
    assert alone.split()[1:6] == ["fuser,", "no", "fusion", "3.00", "s"]
    assert sum(line.startswith("engine") for line in out.splitlines()) == 1
    turns = [name for name, _ in itertools.groupby(called)][1:]  # after the one for outputs
    assert turns[-6:] == ["fuser", "fuser, no fusion"] * 3
    for words in (("--no-measure",), ("--no-fusion",)):
        found = json.loads(command(*small, *words, "--json")[1])
        assert [row["name"] for row in found["cases"][0]["engines"]] == ["fuser"]
    code, _, err = command(*small, "--against", "onnxruntime", "--min-speedup", "1.6")
    assert "over onnxruntime" in err and "over fuser" not in err


def test_a_large_model_is_not_run_without_fusion(
    command: Command, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "MAX_MEMORY_SHARE", 0.0)
    small = (bert, *FAST, "--dim", "sequence=8")
    code, out, _ = command(*small, "--json")
    (case,) = json.loads(out)["cases"]
    assert code == 0 and len(case["engines"]) == 1
    assert case["note"] == "a second plan would take too much memory"
    assert case["note"] in " ".join(command(*small)[1].split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--against", "tensorrt"), "tensorrt"),
        (("--against", "onnxruntime:tpu"), "tpu"),
        (("--until-stable",), "--iterations 10 or more"),
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
        with pytest.raises(AbsentError, match=f"not installed; pip install {name}"):
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
    assert code == 1 and "failed: onnxruntime was not measured: it runs ONNX files" in err
    (case,) = json.loads(out)["cases"]
    own, alone, peer = case["engines"]
    assert (own["name"], peer["name"], peer["device"]) == ("fuser", "torch", "cpu")
    assert alone["name"] == "fuser, no fusion" and alone["runs"] == own["runs"]
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
    own, _, peer = case["engines"]
    assert 0 < case["device_ms"] < own["latency_ms"]["max"]
    assert (peer["device"], peer["compare"]["ok"]) == ("CPUExecutionProvider", True)
