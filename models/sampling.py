"""The next token, drawn in the graph: the largest logit plus Gumbel noise (Gumbel 1954).

The noise is a hash of seed, position, row and token, so that a run draws the same again, wherever
it runs.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from models.writer import Value, Writer


def sampled(writer: Writer, logits: Value, places: Value, vocabulary: int) -> Value:
    """A token for each row of logits [batch, 1, vocabulary]: int64 [batch, 1].

    New inputs: temperature, float32, and seed, int64; a temperature of 0 takes the likeliest.
    places: of the tokens that were read, int64 [sequence]. Needs opset 18.
    """
    with writer.scope("sampling"):
        temperature = writer.input("temperature", (), "float32")
        seed = writer.op("Cast", writer.input("seed", (), "int64"), to=TensorProto.UINT32)
        wide = writer.op("Cast", logits, to=TensorProto.FLOAT)
        place = writer.op("Gather", places, writer.index(-1), axis=0)
        place = writer.op("Cast", place, to=TensorProto.UINT32)
        mixed = _mixed(writer, writer.op("Add", _mixed(writer, seed), place))
        tokens = writer.constant("tokens", np.arange(vocabulary, dtype=np.uint32))
        batch = writer.op("Shape", logits, end=1)
        batch = writer.op("Squeeze", batch, writer.integers([0]))
        rows = writer.op("Range", writer.index(0), batch, writer.index(1))
        rows = writer.op("Cast", rows, to=TensorProto.UINT32)
        rows = _mixed(writer, writer.op("Add", rows, mixed))
        rows = writer.op("Unsqueeze", rows, writer.integers([1, 2]))
        bits = _mixed(writer, writer.op("BitwiseXor", _mixed(writer, rows), tokens))
        high = writer.op("BitShift", bits, _word(writer, 9), direction="RIGHT")  # 23 bits
        uniform = writer.op("Cast", high, to=TensorProto.FLOAT)
        uniform = writer.op("Add", uniform, writer.scalar(0.5, "float32"))
        uniform = writer.op("Mul", uniform, writer.scalar(2.0**-23, "float32"))
        noise = writer.op("Neg", writer.op("Log", writer.op("Neg", writer.op("Log", uniform))))
        scores = writer.op("Add", wide, writer.op("Mul", noise, temperature))
        return writer.op("ArgMax", scores, axis=2, keepdims=0)


def _mixed(writer: Writer, x: Value) -> Value:
    """uint32 numbers, each bit of which depends on all of x: the finaliser of MurmurHash3."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 0)):
        x = writer.op(
            "BitwiseXor", x, writer.op("BitShift", x, _word(writer, shift), direction="RIGHT")
        )
        if factor:
            x = writer.op("Mul", x, _word(writer, factor))
    return x


def _word(writer: Writer, value: int) -> Value:
    return writer.constant(f"uint32_{value}", np.array(value, np.uint32))
