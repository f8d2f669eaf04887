"""BERT (Devlin et al. 2018), the encoder with its pooler."""

from __future__ import annotations

import onnx

from models import layers as nn
from models.writer import Dim, Value, Writer


def bert(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    sequence: int | None = None,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int | None = None,
    vocabulary: int = 30522,
    positions: int = 512,
) -> onnx.ModelProto:
    """BERT base by default.

    In: input_ids, attention_mask, token_type_ids, int64 [batch, sequence]. Out: last_hidden_state
    [batch, sequence, hidden] and pooler_output [batch, hidden].
    """
    writer = Writer("bert", dtype, seed=seed)
    shape: tuple[Dim, Dim] = (batch or "batch", sequence or "sequence")
    x, _ = encoder(
        writer, shape, layers, hidden, heads, intermediate or 4 * hidden, vocabulary, positions
    )
    writer.output("last_hidden_state", x, (*shape, hidden))
    with writer.scope("pooler"):
        first = writer.op("Gather", "last_hidden_state", writer.index(0), axis=1)
        with writer.scope("dense"):
            weight = writer.weight("weight", (hidden, hidden), hidden)
            dense = writer.op("Gemm", first, weight, writer.bias("bias", (hidden,)), transB=1)
        pooled = writer.op("Tanh", dense)
    writer.output("pooler_output", pooled, (shape[0], hidden))
    return writer.model()


def encoder(
    writer: Writer,
    shape: tuple[Dim, Dim],
    layers: int,
    hidden: int,
    heads: int,
    intermediate: int,
    vocabulary: int,
    positions: int,
) -> tuple[Value, Value]:
    """Inputs, embeddings and the layers: the last hidden state and the attention mask.

    Parameters carry the names they have in the published checkpoints.
    """
    input_ids = writer.input("input_ids", shape, "int64")
    attention_mask = writer.input("attention_mask", shape, "int64")
    token_type_ids = writer.input("token_type_ids", shape, "int64")
    with writer.scope("embeddings"):
        places = nn.position_ids(writer, positions, shape[1], input_ids)
        word = _embed(writer, "word_embeddings", input_ids, vocabulary, hidden)
        kind = _embed(writer, "token_type_embeddings", token_type_ids, 2, hidden)
        place = _embed(writer, "position_embeddings", places, positions, hidden)
        total = writer.op("Add", writer.op("Add", word, kind), place)
        x = nn.layer_norm(writer, total, "LayerNorm", hidden, 1e-12)
    mask = nn.padding_mask(writer, attention_mask)
    for index in range(layers):
        with writer.scope("encoder"), writer.scope(f"layer.{index}"):
            x = _layer(writer, x, mask, hidden, heads, intermediate)
    return x, attention_mask


def _embed(writer: Writer, name: str, ids: Value, rows: int, hidden: int) -> Value:
    with writer.scope(name):
        # Unit rows: the sum of the three tables is normalised anyway.
        return writer.op("Gather", writer.weight("weight", (rows, hidden), 1), ids, axis=0)


def _layer(
    writer: Writer, x: Value, mask: Value, hidden: int, heads: int, intermediate: int
) -> Value:
    """Attention and feed-forward, each followed by a residual and a norm. x: [b, s, hidden]."""
    head_dim = nn.head_size(hidden, heads)
    with writer.scope("attention"):
        with writer.scope("self"):
            query, key, value = (
                nn.split_heads(writer, nn.linear(writer, x, name, hidden, hidden), heads, head_dim)
                for name in ("query", "key", "value")
            )
            scores = nn.attention_scores(writer, query, key, head_dim)
            weights = writer.op("Softmax", writer.op("Add", scores, mask), axis=-1)
            context = nn.merge_heads(writer, writer.op("MatMul", weights, value), hidden)
        with writer.scope("output"):
            dense = nn.linear(writer, context, "dense", hidden, hidden)
            x = nn.layer_norm(writer, writer.op("Add", dense, x), "LayerNorm", hidden, 1e-12)
    with writer.scope("intermediate"):
        expanded = nn.gelu(writer, nn.linear(writer, x, "dense", hidden, intermediate))
    with writer.scope("output"):
        dense = nn.linear(writer, expanded, "dense", intermediate, hidden)
        return nn.layer_norm(writer, writer.op("Add", dense, x), "LayerNorm", hidden, 1e-12)
