"""Flipped bits and files cut short, with and without mended checksums: errors, never a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import fuser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels, constants, an output that is a copy; the feeds are beside it."""
    path = tmp_path_factory.mktemp("damage") / "plan"
    numbers = ", ".join(str(i / 64) for i in range(512))
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[5, 64] x) => (float[5, 8] y, float[5, 64] z) {{
            w = Constant <value = float[64, 8] {{{numbers}}}> ()
            p = MatMul (x, w) y = Softmax (p) z = Identity (x)
        }}""")
    fuser.compile(model, device="cpu").save(path)
    np.savez(path.with_suffix(".npz"), x=np.ones((5, 64), np.float32))
    return path


def damaged(plan: Path, flips: int, cuts: int, seed: int) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "tests.runtime.damage", plan, plan.with_suffix(".npz")]
    counts = ["--flips", flips, "--cuts", cuts, "--seed", seed]
    done = subprocess.run(
        [*map(str, command), *map(str, counts)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def check(plan: Path, flips: int, cuts: int, seed: int = 0) -> None:
    found = damaged(plan, flips, cuts, seed)
    assert found["flipped"] == {"refused": flips}
    assert found["cut"] == {"refused": cuts} == found["cut mended"]
    mended = found["mended"]
    assert set(mended) <= {"refused", "ran"} and sum(mended.values()) == flips
    assert mended["refused"] > flips // 4 and mended["ran"] > flips // 50  # names, weights, costs


def test_damage(plan: Path) -> None:
    check(plan, flips=150, cuts=40)


@pytest.mark.slow
def test_much_damage(plan: Path) -> None:
    check(plan, flips=3000, cuts=300, seed=1)
