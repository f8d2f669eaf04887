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
from fuser.cli.main import run
from fuser.errors import InvalidModelError
from models import TINY, build, save

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


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan whose weights are in its model, which is beside it."""
    folder = tmp_path_factory.mktemp("reference")
    save(build("mlp", inputs=160, hidden=128), folder / "mlp.onnx")
    made = ["compile", str(folder / "mlp.onnx"), "--weights", "reference", "--dim", "batch=3"]
    assert run([*made, "--device", "cpu", "-o", str(folder / "plan")]) == 0
    np.savez(folder / "plan.npz", x=np.ones((3, 160), np.float32))
    return folder / "plan"


@pytest.fixture(scope="module")
def open_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with kernels for ranges of sizes."""
    folder = tmp_path_factory.mktemp("open")
    save(build("mlp", **TINY["mlp"]), folder / "mlp.onnx")
    made = ["compile", str(folder / "mlp.onnx"), "--open", "batch=1..9", "--device", "cpu"]
    assert run([*made, "-o", str(folder / "plan")]) == 0
    np.savez(folder / "plan.npz", x=np.ones((3, 24), np.float32))
    return folder / "plan"


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


def test_damage_of_a_plan_with_its_weights_elsewhere(reference: Path) -> None:
    check(reference, flips=100, cuts=30, seed=2)


def test_damage_of_a_plan_for_open_sizes(open_sizes: Path) -> None:
    check(open_sizes, flips=100, cuts=30, seed=5)


def test_damage_of_the_model_that_has_the_weights(reference: Path) -> None:
    """Each byte of it counts, those that no kernel reads as well."""
    model = reference.with_name("mlp.onnx")
    good, random = model.read_bytes(), np.random.default_rng(3)
    feeds = dict(np.load(reference.with_suffix(".npz")))
    want = fuser.Plan.load(reference).run(feeds)["y"].tobytes()
    try:
        for number in range(60):
            bad = bytearray(good)
            # Half of them in what is before the first weight and behind the last.
            place = int(random.integers(len(good))) if number % 2 else number - 30
            bad[place] ^= 1 << int(random.integers(8))
            model.write_bytes(bytes(bad) if number % 5 else good[:place])
            with pytest.raises(InvalidModelError, match="not the model that the plan was compiled"):
                fuser.Plan.load(reference)
    finally:
        model.write_bytes(good)
    assert fuser.Plan.load(reference).run(feeds)["y"].tobytes() == want


@pytest.mark.slow
def test_much_damage(plan: Path) -> None:
    check(plan, flips=3000, cuts=300, seed=1)


@pytest.mark.slow
def test_much_damage_of_a_plan_with_its_weights_elsewhere(reference: Path) -> None:
    check(reference, flips=3000, cuts=300, seed=4)


@pytest.mark.slow
def test_much_damage_of_a_plan_for_open_sizes(open_sizes: Path) -> None:
    check(open_sizes, flips=3000, cuts=300, seed=6)
