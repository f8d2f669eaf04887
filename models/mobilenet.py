"""MobileNetV2 (Sandler et al. 2018): inverted residuals around depthwise convolutions."""

from __future__ import annotations

import onnx

from models.resnet import convolution
from models.writer import Dim, Value, Writer

# (expansion, channels, blocks, stride of the first block) of every stage.
_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def mobilenet(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    stages: int = 7,
    hidden: int = 32,
    image: int = 224,
    classes: int = 1000,
) -> onnx.ModelProto:
    """MobileNetV2 of width 1 by default, with BatchNormalization nodes in inference form.

    stages: how many of the seven. hidden: channels of the stem, by which all widths scale.
    In: pixel_values [batch, 3, image, image]. Out: logits [batch, classes].
    """
    # Convolution in bfloat16 came with opset 22.
    writer = Writer("mobilenet", dtype, seed=seed, opset=22 if dtype == "bfloat16" else 17)
    rows: Dim = batch or "batch"
    x = writer.input("pixel_values", (rows, 3, image, image))
    with writer.scope("stem"):
        x = _relu6(writer, convolution(writer, x, "conv", 3, hidden, 3, 2))
    channels = hidden
    for stage, (expansion, width, blocks, stride) in enumerate(_STAGES[:stages]):
        outputs = width * hidden // 32
        for block in range(blocks):
            with writer.scope(f"layer{stage + 1}.{block}"):
                step = stride if block == 0 else 1
                x = _inverted_residual(writer, x, channels, outputs, expansion, step)
                channels = outputs
    with writer.scope("classifier"):
        last = 40 * hidden
        x = _relu6(writer, convolution(writer, x, "conv", channels, last, 1))
        pooled = writer.op("Flatten", writer.op("GlobalAveragePool", x), axis=1)
        weight = writer.weight("weight", (classes, last), last)
        logits = writer.op("Gemm", pooled, weight, writer.bias("bias", (classes,)), transB=1)
    writer.output("logits", logits, (rows, classes))
    return writer.model()


def _inverted_residual(
    writer: Writer, x: Value, inputs: int, outputs: int, expansion: int, stride: int
) -> Value:
    """1x1 to a wider image, 3x3 on each of its channels, 1x1 back, and the image that came."""
    y, width = x, inputs * expansion
    if expansion > 1:
        y = _relu6(writer, convolution(writer, y, "expand", inputs, width, 1))
    y = _relu6(writer, convolution(writer, y, "depthwise", width, width, 3, stride, groups=width))
    y = convolution(writer, y, "project", width, outputs, 1, gain=0.7)
    return writer.op("Add", x, y) if stride == 1 and inputs == outputs else y


def _relu6(writer: Writer, x: Value) -> Value:
    return writer.op("Clip", x, writer.scalar(0.0), writer.scalar(6.0))
