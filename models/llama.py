"""Llama-style decoders (Touvron et al. 2023): RMSNorm, rotary positions, grouped heads, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from models import layers as nn
from models.sampling import sampled
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


@dataclass(frozen=True)
class _Cache:
    """Keys and values of the tokens before, [batch, kv_heads, past, head_dim], of one layer."""

    layer: int
    key: Value
    value: Value


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
    cache: bool = False,
    sample: bool = False,
    bits: int = 0,
) -> onnx.ModelProto:
    """1.1 billion parameters by default: 4.4 GB in float32, 2.2 GB in float16.

    In: input_ids, int64 [batch, sequence]. Out: logits [batch, sequence, vocabulary].
    modern: RMSNormalization, RotaryEmbedding and Attention of opset 23 in place of their pieces.
    cache: input_ids follow `past` tokens, whose keys and values are inputs (past_key_values.0.key
    and so on); those of all are outputs (present.0.key), and logits are of the last token alone,
    [batch, 1, vocabulary]. sample: the next token is an output as well, next_ids, int64 [batch, 1],
    drawn at a `temperature` (0: the likeliest) from a `seed` (models/sampling.py). bits: of the
    weights of projections, 4 or 8 (MatMulNBits); 0 leaves them in dtype.
    """
    opset = 23 if modern else 18 if sample else 17
    writer = Writer("llama", dtype, seed=seed, opset=opset, bits=bits)
    dims: tuple[Dim, Dim] = (batch or "batch", sequence or "sequence")
    shape = _Shape(*dims, hidden, heads, kv_heads, intermediate)
    input_ids = writer.input("input_ids", dims, "int64")
    with writer.scope("model"):
        with writer.scope("embed_tokens"):
            # Unit rows, so that the first residual is no smaller than what is added to it.
            table = writer.weight("weight", (vocabulary, hidden), 1)
            x = writer.op("Gather", table, input_ids, axis=0)
        with writer.scope("rotary_emb"):
            before = [_cache(writer, index, shape) for index in range(layers)] if cache else []
            past = nn.size_of(writer, before[0].key, 2) if cache else ""
            places = _places(writer, input_ids, shape.sequence, past)
            rotary = _rotary(writer, places, shape.head_dim, theta, modern)
        mask = "" if modern else _causal_mask(writer, places, past)
        for index in range(layers):
            with writer.scope(f"layers.{index}"):
                own = before[index] if cache else None
                x = _layer(writer, x, rotary, mask, shape, modern, own)
        if cache:
            x = writer.op(
                "Slice", x, *(writer.integers([i]) for i in (-1, 2**63 - 1, 1))
            )  # fmt: skip
        x = _rms_norm(writer, x, "norm", hidden, modern)
    logits = nn.projection(writer, x, "lm_head", hidden, vocabulary)
    rows: tuple[Dim, Dim] = (dims[0], 1) if cache else dims
    writer.output("logits", logits, (*rows, vocabulary))
    if sample:
        following = sampled(writer, "logits", places, vocabulary)
        writer.output("next_ids", following, (dims[0], 1), "int64")
    return writer.model()


tiny_llama = partial(
    llama, layers=4, hidden=256, heads=8, kv_heads=2, intermediate=704, vocabulary=4096
)


def _layer(
    writer: Writer, x: Value, rotary: _Rotary, mask: Value, shape: _Shape, modern: bool,
    cache: _Cache | None,
) -> Value:  # fmt: skip
    """Attention and feed-forward, each behind a norm. x: [batch, sequence, hidden]."""
    normed = _rms_norm(writer, x, "input_layernorm", shape.hidden, modern)
    with writer.scope("self_attn"):
        if modern:
            context = _modern_attention(writer, normed, rotary, shape, cache)
        else:
            context = _attention(writer, normed, rotary, mask, shape, cache)
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
        if writer.opset < 18:
            mean = writer.op("ReduceMean", square, axes=[-1], keepdims=1)
        else:
            mean = writer.op("ReduceMean", square, writer.integers([-1]), keepdims=1)
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


def _attention(
    writer: Writer, x: Value, rotary: _Rotary, mask: Value, shape: _Shape, cache: _Cache | None
) -> Value:
    """Causal attention in its pieces. x and result: [batch, sequence, hidden]."""
    query, key, value = _qkv(writer, x, shape)
    query = _rotate(writer, query, rotary, shape.head_dim)
    key = _rotate(writer, key, rotary, shape.head_dim)
    if cache is not None:
        key = _present(writer, writer.op("Concat", cache.key, key, axis=2), cache, "key", shape)
        value = writer.op("Concat", cache.value, value, axis=2)
        value = _present(writer, value, cache, "value", shape)
    key = _repeat_heads(writer, key, shape)
    scores = nn.attention_scores(writer, query, key, shape.head_dim)
    weights = writer.op("Softmax", writer.op("Add", scores, mask), axis=-1)
    context = writer.op("MatMul", weights, _repeat_heads(writer, value, shape))
    return nn.merge_heads(writer, context, shape.hidden)


def _modern_attention(
    writer: Writer, x: Value, rotary: _Rotary, shape: _Shape, cache: _Cache | None
) -> Value:
    """Causal attention as one node. x and result: [batch, sequence, hidden]."""
    query, key, value = _qkv(writer, x, shape)
    query, key = (_modern_rotate(writer, part, rotary, shape) for part in (query, key))
    if cache is None:
        context = writer.op("Attention", query, key, value, is_causal=1)
        return nn.merge_heads(writer, context, shape.hidden)
    context, *present = writer.ops(
        "Attention", query, key, value, "", cache.key, cache.value, outputs=3, is_causal=1
    )
    for name, made in zip(("key", "value"), present, strict=True):
        _present(writer, made, cache, name, shape)
    return nn.merge_heads(writer, context, shape.hidden)


def _cache(writer: Writer, index: int, shape: _Shape) -> _Cache:
    """The inputs of one layer: keys and values of the tokens before."""
    dims = (shape.batch, shape.kv_heads, "past", shape.head_dim)
    key, value = (
        writer.input(f"past_key_values.{index}.{name}", dims) for name in ("key", "value")
    )
    return _Cache(index, key, value)


def _present(writer: Writer, value: Value, cache: _Cache, name: str, shape: _Shape) -> Value:
    """A result of the node written last, as an output."""
    label = f"present.{cache.layer}.{name}"
    writer.output(label, value, (shape.batch, shape.kv_heads, "total", shape.head_dim))
    return label


def _places(writer: Writer, input_ids: Value, sequence: Dim, past: Value) -> Value:
    """0, 1, 2, ..., behind those of the past: int64 [sequence]. past: how many, int64 [1]."""
    if past:
        start = writer.op("Squeeze", past, writer.integers([0]))
        length = writer.op("Gather", writer.op("Shape", input_ids), writer.index(1), axis=0)
        return writer.op("Range", start, writer.op("Add", start, length), writer.index(1))
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


def _causal_mask(writer: Writer, places: Value, past: Value) -> Value:
    """[1, 1, sequence, keys]: 0 where a key is not after its query, else the lowest number."""
    rows = writer.op("Unsqueeze", places, writer.integers([1]))
    columns = places
    if past:
        length = writer.op("Add", past, writer.op("Shape", places))
        end = writer.op("Squeeze", length, writer.integers([0]))
        columns = writer.op("Range", writer.index(0), end, writer.index(1))
    columns = writer.op("Unsqueeze", columns, writer.integers([0]))
    seen = writer.op("LessOrEqual", columns, rows)
    square = writer.op("Where", seen, writer.scalar(0.0), writer.scalar(writer.lowest()))
    return writer.op("Unsqueeze", square, writer.integers([0, 1]))
