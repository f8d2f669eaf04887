"""Vision Transformer (Dosovitskiy et al. 2020)."""

from __future__ import annotations

import onnx

from models import layers as nn
from models.writer import Dim, Value, Writer


def vit(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int | None = None,
    image: int = 224,
    patch: int = 16,
    classes: int = 1000,
) -> onnx.ModelProto:
    """ViT-B/16 by default.

    In: pixel_values [batch, 3, image, image]. Out: logits [batch, classes].
    """
    # Convolution in bfloat16 came with opset 22.
    writer = Writer("vit", dtype, seed=seed, opset=22 if dtype == "bfloat16" else 17)
    rows: Dim = batch or "batch"
    pixels = writer.input("pixel_values", (rows, 3, image, image))
    with writer.scope("embeddings"):
        x = _embed(writer, pixels, rows, hidden, image, patch)
    for index in range(layers):
        with writer.scope("encoder"), writer.scope(f"layer.{index}"):
            x = _layer(writer, x, hidden, heads, intermediate or 4 * hidden)
    x = nn.layer_norm(writer, x, "layernorm", hidden, 1e-6)
    with writer.scope("classifier"):
        first = writer.op("Gather", x, writer.index(0), axis=1)
        weight = writer.weight("weight", (classes, hidden), hidden)
        logits = writer.op("Gemm", first, weight, writer.bias("bias", (classes,)), transB=1)
    writer.output("logits", logits, (rows, classes))
    return writer.model()


def _embed(writer: Writer, pixels: Value, rows: Dim, hidden: int, image: int, patch: int) -> Value:
    """Patches behind a class token, with positions: [batch, 1 + patches, hidden]."""
    with writer.scope("projection"):
        weight = writer.weight("weight", (hidden, 3, patch, patch), 3 * patch * patch)
        bias = writer.bias("bias", (hidden,))
        size = [patch, patch]
        grid = writer.op("Conv", pixels, weight, bias, kernel_shape=size, strides=size)
    columns = writer.op("Reshape", grid, writer.integers([0, hidden, -1]))
    patches = writer.op("Transpose", columns, perm=[0, 2, 1])
    token = writer.weight("cls_token", (1, 1, hidden), 1)
    if isinstance(rows, int):
        target = writer.integers([rows, 1, hidden])
    else:
        batch = nn.size_of(writer, pixels, 0)
        target = writer.op("Concat", batch, writer.integers([1, hidden]), axis=0)
    tokens = writer.op("Concat", writer.op("Expand", token, target), patches, axis=1)
    count = (image // patch) ** 2 + 1
    return writer.op("Add", tokens, writer.weight("position_embeddings", (1, count, hidden), 4))


def _layer(writer: Writer, x: Value, hidden: int, heads: int, intermediate: int) -> Value:
    """Attention and feed-forward, each behind a norm. x: [batch, tokens, hidden]."""
    head_dim = nn.head_size(hidden, heads)
    normed = nn.layer_norm(writer, x, "layernorm_before", hidden, 1e-6)
    with writer.scope("attention"):
        query, key, value = (
            nn.split_heads(writer, nn.linear(writer, normed, name, hidden, hidden), heads, head_dim)
            for name in ("query", "key", "value")
        )
        scores = nn.attention_scores(writer, query, key, head_dim)
        context = writer.op("MatMul", writer.op("Softmax", scores, axis=-1), value)
        merged = nn.merge_heads(writer, context, hidden)
        x = writer.op("Add", nn.linear(writer, merged, "output", hidden, hidden), x)
    normed = nn.layer_norm(writer, x, "layernorm_after", hidden, 1e-6)
    with writer.scope("mlp"):
        expanded = nn.gelu(writer, nn.linear(writer, normed, "up", hidden, intermediate))
        return writer.op("Add", nn.linear(writer, expanded, "down", intermediate, hidden), x)
