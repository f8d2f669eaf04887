"""The oracle against other runtimes, on whole models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.evaluate import evaluate
from fuser.graph.passes import run_passes
from models import TINY, example_feeds
from models import build as build_model

Array = np.ndarray[Any, Any]
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx"))
BUILDERS = [name for name in TINY if name not in ("minilm", "tiny_llama")]


def relative_error(found: Array, expected: Array) -> float:
    assert found.shape == expected.shape
    wide = expected.astype(np.float64)
    return float(np.linalg.norm(found.astype(np.float64) - wide) / np.linalg.norm(wide))


def run_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check(model: onnx.ModelProto, feeds: dict[str, Array], limit: float) -> None:
    expected = run_onnxruntime(model, feeds)
    graph = import_onnx(model)
    for stage in (graph, run_passes(graph, verify=True)):
        found = evaluate(stage, feeds, float64=True)
        for name, array in expected.items():
            assert relative_error(array, found[name]) < limit, name


def draw_weights(model: onnx.ModelProto) -> None:
    """Replace the weights of a light model, which are 0.02 throughout, by seeded ones."""
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    variances = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    rng = np.random.default_rng(0)
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            continue
        shape = tuple(shapes[node.input[0]].tolist())
        if len(shape) > 1:
            array = rng.standard_normal(shape) * np.sqrt(1.5 / np.prod(shape[1:]))
        else:
            array = rng.uniform(0.5, 1.5, shape) - 0.9 * (node.output[0] not in variances)
        node.op_type = "Constant"
        del node.input[:]
        del node.attribute[:]
        tensor = numpy_helper.from_array(array.astype(np.float32))
        node.attribute.append(onnx.helper.make_attribute("value", tensor))


@pytest.mark.parametrize("name", NAMES)
def test_light_model_recorded_output(name: str) -> None:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = run_passes(import_onnx(model), verify=True)
    (value,) = graph.inputs
    ramp = np.arange(value.type.size, dtype=np.float32).reshape(value.shape) / value.type.size
    # In float64: the weights make all classes equal, and a BLAS may sum some of a float32 product's
    # columns in another order, which a softmax of logits of 1e10 takes for a decision.
    found = evaluate(graph, {value.name: ramp.astype(np.float32)}, float64=True)
    recorded = numpy_helper.to_array(onnx.load_tensor(LIGHT / f"light_{name}_output_0.pb"))
    assert relative_error(next(iter(found.values())), recorded) < 1e-4


@pytest.mark.parametrize("name", ["inception_v1", "resnet50", "shufflenet"])
def test_light_model_with_drawn_weights(name: str, rng: np.random.Generator) -> None:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    draw_weights(model)
    held = {tensor.name for tensor in model.graph.initializer}
    (info,) = [info for info in model.graph.input if info.name not in held]
    check(model, {info.name: rng.standard_normal((1, 3, 224, 224), np.float32)}, 1e-4)


@pytest.mark.parametrize("name", BUILDERS)
def test_builder(name: str) -> None:
    model = build_model(name, **TINY[name])
    check(model, example_feeds(model, {"batch": 3, "sequence": 11}), 1e-5)


@pytest.mark.export
@pytest.mark.parametrize(
    ("name", "exporter", "dynamic"),
    [("bert", "torchscript", True), ("gpt2", "dynamo", True), ("llama", "dynamo", True)],
)
def test_export(name: str, exporter: Any, dynamic: bool, exported: Callable[..., Any]) -> None:
    for module in ("torch", "transformers", "onnxscript"):
        pytest.importorskip(module)
    from models.exports import export_feeds

    model = exported(name, exporter, dynamic=dynamic)
    feeds = export_feeds(name, batch=3, length=11) if dynamic else export_feeds(name)
    check(model, feeds, 1e-5)
