"""A plan that was saved has the report of its compile."""

from __future__ import annotations

from pathlib import Path

import onnx

import fuser


def test_a_loaded_plan_has_its_report(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> '
        "small (float[300, 16] t, int64[7] i) => (float[7, 16] y)"
        " { g = Gather <axis=0> (t, i)  y = Relu(g) }"
    )
    plan = fuser.compile(model, device="cpu", threads=1)
    plan.save(tmp_path / "plan")
    report = plan.report().to_dict()
    rows = 7 * 16 * 4
    assert report["boundary_bytes"]["after"] == 7 * 8 + 2 * rows
    assert report["boundary_bytes"]["before"] == 7 * 8 + 4 * rows
    assert fuser.Plan.load(tmp_path / "plan", threads=1).report().to_dict() == report
