"""A report is worked out when somebody asks for it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser.pipeline import reporting
from fuser.pipeline.outline import KEPT_BYTES
from fuser.pipeline.reporting import Reporting
from fuser.report import build as build_report
from fuser.runtime.deferred import Deferred
from models import build


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return build("mlp", inputs=256, hidden=256)  # weights that stay in a file


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each report that is worked out."""
    found: list[int] = []
    real = build_report.report_on

    def counting(*args: Any) -> Any:
        found.append(1)
        return real(*args)

    monkeypatch.setattr(reporting, "report_on", counting)
    return found


def broken(*args: Any) -> Any:
    raise KeyError("of the report")


def test_it_is_worked_out_once_and_late(model: onnx.ModelProto, asked: list[int]) -> None:
    plan = fuser.compile(model, device="cpu", dims={"batch": 4})
    plan.run({"x": np.ones((4, 256), np.float32)})
    assert not asked
    first, again = plan.report(), plan.report()
    assert asked == [1] and first.boundary == again.boundary
    assert first.kernels.after == plan.launches and first.dims == {"batch": 4}
    assert first.boundary.after > 0 and first.bytes.floor > 0


def _is_small(array: np.ndarray, most: int) -> bool:
    """Whether all elements lie in few bytes of memory."""
    spans = zip(array.shape, array.strides, strict=True)
    return sum((n - 1) * abs(step) for n, step in spans) + array.itemsize <= max(most, 8)


def test_weights_are_not_kept_for_it(model: onnx.ModelProto) -> None:
    plan = fuser.compile(model, device="cpu", dims={"batch": 4})
    report = plan._reported
    assert isinstance(report, Deferred) and report._make is not None
    cells = [cell.cell_contents for cell in report._make.__closure__ or ()]
    (kept,) = (cell for cell in cells if isinstance(cell, Reporting))
    assert kept.unfused is not None
    graphs = (kept.fused.cut.graph, 0), (kept.unfused.graph, KEPT_BYTES)
    for nodes, most in ((graph.nodes, most) for graph, most in graphs):
        arrays = [node.attrs["value"] for node in nodes if node.op == "constant"]
        assert arrays and all(_is_small(a, most) for a in arrays)
    plan.report()
    assert report._make is None


def test_its_fault_fails_no_compile(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("FUSER_CACHE_DIR", str(tmp_path / "cache"))
    feeds = {"x": np.ones((4, 256), np.float32)}
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "report_on", broken)
        plans = [fuser.compile(m, device="cpu", dims={"batch": 4}) for m in (model, path)]
        for plan in plans:
            plan.run(feeds)
            with pytest.raises(KeyError, match="of the report"):
                plan.report()
        with pytest.raises(KeyError):
            plans[0].save(tmp_path / "plan")
    assert "is not stored" in caplog.text
    assert plans[0].report().kernels.after == plans[0].launches  # asked again, it is worked out


def test_saved_plans_have_it(model: onnx.ModelProto, tmp_path: Path) -> None:
    plan = fuser.compile(model, device="cpu", dims={"batch": 4})
    plan.save(tmp_path / "plan")
    loaded = fuser.Plan.load(tmp_path / "plan")
    assert loaded.report().boundary == plan.report().boundary
    assert copy.copy(plan) is plan


def test_open_sizes(model: onnx.ModelProto, asked: list[int]) -> None:
    plan = fuser.compile(model, device="cpu", dynamic=True)
    feeds = {"x": np.ones((40, 256), np.float32)}
    plan.run(feeds)
    assert not asked
    report = plan.report(feeds)
    assert asked == [1] and report.dims == {"batch": 40} and report.boundary.after > 0
