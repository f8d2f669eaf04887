"""A repository for NVIDIA Triton: its config, and its model.py on a stub of Triton's module."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.cli.main import run
from fuser.errors import UnsupportedError
from fuser.serve.models import Model
from fuser.serve.opening import open_model
from fuser.serve.triton_repository import write_repository
from models import build, save
from tests.serve.conftest import WIDTH, numbers
from tests.serve.test_rows import model_file


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class Request:
    def __init__(self, inputs: list[Tensor], wanted: list[str]) -> None:
        self.inputs, self._wanted = inputs, wanted

    def requested_output_names(self) -> list[str]:
        return self._wanted


class Response:
    def __init__(self, output_tensors: list[Tensor], error: Exception | None = None) -> None:
        self.tensors, self.error = output_tensors, error


def stub() -> ModuleType:
    """What the backend gives a model.py, as far as its documentation promises it."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse = Tensor, Response
    module.TritonError = type("TritonError", (Exception,), {})
    module.get_input_tensor_by_name = lambda request, name: next(
        (tensor for tensor in request.inputs if tensor.name() == name), None
    )
    return module


@pytest.fixture
def plan_file(mlp: Model, mlp_file: Path, tmp_path: Path) -> Path:
    plan = fuser.compile(mlp_file, device="cpu", dynamic=True, threads=1)
    plan.prepare({"batch": 2})
    plan.prepare({"batch": 1})
    plan.save(tmp_path / "mlp.plan")
    return tmp_path / "mlp.plan"


def test_triton_runs_the_plan(
    plan_file: Path, tmp_path: Path, mlp: Model, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / "repository"
    assert run(["serve", str(plan_file), "--triton-repository", str(folder)]) == 0
    home = folder / "mlp"
    assert capsys.readouterr().out.strip() == str(home)
    assert (home / "config.pbtxt").read_text() == (
        'name: "mlp"\nbackend: "python"\nmax_batch_size: 8\n'
        f'input [ {{ name: "x" data_type: TYPE_FP32 dims: [{WIDTH}] }} ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [10] } ]\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\ndynamic_batching { }\n"
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub())
    spec = importlib.util.spec_from_file_location("model", home / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({
        "model_repository": str(home), "model_version": "1", "model_name": "mlp",
        "model_instance_kind": "CPU", "model_instance_device_id": "0",
        "model_config": json.dumps({"max_batch_size": 8}),
    })  # fmt: skip
    requests = [Request([Tensor("x", numbers(rows, rows))], ["y"]) for rows in (1, 3, 2)]
    requests.insert(1, Request([Tensor("x", np.zeros((1, 3), np.float32))], ["y"]))
    answers = model.execute(requests)
    assert len(answers) == 4
    assert answers[1].error is not None and "shape" in str(answers[1].error)
    for rows, answer in zip((1, 3, 2), (answers[0], *answers[2:]), strict=True):
        (tensor,) = answer.tensors
        expected = mlp.plan.run({"x": numbers(rows, rows)})["y"]
        assert answer.error is None and tensor.name() == "y"
        assert tensor.as_numpy().tobytes() == expected.tobytes()
    model.finalize()


def test_configs_are_read_by_the_foreign_parser(plan_file: Path, tmp_path: Path) -> None:
    config = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="needs tritonclient")
    from google.protobuf import text_format

    home = write_repository(tmp_path / "r", open_model(plan_file, threads=1), plan_file)
    found = text_format.Parse((home / "config.pbtxt").read_text(), config.ModelConfig())
    assert (found.name, found.max_batch_size, list(found.input[0].dims)) == ("mlp", 8, [WIDTH])


def test_what_triton_cannot_hold_is_said(tmp_path: Path) -> None:
    path = model_file(tmp_path, "g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }")
    plan = fuser.compile(path, device="cpu", threads=1)
    plan.save(tmp_path / "b.plan")
    with pytest.raises(UnsupportedError, match="bfloat16"):
        write_repository(tmp_path, open_model(tmp_path / "b.plan"), tmp_path / "b.plan")
    assert run(["serve", str(path), "--triton-repository", str(tmp_path / "r")]) == 2


def test_a_repository_has_weights_that_were_in_the_model(tmp_path: Path) -> None:
    """The plan's copy is alone in its folder."""
    model, plan = tmp_path / "mlp.onnx", tmp_path / "mlp.plan"
    save(build("mlp", inputs=192, hidden=160, batch=2), model)
    made = ["compile", str(model), "--weights", "reference", "--device", "cpu", "-o", str(plan)]
    assert run(made) == 0
    x = np.random.default_rng(0).standard_normal((2, 192), np.float32)
    want = fuser.Plan.load(plan).run({"x": x})["y"]
    home = write_repository(tmp_path / "repository", open_model(plan), plan)
    model.unlink()
    found = fuser.Plan.load(home / "1" / "model.plan").run({"x": x})["y"]
    assert found.tobytes() == want.tobytes()
