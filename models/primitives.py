"""Single fusions on their own: softmax, layer norm, attention, a convolution block."""

from __future__ import annotations

import numpy as np
import onnx

from models import layers as nn
from models.resnet import convolution
from models.writer import Dim, Value, Writer


def softmax(
    *,
    dtype: str = "float32",
    batch: int | None = None,
    columns: int = 1024,
    decomposed: bool = False,
) -> onnx.ModelProto:
    """Softmax of rows. In: x [batch, columns]. Out: y, the same shape.

    decomposed: maximum, difference, exponential, sum and quotient in place of one node.
    """
    writer = Writer("softmax", dtype)
    rows: Dim = batch or "batch"
    x = writer.input("x", (rows, columns))
    if decomposed:
        peak = writer.op("ReduceMax", x, axes=[-1], keepdims=1)
        power = writer.op("Exp", writer.op("Sub", x, peak))
        total = writer.op("ReduceSum", power, writer.integers([-1]), keepdims=1)
        y = writer.op("Div", power, total)
    else:
        y = writer.op("Softmax", x, axis=-1)
    writer.output("y", y, (rows, columns))
    return writer.model()


def layernorm(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    hidden: int = 768,
    decomposed: bool = False,
) -> onnx.ModelProto:
    """A residual sum and its LayerNormalization. In: x, residual [batch, hidden]. Out: y.

    decomposed: two means, a square root and a quotient, as opsets below 17 spell the norm.
    """
    writer = Writer("layernorm", dtype, seed=seed)
    rows: Dim = batch or "batch"
    x = writer.input("x", (rows, hidden))
    total = writer.op("Add", x, writer.input("residual", (rows, hidden)))
    if decomposed:
        y = _decomposed_norm(writer, total, hidden)
    else:
        y = nn.layer_norm(writer, total, "norm", hidden, 1e-5)
    writer.output("y", y, (rows, hidden))
    return writer.model()


def attention(
    *,
    dtype: str = "float32",
    batch: int | None = None,
    sequence: int | None = None,
    heads: int = 12,
    head_dim: int = 64,
    causal: bool = False,
    mask: bool = False,
    modern: bool = False,
) -> onnx.ModelProto:
    """softmax(query key^T / sqrt(head_dim)) value.

    In: query, key, value [batch, heads, sequence, head_dim]; with `mask` also attention_mask, int64
    [batch, sequence]. Out: context, shaped as query.
    modern: the Attention node of opset 23, which takes no `mask` here.
    """
    if mask and modern:
        raise ValueError("mask=True with modern=True: choose one")
    writer = Writer("attention", dtype, opset=23 if modern else 17)
    length: Dim = sequence or "sequence"
    shape: tuple[Dim, ...] = (batch or "batch", heads, length, head_dim)
    query, key, value = (writer.input(name, shape) for name in ("query", "key", "value"))
    if modern:
        context = writer.op("Attention", query, key, value, is_causal=int(causal))
    else:
        scores = nn.attention_scores(writer, query, key, head_dim)
        if causal:
            scores = _mask_future(writer, scores)
        if mask:
            kept = writer.input("attention_mask", (shape[0], length), "int64")
            scores = writer.op("Add", scores, nn.padding_mask(writer, kept))
        context = writer.op("MatMul", writer.op("Softmax", scores, axis=-1), value)
    writer.output("context", context, shape)
    return writer.model()


def conv_block(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    hidden: int = 64,
    image: int = 56,
) -> onnx.ModelProto:
    """Two 3x3 convolutions with batch norms beside a shortcut, then Relu.

    In: x [batch, hidden, image, image]. Out: y, the same shape.
    """
    writer = Writer("conv_block", dtype, seed=seed, opset=22 if dtype == "bfloat16" else 17)
    shape: tuple[Dim, ...] = (batch or "batch", hidden, image, image)
    x = writer.input("x", shape)
    inner = writer.op("Relu", convolution(writer, x, "conv1", hidden, hidden, 3))
    outer = convolution(writer, inner, "conv2", hidden, hidden, 3)
    writer.output("y", writer.op("Relu", writer.op("Add", outer, x)), shape)
    return writer.model()


def _decomposed_norm(writer: Writer, x: Value, hidden: int) -> Value:
    mean = writer.op("ReduceMean", x, axes=[-1], keepdims=1)
    centred = writer.op("Sub", x, mean)
    square = writer.op("Pow", centred, writer.scalar(2.0))
    variance = writer.op("ReduceMean", square, axes=[-1], keepdims=1)
    root = writer.op("Sqrt", writer.op("Add", variance, writer.scalar(1e-5)))
    normed = writer.op("Div", centred, root)
    with writer.scope("norm"):
        scaled = writer.op("Mul", normed, writer.gain("weight", (hidden,)))
        return writer.op("Add", scaled, writer.bias("bias", (hidden,)))


def _mask_future(writer: Writer, scores: Value) -> Value:
    """Scores [batch, heads, sequence, sequence] with the lowest number above the diagonal."""
    lengths = writer.op("Shape", scores, start=2)
    ones = writer.op("Expand", writer.constant("true", np.array(True)), lengths)
    kept = writer.op("Trilu", ones, upper=0)
    return writer.op("Where", kept, scores, writer.scalar(writer.lowest()))
