"""Operators that the host runs, in every form that leaves operands out."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import fuser

FORMS = {
    "all": "NonMaxSuppression (b, s, most, overlap, score)",
    "no score": "NonMaxSuppression (b, s, most, overlap)",
    "no overlap": "NonMaxSuppression (b, s, most)",
    "only the score": "NonMaxSuppression (b, s, most, , score)",
    "nothing": "NonMaxSuppression (b, s)",
    "centre": "NonMaxSuppression <center_point_box = 1> (b, s, most)",
}


@pytest.mark.parametrize("opset", [11, 22])
@pytest.mark.parametrize("form", FORMS)
def test_non_max_suppression(form: str, opset: int, rng: np.random.Generator) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]>'
        " g (float[1, n, 4] b, float[1, 1, n] s) => (int64[k, 3] y)"
        " <int64[1] most = {5}, float[1] overlap = {0.5}, float[1] score = {0.1}>"
        f" {{ y = {FORMS[form]} }}"
    )
    feeds = {
        "b": np.sort(rng.random((1, 40, 4), dtype=np.float32)),
        "s": rng.random((1, 1, 40), dtype=np.float32),
    }
    options = ort.SessionOptions()
    options.log_severity_level = 3
    (want,) = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    (found,) = fuser.InferenceSession(model).run(None, feeds)
    np.testing.assert_array_equal(found, want)
