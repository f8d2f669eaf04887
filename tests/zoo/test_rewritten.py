"""Models that other tools rewrote: ONNX Runtime's optimisers and quantisers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
ort = pytest.importorskip("onnxruntime")

import fuser  # noqa: E402
from models.zoo import zoo_feeds, zoo_module  # noqa: E402
from tests.processors import multiplies_bytes  # noqa: E402
from tests.zoo.routes import Array, expected_outputs, export, relative_error  # noqa: E402
from tests.zoo.test_zoo import MOST_KERNELS, SLACK  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def write(name: str, path: Path, attention: str = "sdpa") -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = zoo_module(name, attention=attention)
        onnx.save(export(module, zoo_feeds(name), "torchscript"), path)


def session(path: Path, level: Any, save: Path | None = None) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 4, level
    if save is not None:
        options.optimized_model_filepath = str(save)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path: Path, name: str) -> tuple[dict[str, Array], fuser.Plan, dict[str, Array]]:
    """What fuser computes of the model in a file, the plan, and the feeds that it reads."""
    plan = fuser.compile(path, device="cpu")
    assert plan.report().fallbacks == ()
    feeds = zoo_feeds(name)
    read = {spec.name: feeds[spec.name] for spec in plan.inputs}
    return plan.run(read), plan, read


def domains(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}


@pytest.mark.parametrize(
    "name", ["bert", slow("gpt2"), "llama-cache", slow("segformer"), slow("mobilenet")]
)
def test_as_onnxruntime_optimises_it(name: str, path: Path) -> None:
    write(name, path)
    session(path, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, save=path)
    assert domains(path)
    found, plan, _ = run(path, name)
    assert relative_error(list(found.values()), expected_outputs(name, zoo_feeds(name), "float32"))\
        < 1e-5  # fmt: skip
    assert plan.launches <= SLACK * MOST_KERNELS[name]


@pytest.mark.parametrize(
    ("name", "kind"), [slow("bert", "bert"), ("distilbert", "bert"), slow("t5-encoder", "t5")]
)
def test_as_the_transformers_optimiser_rewrites_it(name: str, kind: str, path: Path) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    write(name, path, attention="eager")
    fused = optimizer.optimize_model(
        str(path), model_type=kind, num_heads=4, hidden_size=32, opt_level=0
    )
    fused.save_model_to_file(str(path))
    assert domains(path) & {"Attention", "SkipSimplifiedLayerNormalization"}
    found, plan, _ = run(path, name)
    wanted = expected_outputs(name, zoo_feeds(name), "float32")
    assert relative_error(list(found.values()), wanted) < 1e-5
    assert plan.launches <= SLACK * MOST_KERNELS[name]


class Samples:
    """Feeds to calibrate with."""

    def __init__(self, name: str) -> None:
        self.feeds = iter([zoo_feeds(name, seed=seed) for seed in range(3)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


@pytest.mark.parametrize("form", ["QDQ", "QOperator", slow("dynamic")])
@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_quantised(name: str, form: str, path: Path) -> None:
    """int8 weights, uint8 activations; codes and decodings run inside of the kernels around them.

    The model is compared with what ONNX Runtime makes of it node by node: the numbers of a
    quantised model are its own.
    """
    quantization = pytest.importorskip("onnxruntime.quantization")
    if form == "QOperator" and not multiplies_bytes():
        pytest.skip("ONNX Runtime's sums of bytes saturate on this processor")
    write(name, path)
    if form == "dynamic":
        quantization.quantize_dynamic(path, path)
    else:
        quantization.quantize_static(
            path, path, Samples(name), quant_format=quantization.QuantFormat[form],
            per_channel=form == "QDQ", weight_type=quantization.QuantType.QInt8,
            activation_type=quantization.QuantType.QUInt8,
        )  # fmt: skip
    found, plan, feeds = run(path, name)
    plain = session(path, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    wanted = [array.astype(np.float64) for array in plain.run(None, feeds)]
    assert relative_error(list(found.values()), wanted) < 1e-5
    # Quantised activations come in ranges of the whole tensor: two more kernels for each of those.
    slack = 2 if form == "dynamic" else 1.5
    assert plan.launches <= slack * MOST_KERNELS[name]
    assert plan.launches < 0.9 * plan.report().kernels.before
