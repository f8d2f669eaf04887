"""benchmarks/load.py: what its children do is right, and what a load leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fuser
from benchmarks import load
from models import TINY, build, save


def test_children_give_the_bits_of_a_compile(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = tmp_path / "mlp.onnx"
    save(build("mlp", **TINY["mlp"], batch=3), model)
    work = tmp_path / "work"
    work.mkdir()
    found = load.measure(str(model), 1, 2, work)
    assert set(found) == {"fuser", "onnxruntime", "numpy alone"}
    for times in found.values():
        assert times.wrong == 0
        assert times.cpu[0] > 0 and times.wall[0] > 0


def test_another_bit_is_wrong() -> None:
    want = {"y": np.ones(4, np.float32)}
    near = {"y": np.nextafter(want["y"], np.float32(2))}
    assert load.is_right("fuser", want, want) and not load.is_right("fuser", near, want)
    assert load.is_right("onnxruntime", near, want)
    assert not load.is_right("onnxruntime", {"y": want["y"] * 1.01}, want)


def test_a_load_imports_what_it_needs(tmp_path: Path) -> None:
    """Imports are most of the time of a load."""
    fuser.compile(build("mlp", **TINY["mlp"], batch=3), device="cpu").save(tmp_path / "plan")
    code = f"""
import sys, fuser
fuser.Plan.load({str(tmp_path / "plan")!r}, threads=1)
loaded = {{name for name in sys.modules if name.startswith("fuser.")}}
rooms = {{name.split(".")[1] for name in loaded - {{"fuser.graph", "fuser.graph.units"}}}}
print(len(loaded), " ".join(sorted(rooms)), file=sys.stderr)
late = {{"fuser.runtime.dlpack", "fuser.runtime.device_tensors", "fuser.runtime.plan_report"}}
assert not loaded & late, loaded & late
assert rooms <= {{"backend", "base", "dtypes", "errors", "runtime"}}, rooms
assert not {{"onnx", "llvmlite", "click", "inspect", "asyncio"}} & (
    set(sys.modules) - {before(code="import numpy, ml_dtypes, concurrent.futures.thread")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def before(code: str) -> set[str]:
    """Modules that a process has which runs this."""
    listing = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())
