"""A multilayer perceptron."""

from __future__ import annotations

import onnx

from models import layers as nn
from models.writer import Dim, Writer


def mlp(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    layers: int = 3,
    inputs: int = 784,
    hidden: int = 512,
    outputs: int = 10,
) -> onnx.ModelProto:
    """Linear layers with Relu between them. In: x [batch, inputs]. Out: y [batch, outputs]."""
    writer = Writer("mlp", dtype, seed=seed)
    rows: Dim = batch or "batch"
    value = writer.input("x", (rows, inputs))
    widths = [inputs, *[hidden] * (layers - 1), outputs]
    for index in range(layers):
        value = nn.linear(writer, value, f"layers.{index}", widths[index], widths[index + 1])
        if index + 1 < layers:
            value = writer.op("Relu", value)
    writer.output("y", value, (rows, outputs))
    return writer.model()
