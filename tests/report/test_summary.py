"""`fuser report MODEL`: what fusion saved first, as `fuser run` says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuser.cli.main import run
from fuser.report.record import Record
from fuser.report.summary import overview
from fuser.runtime.savings import ADVICE
from models import build, save


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report of a small model, and times that a machine without other work might give."""
    folder = tmp_path_factory.mktemp("report")
    path, file = folder / "mlp.onnx", folder / "report.json"
    save(build("mlp"), path)
    assert (
        run(["run", str(path), "--device", "cpu", "--iterations", "1", "--report", str(file)]) == 0
    )
    found: dict[str, Any] = json.loads(file.read_text())
    ms = {"median": 0.05, "p90": 0.05, "p99": 0.05, "iterations": 10}
    found["latency_ms"], found["unfused"]["latency_ms"] = ms, ms | {"median": 0.1}
    for one in found["launches"]:
        one["time_us"], one["share"] = 15.0, 1 / 3
    found["profile"] = {"iterations": 10, "kernels_us": 45.0, "device_us": None, "counters": None,
                        "missing": None}  # fmt: skip
    return found


def test_savings_time_verdicts_kernels(data: dict[str, Any], tmp_path: Path) -> None:
    record = Record(data)
    text = " ".join(overview(record).split())
    saved = [f"{one.label} {one}" for one in record.savings]
    order = [
        record.title, *saved, "peak memory", "a run of 50.0 µs: contraction 45.0 µs",
        *(f"{one.own}, /layers" for one in record.launches), "kernel time share",
        "kernels together 45.0 µs, in the median of 10 runs",
    ]  # fmt: skip
    places = [text.find(" ".join(words.split())) for words in order]
    assert -1 not in places and places == sorted(places), (order, text)
    assert text.count(": 15.0 µs (33.3 %), bound by") == len(record.launches) == 3
    assert "2.00x faster" in text and ADVICE not in text


def test_a_plan_that_is_slower_and_one_that_never_ran(data: dict[str, Any]) -> None:
    slow = data | {
        "unfused": data["unfused"]
        | {"latency_ms": data["latency_ms"] | {"median": 0.02, "p90": 0.02}}
    }
    assert " ".join(ADVICE.split()) in " ".join(overview(Record(slow)).split())
    launches = [one | {"time_us": None, "share": None} for one in data["launches"]]
    rest = {"latency_ms": None, "profile": None, "launches": launches}
    note = {"latency_ms": None, "launches": [], "note": "why not"}
    text = overview(Record(data | rest | {"unfused": note}))
    assert "why not" in text and "nothing was measured" in text and "a run of" not in text


def test_a_kernel_says_its_algorithm(data: dict[str, Any]) -> None:
    first, *rest = data["launches"]
    assert first["algorithm"] == ""
    record = Record(data | {"launches": [first | {"algorithm": "split k 4"}, *rest]})
    assert record.launches[0].algorithm == "split k 4"
    text = overview(record)
    assert f"{record.launches[0].own}, split k 4 " in text and text.count("split k 4") == 2, (
        "verdict and row"
    )
    older = {key: value for key, value in first.items() if key != "algorithm"}
    assert Record(data | {"launches": [older]}).launches[0].algorithm == ""
