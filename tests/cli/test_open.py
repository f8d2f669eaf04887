"""`fuser compile --open`: plan files with kernels for ranges of sizes, and `fuser run` of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.cli.main import run
from fuser.errors import UsageError
from fuser.pipeline.dynamic import DynamicPlan
from fuser.pipeline.ranges import parse_range, prepare_ranges
from models import TINY, build, save


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open") / "bert.onnx"
    save(build("bert", **{**TINY["bert"], "layers": 1}), path)
    return path


def test_a_file_serves_the_ranges_that_were_asked_for(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p"
    options = ["--open", "batch=1..4", "--open", "sequence=2..64", "--device", "cpu"]
    assert run(["compile", str(bert), *options, "-o", str(file)]) == 0
    assert "sequence 2..64" in capsys.readouterr().out
    plan = fuser.load(file)
    assert isinstance(plan, DynamicPlan)
    assert len(plan.variants) == 2  # one row, and more
    whole = fuser.compile(bert, device="cpu", dynamic=True)
    for batch, sequence in ((1, 2), (1, 64), (4, 17)):
        feeds = whole.plan(
            {spec.name: np.ones((batch, sequence), np.int64) for spec in whole.inputs}
        ).random_feeds()
        want = whole.run(feeds)
        found = plan.run(feeds)
        assert all(found[name].tobytes() == array.tobytes() for name, array in want.items())
    with pytest.raises(UsageError, match="--open"):
        plan.run({spec.name: np.ones((1, 1), np.int64) for spec in plan.inputs})
    # The command takes the sizes, or feeds.
    assert run(["run", str(file), "--iterations", "1"]) == 2
    assert "--dim batch=N --dim sequence=N" in capsys.readouterr().err
    sizes = ["--dim", "batch=3", "--dim", "sequence=9"]
    assert run(["run", str(file), "--iterations", "1", "--json", *sizes]) == 0
    assert json.loads(capsys.readouterr().out)["dims"] == {"batch": 3, "sequence": 9}
    assert run(["run", str(file), "--iterations", "1", *sizes, "--dim", "rows=3"]) == 2
    assert run(["run", str(file), "--iterations", "1", *sizes, "--device", "cuda"]) == 5
    np.savez(tmp_path / "feeds.npz", **feeds)
    assert run(["run", str(file), "--iterations", "1", "-i", str(tmp_path / "feeds.npz")]) == 0


def test_dims_that_are_not_open_are_fixed(bert: Path, tmp_path: Path) -> None:
    file = tmp_path / "p"
    options = ["--open", "batch=2..", "--dim", "sequence=16", "--target", "avx2"]
    assert run(["compile", str(bert), *options, "-o", str(file)]) == 0
    (variant,) = fuser.DynamicPlan.load(file).variants
    assert {name: str(bucket) for name, bucket in variant.buckets.items()} == {
        "batch": "2..", "sequence": "16",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--open", "rows=1..4"],
        ["--open", "batch=4..1"],
        ["--open", "batch"],
        ["--open", "batch=4"],
        ["--open", "batch=1..4", "--dim", "batch=2"],
        ["--open", "batch=1..4", "--dim", "rows=2"],
        ["--open", "batch=1..4", "--emit", "object"],
        ["--open", "batch=1..4", "--weights", "reference"],
        ["--open", "batch=1..4", "--target", "avx2,avx512"],
    ],
)
def test_ranges_that_are_none(bert: Path, tmp_path: Path, options: list[str]) -> None:
    assert run(["compile", str(bert), *options, "-o", str(tmp_path / "p")]) == 2
    assert not (tmp_path / "p").exists()


def test_both_ends_of_every_part_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[dict[str, int]] = []
    plan = DynamicPlan.__new__(DynamicPlan)
    monkeypatch.setattr(DynamicPlan, "prepare", lambda self, dims: tried.append(dict(dims)))
    prepare_ranges(plan, dict([parse_range("n=1..100")]))
    assert [item["n"] for item in tried] == [1, 2, 64, 65, 100]
    tried.clear()
    prepare_ranges(plan, {"n": (0, None)})
    assert [item["n"] for item in tried] == [0, 1, 2, 64, 65, 512, 513]
    tried.clear()
    prepare_ranges(plan, {"n": (7, 7)})
    assert [item["n"] for item in tried] == [7]
    with pytest.raises(UsageError, match="combinations"):
        prepare_ranges(plan, {f"d{i}": (0, None) for i in range(5)})
