"""What the scripts rely on: entry points of a source tree that is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import fuser

ROOT = Path(__file__).resolve().parent.parent


def test_distribution_info_of_a_source_tree(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "distribution_info.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    (found,) = Distribution.discover(name="fuser", path=[str(tmp_path)])
    (backend,) = found.entry_points.select(group="torch_dynamo_backends")
    assert (backend.name, backend.value) == ("fuser", "fuser.frontends.torch.backend:backend")
    (command,) = found.entry_points.select(group="console_scripts")
    assert command.load() is not None
    assert found.version == fuser.__version__
