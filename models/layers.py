"""The pieces that several models share, spelled as exporters spell them."""

from __future__ import annotations

import math

import numpy as np

from models.writer import Dim, Value, Writer


def linear(writer: Writer, x: Value, name: str, inputs: int, outputs: int) -> Value:
    """MatMul and Add. x: [..., inputs]; result: [..., outputs]."""
    with writer.scope(name):
        weight = writer.weight("weight", (inputs, outputs), inputs, linear=True)
        product = writer.op("MatMul", x, weight)
        return writer.op("Add", writer.bias("bias", (outputs,)), product)


def projection(writer: Writer, x: Value, name: str, inputs: int, outputs: int) -> Value:
    """A linear layer without a bias. x: [..., inputs]; result: [..., outputs]."""
    with writer.scope(name):
        if writer.bits:
            return writer.coded_projection(x, "weight", inputs, outputs)
        weight = writer.weight("weight", (inputs, outputs), inputs, linear=True)
        return writer.op("MatMul", x, weight)


def layer_norm(writer: Writer, x: Value, name: str, size: int, epsilon: float) -> Value:
    """LayerNormalization over the last axis. x: [..., size]."""
    with writer.scope(name):
        gain, bias = writer.gain("weight", (size,)), writer.bias("bias", (size,))
        return writer.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=epsilon)


def gelu(writer: Writer, x: Value) -> Value:
    """x / 2 * (1 + erf(x / sqrt 2)), five nodes as TorchScript writes it."""
    error = writer.op("Erf", writer.op("Div", x, writer.scalar(math.sqrt(2.0))))
    product = writer.op("Mul", x, writer.op("Add", error, writer.scalar(1.0)))
    return writer.op("Mul", product, writer.scalar(0.5))


def gelu_tanh(writer: Writer, x: Value) -> Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    half = writer.op("Mul", x, writer.scalar(0.5))
    cube = writer.op("Mul", writer.op("Pow", x, writer.scalar(3.0)), writer.scalar(0.044715))
    inner = writer.op("Mul", writer.op("Add", x, cube), writer.scalar(math.sqrt(2.0 / math.pi)))
    return writer.op("Mul", half, writer.op("Add", writer.op("Tanh", inner), writer.scalar(1.0)))


def head_size(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ValueError(f"hidden={hidden} is not a multiple of heads={heads}")
    return hidden // heads


def split_heads(writer: Writer, x: Value, heads: int, head_dim: int) -> Value:
    """[batch, sequence, heads * head_dim] -> [batch, heads, sequence, head_dim]."""
    split = writer.op("Reshape", x, writer.integers([0, 0, heads, head_dim]))
    return writer.op("Transpose", split, perm=[0, 2, 1, 3])


def merge_heads(writer: Writer, x: Value, hidden: int) -> Value:
    """[batch, heads, sequence, head_dim] -> [batch, sequence, hidden]."""
    rows = writer.op("Transpose", x, perm=[0, 2, 1, 3])
    return writer.op("Reshape", rows, writer.integers([0, 0, hidden]))


def attention_scores(writer: Writer, query: Value, key: Value, head_dim: int) -> Value:
    """query key^T / sqrt(head_dim). query, key: [batch, heads, sequence, head_dim]."""
    transposed = writer.op("Transpose", key, perm=[0, 1, 3, 2])
    product = writer.op("MatMul", query, transposed)
    return writer.op("Div", product, writer.scalar(math.sqrt(head_dim)))


def padding_mask(writer: Writer, attention_mask: Value) -> Value:
    """int64 [batch, sequence] of ones and zeros -> [batch, 1, 1, sequence]: 0 or the lowest number.

    It is added to the scores.
    """
    mask = writer.op("Unsqueeze", attention_mask, writer.integers([1, 2]))
    kept = writer.op("Cast", mask, to=writer.elem_type)
    dropped = writer.op("Sub", writer.scalar(1.0), kept)
    return writer.op("Mul", dropped, writer.scalar(writer.lowest()))


def size_of(writer: Writer, x: Value, axis: int) -> Value:
    """The length of one axis as an int64 vector of one element, read at run time."""
    return writer.op("Gather", writer.op("Shape", x), writer.integers([axis]), axis=0)


def leading_rows(writer: Writer, table: Value, rows: Dim, like: Value, axis: int) -> Value:
    """The first `rows` rows of axis 1 of a table; where `rows` is symbolic, as many as `like` has.

    table: [1, positions, ...]. like: any value whose `axis` is that long.
    """
    end = writer.integers([rows]) if isinstance(rows, int) else size_of(writer, like, axis)
    return writer.op("Slice", table, writer.integers([0]), end, writer.integers([1]))


def position_ids(writer: Writer, positions: int, sequence: Dim, input_ids: Value) -> Value:
    """0, 1, 2, ...: int64 [1, sequence], cut from a table when the length is symbolic."""
    if isinstance(sequence, int):
        if sequence > positions:
            raise ValueError(f"sequence={sequence} is longer than positions={positions}")
        return writer.constant("position_ids", np.arange(sequence, dtype=np.int64)[None])
    table = writer.constant("position_ids", np.arange(positions, dtype=np.int64)[None])
    return leading_rows(writer, table, sequence, input_ids, 1)
