"""The two PyTorch exporters on tiny configurations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from models.exports import NAMES, Exporter, export, export_feeds

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.export


@pytest.mark.parametrize(
    ("name", "exporter"), [("bert", "torchscript"), ("resnet", "torchscript"), ("llama", "dynamo")]
)
def test_exports_are_valid_and_take_their_feeds(
    name: str, exporter: Exporter, exported: Callable[..., onnx.ModelProto]
) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = exported(name, exporter)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for output in session.run(None, export_feeds(name)):
        assert np.isfinite(output).all()


def test_dynamic_dims_are_symbols() -> None:
    model = export("vit", "torchscript", dynamic=True)
    dims = [
        value.type.tensor_type.shape.dim[0] for value in (*model.graph.input, *model.graph.output)
    ]
    assert {dim.dim_param for dim in dims} == {"batch"}


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown model 'brt'"):
        export("brt")
    with pytest.raises(ValueError, match="aten::diff"):
        export("gpt2", "torchscript")
    with pytest.raises(ValueError, match="unknown exporter"):
        export("bert", "jit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bfloat16"):
        export("bert", dtype="bfloat16")
    assert set(NAMES) == {"bert", "gpt2", "llama", "vit", "resnet"}
