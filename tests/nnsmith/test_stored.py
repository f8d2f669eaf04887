"""A handful of NNSmith's models, made by `python -m tests.nnsmith --only generate` and chosen for
their many operators; and what the command does with models that are wrong, crash or hang."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.runtime.plan import Plan
from tests.nnsmith.check import RANGES, Options, check_file, drawings_of, told_share
from tests.nnsmith.document import write
from tests.nnsmith.storage import KEPT, load, store

MODELS = sorted((Path(__file__).parent / "models").glob("*.onnx"))


def test_models_are_there() -> None:
    assert len(MODELS) == 10


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_stored_model(path: Path) -> None:
    outcome = check_file(path, Options(unfused_every=1, peer=False))
    assert outcome.verdict == "right", outcome
    assert outcome.kernels > 0


def small_model(path: Path, size: int = 50) -> None:
    weight = np.linspace(0, 1, size, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Exp", ["s"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    store(model, path)


def test_large_weights_are_stored_as_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "000001.onnx"
    small_model(path, KEPT + 1)
    assert not onnx.load(path).graph.initializer[0].raw_data
    one, two = (numpy_helper.to_array(load(path).graph.initializer[0]) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert one.shape == (KEPT + 1,) and 0 <= one.min() < one.max() <= 1
    small_model(path, KEPT)
    np.testing.assert_array_equal(
        numpy_helper.to_array(load(path).graph.initializer[0]),
        np.linspace(0, 1, KEPT, dtype=np.float32),
    )


def test_a_wrong_result_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element off by 1e-5 of its size, for one kind of feeds or another."""
    path = tmp_path / "000001.onnx"
    small_model(path)
    assert check_file(path, Options()).verdict == "right"
    run = Plan.run

    def off(self: Plan, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = {name: array.copy() for name, array in run(self, feeds).items()}
        results["y"][7] *= np.float32(1 + 1e-5)
        return results

    monkeypatch.setattr(Plan, "run", off)
    outcome = check_file(path, Options(unfused_every=0))
    assert outcome.verdict == "wrong"
    assert "fused, positive feeds: y" in outcome.what and "1 of 50 elements" in outcome.what


def test_feeds_are_told_and_differ(tmp_path: Path) -> None:
    path = tmp_path / "000001.onnx"
    small_model(path)
    drawings = drawings_of(load(path), 1)
    assert set(drawings) == set(RANGES)
    assert all(told_share(d) == 1 for kind, d in drawings.items() if kind != "edges")
    assert np.isnan(drawings["edges"].feeds["x"]).any()


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "000001.onnx"
    path.write_bytes(b"no model")
    assert check_file(path, Options()).verdict in ("refused", "failed")


def test_the_page_has_one_section_a_device(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    path = tmp_path / "000001.onnx"
    small_model(path)
    row = asdict(check_file(path, Options()))
    write(page, "cpu", "5:40", [row])
    write(page, "cuda", "5:40", [row])
    write(page, "cpu", "5:40", [row, {**row, "name": "000002", "verdict": "refused"}])
    text = page.read_text()
    assert text.startswith("# Title") and text.count("## NNSmith: cpu") == 1
    assert "| 2 | 1 | 0 | 1 | 0 | 0 | 0 | 0 |" in text and "| 1 | 1 | 0 | 0 |" in text


@pytest.mark.skipif(importlib.util.find_spec("nnsmith") is None, reason="needs the extra fuzz")
def test_a_generated_model_is_valid_and_right(tmp_path: Path) -> None:
    from tests.worker_pool import answers

    command = [sys.executable, "-m", "tests.nnsmith.generate", str(tmp_path), "5", "8"]
    (answer,) = answers(command, ["7"], 1, 120)
    assert not answer.ended, answer
    assert answer.reply["nodes"] >= 5, json.dumps(answer.reply)
    onnx.checker.check_model(load(tmp_path / "000007.onnx"), full_check=True)
    assert check_file(tmp_path / "000007.onnx", Options()).verdict in ("right", "untold")
