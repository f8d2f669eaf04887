"""Llama-style decoders (Touvron et al. 2023): RMSNorm, rotary positions, grouped heads, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from models import layers as nn
from models.writer import Dim, Value, Writer

EPSILON = 1e-5


@dataclass(frozen=True)
class _Shape:
    """The sizes that every layer needs."""

    batch: Dim
    sequence: Dim
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int

    @property
    def head_dim(self) -> int:
        return nn.head_size(self.hidden, self.heads)


@dataclass(frozen=True)
class _Rotary:
    """Cosines and sines of every position.

    Ordinary: [1, 1, sequence, head_dim], both halves equal. Modern: [1, sequence, head_dim / 2].
    """

    cos: Value
    sin: Value


def llama(
    *,
    dtype: str = "float32",
    seed: int = 0,
    batch: int | None = None,
    sequence: int | None = None,
    layers: int = 22,
    hidden: int = 2048,
    heads: int = 32,
    kv_heads: int = 4,
    intermediate: int = 5632,
    vocabulary: int = 32000,
    theta: int = 10000,
    modern: bool = False,
) -> onnx.ModelProto:
    """1.1 billion parameters by default: 4.4 GB in float32, 2.2 GB in float16.

    In: input_ids, int64 [batch, sequence]. Out: logits [batch, sequence, vocabulary].
    modern: RMSNormalization, RotaryEmbedding and Attention of opset 23 in place of their pieces.
    """
    writer = Writer("llama", dtype, seed=seed, opset=23 if modern else 17)
    dims: tuple[Dim, Dim] = (batch or "batch", sequence or "sequence")
    shape = _Shape(*dims, hidden, heads, kv_heads, intermediate)
    input_ids = writer.input("input_ids", dims, "int64")
    with writer.scope("model"):
        with writer.scope("embed_tokens"):
            # Unit rows, so that the first residual is no smaller than what is added to it.
            table = writer.weight("weight", (vocabulary, hidden), 1)
            x = writer.op("Gather", table, input_ids, axis=0)
        with writer.scope("rotary_emb"):
            places = _places(writer, input_ids, shape.sequence)
            rotary = _rotary(writer, places, shape.head_dim, theta, modern)
        mask = "" if modern else _causal_mask(writer, places)
        for index in range(layers):
            with writer.scope(f"layers.{index}"):
                x = _layer(writer, x, rotary, mask, shape, modern)
        x = _rms_norm(writer, x, "norm", hidden, modern)
    writer.output(
        "logits", nn.projection(writer, x, "lm_head", hidden, vocabulary), (*dims, vocabulary)
    )
    return writer.model()


tiny_llama = partial(
    llama, layers=4, hidden=256, heads=8, kv_heads=2, intermediate=704, vocabulary=4096
)


def _layer(
    writer: Writer, x: Value, rotary: _Rotary, mask: Value, shape: _Shape, modern: bool
) -> Value:
    """Attention and feed-forward, each behind a norm. x: [batch, sequence, hidden]."""
    normed = _rms_norm(writer, x, "input_layernorm", shape.hidden, modern)
    with writer.scope("self_attn"):
        if modern:
            context = _modern_attention(writer, normed, rotary, shape)
        else:
            context = _attention(writer, normed, rotary, mask, shape)
        x = writer.op(
            "Add", x, nn.projection(writer, context, "o_proj", shape.hidden, shape.hidden)
        )
    normed = _rms_norm(writer, x, "post_attention_layernorm", shape.hidden, modern)
    with writer.scope("mlp"):
        gate = nn.projection(writer, normed, "gate_proj", shape.hidden, shape.intermediate)
        gate = writer.op("Mul", gate, writer.op("Sigmoid", gate))
        up = nn.projection(writer, normed, "up_proj", shape.hidden, shape.intermediate)
        product = writer.op("Mul", gate, up)
        down = nn.projection(writer, product, "down_proj", shape.intermediate, shape.hidden)
    return writer.op("Add", x, down)


def _rms_norm(writer: Writer, x: Value, name: str, size: int, modern: bool) -> Value:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis; the mean is taken in float32."""
    with writer.scope(name):
        gain = writer.gain("weight", (size,))
        if modern:
            return writer.op("RMSNormalization", x, gain, axis=-1, epsilon=EPSILON)
        wide = writer.op("Cast", x, to=onnx.TensorProto.FLOAT) if writer.dtype != "float32" else x
        square = writer.op("Pow", wide, writer.scalar(2.0, "float32"))
        mean = writer.op("ReduceMean", square, axes=[-1], keepdims=1)
        root = writer.op("Sqrt", writer.op("Add", mean, writer.scalar(EPSILON, "float32")))
        scale = writer.op("Div", writer.scalar(1.0, "float32"), root)
        normed = writer.op("Mul", wide, scale)
        if writer.dtype != "float32":
            normed = writer.op("Cast", normed, to=writer.elem_type)
        return writer.op("Mul", gain, normed)


def _qkv(writer: Writer, x: Value, shape: _Shape) -> tuple[Value, Value, Value]:
    """Query [batch, heads, sequence, head_dim]; key and value with kv_heads instead."""
    size = shape.head_dim
    query, key, value = (
        nn.split_heads(
            writer, nn.projection(writer, x, name, shape.hidden, heads * size), heads, size
        )
        for name, heads in (
            ("q_proj", shape.heads),
            ("k_proj", shape.kv_heads),
            ("v_proj", shape.kv_heads),
        )
    )
    return query, key, value


def _attention(writer: Writer, x: Value, rotary: _Rotary, mask: Value, shape: _Shape) -> Value:
    """Causal attention in its pieces. x and result: [batch, sequence, hidden]."""
    query, key, value = _qkv(writer, x, shape)
    query = _rotate(writer, query, rotary, shape.head_dim)
    key = _repeat_heads(writer, _rotate(writer, key, rotary, shape.head_dim), shape)
    scores = nn.attention_scores(writer, query, key, shape.head_dim)
    weights = writer.op("Softmax", writer.op("Add", scores, mask), axis=-1)
    context = writer.op("MatMul", weights, _repeat_heads(writer, value, shape))
    return nn.merge_heads(writer, context, shape.hidden)


def _modern_attention(writer: Writer, x: Value, rotary: _Rotary, shape: _Shape) -> Value:
    """Causal attention as one node. x and result: [batch, sequence, hidden]."""
    query, key, value = _qkv(writer, x, shape)
    query, key = (_modern_rotate(writer, part, rotary, shape) for part in (query, key))
    context = writer.op("Attention", query, key, value, is_causal=1)
    return nn.merge_heads(writer, context, shape.hidden)


def _places(writer: Writer, input_ids: Value, sequence: Dim) -> Value:
    """0, 1, 2, ...: int64 [sequence]."""
    if isinstance(sequence, int):
        return writer.constant("position_ids", np.arange(sequence, dtype=np.int64))
    length = writer.op("Gather", writer.op("Shape", input_ids), writer.index(1), axis=0)
    return writer.op("Range", writer.index(0), length, writer.index(1))


def _rotary(writer: Writer, places: Value, head_dim: int, theta: int, modern: bool) -> _Rotary:
    """The angle of pair i at position p is p * theta ** (-2 i / head_dim), in float32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = writer.constant("inverse_frequencies", np.float32(theta) ** -exponents[None])
    column = writer.op("Unsqueeze", places, writer.integers([1]))
    positions = writer.op("Cast", column, to=onnx.TensorProto.FLOAT)
    angles = writer.op("MatMul", positions, frequencies)
    if not modern:
        angles = writer.op("Concat", angles, angles, axis=-1)
    axes = writer.integers([0] if modern else [0, 1])
    cos, sin = (writer.op("Unsqueeze", writer.op(op, angles), axes) for op in ("Cos", "Sin"))
    if writer.dtype != "float32":
        cos, sin = (writer.op("Cast", table, to=writer.elem_type) for table in (cos, sin))
    return _Rotary(cos, sin)


def _rotate(writer: Writer, x: Value, rotary: _Rotary, head_dim: int) -> Value:
    """x * cos + (-x2, x1) * sin. x: [batch, heads, sequence, head_dim], halves x1 and x2."""
    axes = writer.integers([3])
    half, end = writer.integers([head_dim // 2]), writer.integers([2**63 - 1])
    first = writer.op("Slice", x, writer.integers([0]), half, axes)
    second = writer.op("Slice", x, half, end, axes)
    swapped = writer.op("Concat", writer.op("Neg", second), first, axis=-1)
    product = writer.op("Mul", swapped, rotary.sin)
    return writer.op("Add", writer.op("Mul", x, rotary.cos), product)


def _modern_rotate(writer: Writer, x: Value, rotary: _Rotary, shape: _Shape) -> Value:
    """RotaryEmbedding, whose tables need the batch. x: [batch, heads, sequence, head_dim]."""
    lengths = writer.op("Shape", x, end=1)
    target = writer.op("Concat", lengths, writer.integers([1, 1]), axis=0)
    cos, sin = (writer.op("Expand", table, target) for table in (rotary.cos, rotary.sin))
    return writer.op("RotaryEmbedding", x, cos, sin)


def _repeat_heads(writer: Writer, x: Value, shape: _Shape) -> Value:
    """Each key or value head once for every query head that shares it."""
    if shape.heads == shape.kv_heads:
        return x
    groups = shape.heads // shape.kv_heads
    parted = writer.op("Unsqueeze", x, writer.integers([2]))
    repeated = writer.op("Expand", parted, writer.integers([1, 1, groups, 1, 1]))
    return writer.op("Reshape", repeated, writer.integers([0, shape.heads, -1, shape.head_dim]))


def _causal_mask(writer: Writer, places: Value) -> Value:
    """[1, 1, sequence, sequence]: 0 where a key is not after its query, else the lowest number."""
    rows = writer.op("Unsqueeze", places, writer.integers([1]))
    columns = writer.op("Unsqueeze", places, writer.integers([0]))
    seen = writer.op("LessOrEqual", columns, rows)
    square = writer.op("Where", seen, writer.scalar(0.0), writer.scalar(writer.lowest()))
    return writer.op("Unsqueeze", square, writer.integers([0, 1]))
