"""GPT-2 (Radford et al. 2019): a causal decoder with one fused projection for Q, K and V."""

from __future__ import annotations

import numpy as np
import onnx

from models import layers as nn
from models.writer import Dim, Value, Writer


def gpt2(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    sequence: int | None = None,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    positions: int = 1024,
) -> onnx.ModelProto:
    """GPT-2 small by default; the embedding is also the output projection.

    In: input_ids, int64 [batch, sequence]. Out: logits [batch, sequence, vocabulary].
    """
    writer = Writer("gpt2", dtype, seed=seed)
    shape: tuple[Dim, Dim] = (batch or "batch", sequence or "sequence")
    input_ids = writer.input("input_ids", shape, "int64")
    with writer.scope("wte"):
        table = writer.weight("weight", (vocabulary, hidden), hidden)
        tokens = writer.op("Gather", table, input_ids, axis=0)
    with writer.scope("wpe"):
        place_ids = nn.position_ids(writer, positions, shape[1], input_ids)
        weight = writer.weight("weight", (positions, hidden), hidden)
        places = writer.op("Gather", weight, place_ids, axis=0)
    x = writer.op("Add", tokens, places)
    mask = _causal_mask(writer, positions, shape[1], input_ids)
    for index in range(layers):
        with writer.scope(f"h.{index}"):
            x = _block(writer, x, mask, shape, hidden, heads)
    x = nn.layer_norm(writer, x, "ln_f", hidden, 1e-5)
    with writer.scope("lm_head"):
        logits = writer.op("MatMul", x, writer.op("Transpose", table, perm=[1, 0]))
    writer.output("logits", logits, (*shape, vocabulary))
    return writer.model()


def _block(
    writer: Writer, x: Value, mask: Value, shape: tuple[Dim, Dim], hidden: int, heads: int
) -> Value:
    """Attention and feed-forward, each behind a norm. x: [batch, sequence, hidden]."""
    head_dim = nn.head_size(hidden, heads)
    normed = nn.layer_norm(writer, x, "ln_1", hidden, 1e-5)
    with writer.scope("attn"):
        joined = _dense(writer, normed, "c_attn", shape, hidden, 3 * hidden)
        sizes = writer.integers([hidden] * 3)
        query, key, value = (
            nn.split_heads(writer, part, heads, head_dim)
            for part in writer.ops("Split", joined, sizes, outputs=3, axis=2)
        )
        scores = nn.attention_scores(writer, query, key, head_dim)
        kept = writer.op("Where", mask, scores, writer.scalar(writer.lowest()))
        weights = writer.op("Softmax", kept, axis=-1)
        context = nn.merge_heads(writer, writer.op("MatMul", weights, value), hidden)
        x = writer.op("Add", _dense(writer, context, "c_proj", shape, hidden, hidden), x)
    normed = nn.layer_norm(writer, x, "ln_2", hidden, 1e-5)
    with writer.scope("mlp"):
        expanded = _dense(writer, normed, "c_fc", shape, hidden, 4 * hidden)
        activated = nn.gelu_tanh(writer, expanded)
        dense = _dense(writer, activated, "c_proj", shape, 4 * hidden, hidden)
    return writer.op("Add", x, dense)


def _dense(
    writer: Writer, x: Value, name: str, shape: tuple[Dim, Dim], inputs: int, outputs: int
) -> Value:
    """A Gemm between two reshapes, as GPT-2's layers are exported. x: [batch, sequence, inputs]."""
    with writer.scope(name):
        weight = writer.weight("weight", (inputs, outputs), inputs)
        rows = writer.op("Reshape", x, writer.integers([-1, inputs]))
        product = writer.op("Gemm", rows, weight, writer.bias("bias", (outputs,)))
        if any(isinstance(dim, int) for dim in shape):
            target = writer.integers([d if isinstance(d, int) else -1 for d in (*shape, outputs)])
        else:
            lengths = [nn.size_of(writer, x, axis) for axis in (0, 1)]
            target = writer.op("Concat", *lengths, writer.integers([outputs]), axis=0)
        return writer.op("Reshape", product, target)


def _causal_mask(writer: Writer, positions: int, sequence: Dim, input_ids: Value) -> Value:
    """bool [1, 1, sequence, sequence], true where a key is not after its query.

    With a symbolic length it is cut from the table that checkpoints carry.
    """
    if isinstance(sequence, int):
        return writer.constant("causal_mask", np.tri(sequence, dtype=np.bool_)[None, None])
    table = writer.constant("causal_mask", np.tri(positions, dtype=np.bool_)[None, None])
    end = nn.size_of(writer, input_ids, 1)
    ends = writer.op("Concat", end, end, axis=0)
    return writer.op("Slice", table, writer.integers([0, 0]), ends, writer.integers([2, 3]))
