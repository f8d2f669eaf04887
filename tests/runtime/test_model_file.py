"""Plans whose weights stay in the model's file: `fuser compile --weights reference`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.cli.main import run
from fuser.errors import InvalidModelError, UsageError
from models import TINY, build, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With two weights that kernels read as they are, and small ones."""
    path = tmp_path / "models" / "mlp.onnx"
    path.parent.mkdir()
    save(build("mlp", inputs=192, hidden=160), path)
    return path


def compiled(model: Path, plan: Path, *options: str) -> Path:
    command = ["compile", str(model), "-o", str(plan), "--dim", "batch=3", "--device", "cpu"]
    assert run([*command, *options]) == 0
    return plan


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((3, 192), np.float32)}


def test_equal_bits_from_a_smaller_file(model: Path, tmp_path: Path) -> None:
    held = compiled(model, tmp_path / "held.plan")
    away = compiled(model, tmp_path / "away.plan", "--weights", "reference")
    assert away.stat().st_size < held.stat().st_size / 2
    want = fuser.compile(model, device="cpu", dims={"batch": 3}).run(feeds())["y"]
    for file in (held, away):
        assert fuser.Plan.load(file).run(feeds())["y"].tobytes() == want.tobytes()
    assert fuser.load(away).run(feeds())["y"].tobytes() == want.tobytes()
    # Saved again it has all.
    fuser.Plan.load(away).save(tmp_path / "again.plan")
    os.remove(model)
    again = fuser.Plan.load(tmp_path / "again.plan").run(feeds())["y"]
    assert again.tobytes() == want.tobytes()


def test_where_the_model_is(model: Path, tmp_path: Path) -> None:
    """Where it was, seen from the plan; else beside it; else where the caller says."""
    plan = compiled(model, tmp_path / "p.plan", "--weights", "reference")
    want = fuser.Plan.load(plan).run(feeds())["y"].tobytes()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    os.rename(plan, moved / "p.plan")
    os.rename(model.parent, moved / "models")
    assert fuser.Plan.load(moved / "p.plan").run(feeds())["y"].tobytes() == want
    os.rename(moved / "models", moved / "kept")
    with pytest.raises(UsageError, match=r"in the model mlp.onnx, which is not at .*weights="):
        fuser.Plan.load(moved / "p.plan")
    kept = moved / "kept" / "mlp.onnx"
    given = fuser.Plan.load(moved / "p.plan", weights=kept)
    assert given.run(feeds())["y"].tobytes() == want
    assert run(["run", str(moved / "p.plan"), "--iterations", "1"]) == 2
    options = ["--iterations", "1", "--weights", str(kept)]
    assert run(["run", str(moved / "p.plan"), *options]) == 0
    os.rename(kept, moved / "mlp.onnx")
    assert fuser.Plan.load(moved / "p.plan").run(feeds())["y"].tobytes() == want


def test_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    plan = compiled(model, tmp_path / "p.plan", "--weights", "reference")
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(InvalidModelError, match=r"another SHA-256.*compile this one again"):
        fuser.Plan.load(plan)
    model.write_bytes(data + b"\0")
    with pytest.raises(InvalidModelError, match=r"has \d+ bytes, and that had \d+"):
        fuser.Plan.load(plan)
    os.remove(model)
    model.mkdir()
    with pytest.raises(UsageError, match="put it beside the plan"):
        fuser.Plan.load(plan)


def test_several_targets(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its views; a listing needs no model."""
    targets = ("--target", "cpu-avx2,sm_80,cpu-avx512", "--weights", "reference")
    command = ["compile", str(model), "-o", str(tmp_path / "p"), "--dim", "batch=3", *targets]
    assert run(command) == 0
    assert "mlp.onnx" in capsys.readouterr().out
    plan = fuser.Plan.load(tmp_path / "p", device="cpu")
    want = fuser.compile(model, device="cpu", dims={"batch": 3}).run(feeds())["y"]
    np.testing.assert_allclose(plan.run(feeds())["y"], want, 1e-4, 1e-5)
    held = sum(array.nbytes for array in plan.program.constants)
    os.remove(model)
    assert run(["inspect", str(tmp_path / "p"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["targets"]) == 3 and 0.9 * held < found["constants_bytes"] < 1.1 * held


def test_models_without_such_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(build("mlp", **TINY["mlp"]), tmp_path / "small.onnx")
    command = ["compile", str(tmp_path / "small.onnx"), "-o", str(tmp_path / "p")]
    assert run([*command, "--weights", "reference"]) == 2
    assert "no weights of" in capsys.readouterr().err
    assert run([*command, "--weights", "reference", "--emit", "object"]) == 2
    assert run(["run", str(tmp_path / "small.onnx"), "--weights", "x"]) == 2
