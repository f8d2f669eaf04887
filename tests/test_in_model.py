"""benchmarks.in_model: other schedules of a model's kernels, in their place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.in_model import Model
from fuser.runtime.program import Launch
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


@dataclass(frozen=True)
class Stand:
    """Of a program, or of a kernel, what is asked for."""

    launches: tuple[Launch, ...] = ()
    workspace_bytes: int = 0


def test_a_kernel_takes_a_place_that_has_its_workspace() -> None:
    """Another's argument more or less would be read from, or left in, memory of nobody."""
    needs: Any = {count: Stand(workspace_bytes=count) for count in (0, 32, 64)}
    arguments: Any = ("x", "y", "workspace")
    shared, plain = Launch(needs[64], arguments), Launch(needs[0], arguments[:2])
    model: Any = Model.__new__(Model)
    model.program = Stand((shared, plain))
    assert model.has_room([0, 1], needs[0]) and model.has_room([0], needs[32])
    assert not model.has_room([0, 1], needs[32])
    assert model.having([0], needs[32]).launches[0].arguments == shared.arguments
    found = model.having([0, 1], needs[0]).launches
    assert [launch.arguments for launch in found] == [plain.arguments] * 2
