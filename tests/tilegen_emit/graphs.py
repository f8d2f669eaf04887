"""Small graphs for the emitters' tests, built from primitives."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, TensorType, Value

Array = np.ndarray[Any, Any]


class Model:
    """A graph with random feeds: `x = m.input(shape)`, `m.b` builds, `m.output(y)`."""

    def __init__(self, dtype: DType = dtypes.f32, seed: int = 0) -> None:
        self.graph = Graph("test")
        self.b = Builder(self.graph)
        self.dtype = dtype
        self.feeds: dict[str, Array] = {}
        self.random = np.random.default_rng(seed)

    def array(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(self.dtype.numpy)

    def input(self, *shape: int) -> Value:
        name = f"x{len(self.graph.inputs)}"
        self.feeds[name] = self.array(*shape)
        return self.graph.add_input(name, TensorType(self.dtype, shape))

    def integers(self, low: int, high: int, *shape: int, dtype: DType = dtypes.i64) -> Value:
        name = f"x{len(self.graph.inputs)}"
        self.feeds[name] = self.random.integers(low, high, shape).astype(dtype.numpy)
        return self.graph.add_input(name, TensorType(dtype, shape))

    def weight(self, *shape: int) -> Value:
        return self.b.constant(self.array(*shape))

    def output(self, *values: Value) -> None:
        for value in values:
            self.graph.output_names.append(f"y{len(self.graph.outputs)}")
            self.graph.outputs.append(value)

    # compositions -------------------------------------------------------------------------------

    def row(self, op: str, x: Value) -> Value:
        """A reduction over the last axis, stretched back over it."""
        last = x.type.rank - 1
        kept = self.b.emit(op, x, axes=(last,))
        kept = self.b.emit("reshape", kept, shape=(*x.shape[:-1], 1))
        return self.b.emit("broadcast", kept, shape=x.shape, axes=tuple(range(x.type.rank)))

    def softmax(self, x: Value) -> Value:
        e = self.b.emit("exp", self.b.emit("sub", x, self.row("reduce_max", x)))
        return self.b.emit("div", e, self.row("reduce_sum", e))

    def norm(self, x: Value) -> Value:
        scale = 1.0 / x.shape[-1]
        centred = self.b.emit("sub", x, self.b.map("mul", self.row("reduce_sum", x), scale))
        square = self.b.emit("mul", centred, centred)
        variance = self.b.map("mul", self.row("reduce_sum", square), scale)
        return self.b.emit("mul", centred, self.b.emit("rsqrt", self.b.map("add", variance, 1e-5)))

    def dot(
        self, x: Value, y: Value, contract: tuple[int, int], batch: tuple[int, ...] = ()
    ) -> Value:
        return self.b.emit(
            "dot_general", x, y, lhs_contract=(contract[0],), rhs_contract=(contract[1],),
            lhs_batch=batch, rhs_batch=batch,
        )  # fmt: skip

    def heads(self, x: Value, heads: int, repeat: int = 1) -> Value:
        """[B, L, heads * D] to [B, heads * repeat, L, D]."""
        batch, length, width = x.shape
        split = self.b.reshape(x, (batch, length, heads, width // heads))
        split = self.b.transpose(split, (0, 2, 1, 3))
        if repeat == 1:
            return split
        shape = (batch, heads, repeat, length, width // heads)
        split = self.b.reshape(split, (batch, heads, 1, length, width // heads))
        split = self.b.emit("broadcast", split, shape=shape, axes=(0, 1, 2, 3, 4))
        return self.b.reshape(split, (batch, heads * repeat, length, width // heads))
