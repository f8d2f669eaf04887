"""ResNet (He et al. 2015) in its version 1.5: the 3x3 convolution of a block has the stride."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from models.writer import Dim, Value, Writer

# Blocks of three convolutions in each of the four stages; the stem and the classifier make two
# layers more.
_BLOCKS: Mapping[int, tuple[int, int, int, int]] = {
    14: (1, 1, 1, 1),
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def resnet(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    layers: int = 50,
    hidden: int = 64,
    image: int = 224,
    classes: int = 1000,
) -> onnx.ModelProto:
    """ResNet-50 by default, with BatchNormalization nodes in inference form.

    layers: 14, 26, 50, 101 or 152. hidden: channels of the stem.
    In: pixel_values [batch, 3, image, image]. Out: logits [batch, classes].
    """
    if layers not in _BLOCKS:
        raise ValueError(f"layers={layers}: choose one of {', '.join(map(str, _BLOCKS))}")
    # Convolution and pooling in bfloat16 came with opset 22.
    writer = Writer("resnet", dtype, seed=seed, opset=22 if dtype == "bfloat16" else 17)
    rows: Dim = batch or "batch"
    x = writer.input("pixel_values", (rows, 3, image, image))
    with writer.scope("stem"):
        x = writer.op("Relu", convolution(writer, x, "conv", 3, hidden, 7, 2))
        pads = [1, 1, 1, 1]
        x = writer.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=pads)
    channels = hidden
    for stage, blocks in enumerate(_BLOCKS[layers]):
        width = hidden << stage
        for block in range(blocks):
            with writer.scope(f"layer{stage + 1}.{block}"):
                stride = 2 if block == 0 and stage > 0 else 1
                x = _bottleneck(writer, x, channels, width, stride)
                channels = 4 * width
    with writer.scope("classifier"):
        pooled = writer.op("Flatten", writer.op("GlobalAveragePool", x), axis=1)
        weight = writer.weight("weight", (classes, channels), channels)
        logits = writer.op("Gemm", pooled, weight, writer.bias("bias", (classes,)), transB=1)
    writer.output("logits", logits, (rows, classes))
    return writer.model()


def convolution(
    writer: Writer,
    x: Value,
    name: str,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    gain: float = 1.4,
    groups: int = 1,
) -> Value:
    """Conv without a bias and BatchNormalization. x: [batch, inputs, height, width].

    gain: the mean scale of the norm. With 1.4, about the square root of 2, a following Relu leaves
    the second moment at one.
    """
    with writer.scope(name):
        fan_in = inputs // groups
        weight = writer.weight("weight", (outputs, fan_in, kernel, kernel), fan_in * kernel**2)
        size, pads = [kernel, kernel], [kernel // 2] * 4
        shape = {"kernel_shape": size, "strides": [stride, stride], "pads": pads}
        y = writer.op("Conv", x, weight, **shape, **({"group": groups} if groups > 1 else {}))
    with writer.scope(f"{name}_bn"):
        return writer.op(
            "BatchNormalization",
            y,
            writer.gain("weight", (outputs,), gain),
            writer.bias("bias", (outputs,)),
            writer.bias("running_mean", (outputs,)),
            writer.variance("running_var", (outputs,)),
            epsilon=1e-5,
        )


def _bottleneck(writer: Writer, x: Value, inputs: int, width: int, stride: int) -> Value:
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; 4 * width channels come out.

    The last norm is small, so that the sum does not grow from block to block.
    """
    y = writer.op("Relu", convolution(writer, x, "conv1", inputs, width, 1))
    y = writer.op("Relu", convolution(writer, y, "conv2", width, width, 3, stride))
    y = convolution(writer, y, "conv3", width, 4 * width, 1, gain=0.3)
    if stride != 1 or inputs != 4 * width:
        x = convolution(writer, x, "downsample", inputs, 4 * width, 1, stride, gain=1.0)
    return writer.op("Relu", writer.op("Add", y, x))
