"""The command line in this process, and models for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuser.cli.main import run
from fuser.report import progress
from models import TINY, build, save
from tests.cli.command import Fuser


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes every step slow, and slow steps are named on stderr."""
    monkeypatch.setattr(progress, "DELAY", 600.0)


@pytest.fixture
def fuser(capfd: pytest.CaptureFixture[str]) -> Fuser:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x: float32 [batch, 24] -> [batch, 10]."""
    path = tmp_path_factory.mktemp("models") / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), path)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    save(build("bert", **{**TINY["bert"], "layers": 1}), path)
    return path
