"""Shape inference of the onnx package, which has many ways to fail on models that are not valid."""

from __future__ import annotations

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

FAILURES = (
    onnx.shape_inference.InferenceError, onnx.checker.ValidationError, DecodeError, EncodeError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip


"""What the checks and the inference of the onnx package raise."""


def inferred(model: ModelProto, data_prop: bool = False) -> ModelProto:
    """A copy of the model with the types that the onnx package infers; the model itself where that
    fails: it is too large for a message, or not valid, which import says better."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except FAILURES:
        return model
