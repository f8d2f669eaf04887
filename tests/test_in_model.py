"""benchmarks.in_model: other schedules of a model's kernels, in their place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from models.mlp import mlp
from models.writer import save


def test_it_searches_a_model(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    save(mlp(), path)
    options = [
        "--device",
        "cpu",
        "--threads",
        "1",
        "--dim",
        "batch=64",
        "--most",
        "3",
        "--top",
        "1",
        "--iterations",
        "2",
    ]
    command = [sys.executable, "-m", "benchmarks.in_model", str(path), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    first, *rest = [line for line in run.stdout.splitlines() if line]
    assert first.startswith("mlp.onnx: ") and first.endswith(" ms by the rules")
    assert any(" ms " in line and " us each  block_m=" in line for line in rest)
