"""The float64 reference beside models whose indices are computed in floating point."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fuser.frontends.onnx.model import compile, open_model, reference
from fuser.report.compare import compare
from models import zoo
from tests.zoo.routes import export

pytestmark = pytest.mark.export


def test_position_buckets_are_no_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5 looks its biases up at log(distance), truncated: from 16 tokens apart on, float64 gives
    another place of the table than the model's float32."""
    monkeypatch.setattr(zoo, "LENGTH", 20)
    feeds = zoo.zoo_feeds("t5-encoder")
    model = open_model(export(zoo.zoo_module("t5-encoder"), feeds, "torchscript"))
    feeds = {name: feeds[name] for name in model.inputs}
    found, wanted = compile(model, device="cpu").run(feeds), reference(model, feeds)
    result = compare(found, wanted, tolerance=1e-5)
    assert result.ok and result.max_rel < 1e-6, result
    (one,) = wanted.values()
    assert one.dtype == np.float64
