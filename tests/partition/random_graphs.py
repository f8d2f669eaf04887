"""Random graphs of every family of primitives, small enough to evaluate in milliseconds."""

from __future__ import annotations

from math import prod

import numpy as np

from fuser import dtypes
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.ops.registry import build

UNARY = ("neg", "abs", "tanh", "exp", "erf")
BINARY = ("add", "sub", "mul", "max")


class RandomGraph:
    """Grows a graph one random step at a time; every value stays small in size and in magnitude."""

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"random_{seed}")
        rows, columns = int(self.rng.integers(2, 7)), int(self.rng.integers(2, 9))
        for name, shape in (
            ("x", (2, rows, columns)),
            ("y", (2, rows, columns)),
            ("z", (columns,)),
        ):
            self.graph.add_input(name, TensorType(dtypes.f32, shape))
        self.values: list[Value] = list(self.graph.inputs)
        moves = (
            self.unary, self.binary, self.binary, self.reduce, self.softmax, self.reshape,
            self.transpose, self.slice, self.concat, self.dot, self.dot, self.broadcast,
            self.gather, self.pad, self.window, self.normalise, self.residual, self.attention,
            self.parallel, self.self_product,
        )  # fmt: skip
        for _ in range(steps):
            moves[int(self.rng.integers(len(moves)))]()
        self.finish()

    def finish(self) -> None:
        read = {value for node in self.graph.nodes for value in node.inputs}
        outputs = [v for v in self.values if v not in read] or [self.values[-1]]
        extra = self.pick()
        self.graph.outputs = [*outputs, extra]
        self.graph.output_names = [f"out{i}" for i in range(len(self.graph.outputs))]

    def pick(self) -> Value:
        """A value, mostly one of the latest."""
        low = max(0, len(self.values) - 8) if self.rng.random() < 0.7 else 0
        return self.values[int(self.rng.integers(low, len(self.values)))]

    def keep(self, value: Value) -> Value:
        if 0 < prod(value.shape) <= 4096 and value.type.rank <= 5:
            self.values.append(value)
        return value

    def unary(self) -> None:
        x = self.pick()
        op = UNARY[int(self.rng.integers(len(UNARY)))]
        if op == "exp":
            x = build(self.graph, "tanh", x)
        self.keep(build(self.graph, op, x))

    def binary(self) -> None:
        x = self.pick()
        same = [v for v in self.values if v.shape == x.shape]
        y = same[int(self.rng.integers(len(same)))]
        op = BINARY[int(self.rng.integers(len(BINARY)))]
        value = build(self.graph, op, x, y)
        self.keep(build(self.graph, "tanh", value) if op == "mul" else value)

    def axes(self, x: Value) -> tuple[int, ...]:
        count = int(self.rng.integers(1, x.type.rank + 1))
        return tuple(sorted(self.rng.permutation(x.type.rank)[:count].tolist()))

    def reduce(self) -> None:
        x = self.pick()
        if x.type.rank:
            op = ("reduce_sum", "reduce_max")[int(self.rng.integers(2))]
            self.keep(build(self.graph, op, x, axes=self.axes(x)))

    def restored(self, row: Value, x: Value, axes: tuple[int, ...]) -> Value:
        kept = tuple(a for a in range(x.type.rank) if a not in axes)
        return build(self.graph, "broadcast", row, shape=x.shape, axes=kept)

    def softmax(self) -> None:
        x = self.pick()
        if not x.type.rank:
            return
        axes = (int(self.rng.integers(x.type.rank)),)
        peak = build(self.graph, "reduce_max", x, axes=axes)
        powers = build(self.graph, "exp", build(self.graph, "sub", x, self.restored(peak, x, axes)))
        total = build(self.graph, "reduce_sum", powers, axes=axes)
        self.keep(build(self.graph, "div", powers, self.restored(total, x, axes)))

    def normalise(self) -> None:
        x = self.pick()
        if not x.type.rank:
            return
        axes = self.axes(x)
        mean = build(self.graph, "reduce_sum", x, axes=axes)
        centred = build(self.graph, "sub", x, self.restored(mean, x, axes))
        square = build(self.graph, "mul", centred, centred)
        spread = build(self.graph, "reduce_sum", square, axes=axes)
        one = self.graph.constant(np.float32(1.0))
        wide = build(self.graph, "broadcast", one, shape=spread.shape, axes=())
        scale = build(self.graph, "rsqrt", build(self.graph, "add", spread, wide))
        self.keep(build(self.graph, "mul", centred, self.restored(scale, x, axes)))

    def residual(self) -> None:
        x = self.pick()
        self.keep(build(self.graph, "add", x, build(self.graph, "tanh", x)))

    def reshape(self) -> None:
        x = self.pick()
        shape = list(self.rng.permutation(np.array(x.shape or (1,))).tolist())
        if self.rng.random() < 0.5:
            shape = [prod(shape)]
        elif self.rng.random() < 0.5:
            shape.insert(int(self.rng.integers(len(shape) + 1)), 1)
        self.keep(build(self.graph, "reshape", x, shape=tuple(shape)))

    def transpose(self) -> None:
        x = self.pick()
        self.keep(
            build(
                self.graph, "transpose", x, perm=tuple(self.rng.permutation(x.type.rank).tolist())
            )
        )

    def slice(self) -> None:
        x = self.pick()
        starts, limits = [], []
        for size in x.shape:
            start = int(self.rng.integers(0, size))
            starts.append(start)
            limits.append(int(self.rng.integers(start + 1, size + 1)))
        strides = tuple(int(s) for s in self.rng.integers(1, 3, x.type.rank))
        self.keep(
            build(
                self.graph, "slice", x, starts=tuple(starts), limits=tuple(limits), strides=strides
            )
        )

    def concat(self) -> None:
        x = self.pick()
        if x.type.rank:
            same = [v for v in self.values if v.shape == x.shape]
            y = same[int(self.rng.integers(len(same)))]
            self.keep(build(self.graph, "concat", x, y, axis=int(self.rng.integers(x.type.rank))))

    def pad(self) -> None:
        x = self.pick()
        if not x.type.rank:
            return
        low, high = ([int(v) for v in self.rng.integers(0, 2, x.type.rank)] for _ in range(2))
        self.keep(build(self.graph, "pad", x, low=tuple(low), high=tuple(high), value=0.5))

    def broadcast(self) -> None:
        x = self.pick()
        shape = (int(self.rng.integers(1, 4)), *x.shape)
        axes = tuple(range(1, len(shape)))
        self.keep(build(self.graph, "broadcast", x, shape=shape, axes=axes))

    def gather(self) -> None:
        x = self.pick()
        if x.type.rank:
            axis = int(self.rng.integers(x.type.rank))
            shape = tuple(int(v) for v in self.rng.integers(1, 4, int(self.rng.integers(0, 3))))
            indices = self.graph.constant(self.rng.integers(0, x.shape[axis], shape))
            self.keep(build(self.graph, "gather", x, indices, axis=axis))

    def window(self) -> None:
        x = self.pick()
        if x.type.rank != 3:
            return
        self.keep(
            build(
                self.graph, "reduce_window", x, fn="max", window=(1, 1, 2), strides=(1, 1, 1),
                padding=((0, 0), (0, 0), (1, 0)), dilation=(1, 1, 1),
            )
        )  # fmt: skip

    def dot(self) -> None:
        x = self.pick()
        if not x.type.rank:
            return
        depth = x.shape[-1]
        shape = (depth, int(self.rng.integers(1, 9)))
        scale = 1 / np.sqrt(depth)
        weights = self.graph.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))
        self.keep(
            build(
                self.graph, "dot_general", x, weights, lhs_contract=(x.type.rank - 1,),
                rhs_contract=(0,), lhs_batch=(), rhs_batch=(),
            )
        )  # fmt: skip

    def scaled(self, x: Value) -> Value:
        scale = self.graph.constant(np.float32(self.rng.choice([0.5, 0.25, 2.0])))
        wide = build(self.graph, "broadcast", scale, shape=x.shape, axes=())
        return build(self.graph, "mul", x, wide)

    def weights(self, depth: int, width: int) -> Value:
        array = self.rng.standard_normal((depth, width)) / np.sqrt(depth)
        return self.graph.constant(array.astype(np.float32))

    def linear(self, x: Value, width: int) -> Value:
        return build(
            self.graph, "dot_general", x, self.weights(x.shape[-1], width),
            lhs_contract=(x.type.rank - 1,), rhs_contract=(0,), lhs_batch=(), rhs_batch=(),
        )  # fmt: skip

    def parallel(self) -> None:
        """Products on one operand; sometimes they meet again."""
        x = self.pick()
        if not x.type.rank:
            return
        width = int(self.rng.integers(1, 6))
        gate, up = self.linear(x, width), self.linear(x, width)
        if self.rng.random() < 0.5:
            self.keep(build(self.graph, "mul", build(self.graph, "tanh", gate), up))
        else:
            bias = self.graph.constant(self.rng.standard_normal(width).astype(np.float32))
            last = (gate.type.rank - 1,)
            wide = build(self.graph, "broadcast", bias, shape=gate.shape, axes=last)
            self.keep(build(self.graph, "add", gate, wide))
            self.keep(up)

    def self_product(self) -> None:
        """x times its own transpose: [b, r, c] -> [b, r, r]."""
        x = self.pick()
        if x.type.rank == 3:
            product = self.batched(x, x, 2)
            self.keep(build(self.graph, "tanh", product))

    def batched(self, lhs: Value, rhs: Value, axis: int) -> Value:
        return build(
            self.graph, "dot_general", lhs, rhs, lhs_contract=(2,), rhs_contract=(axis,),
            lhs_batch=(0,), rhs_batch=(0,),
        )  # fmt: skip

    def attention(self) -> None:
        """Self-attention with random projections, scales and masks."""
        x = self.pick()
        if x.type.rank != 3:
            return
        width = int(self.rng.integers(1, 6))
        q, k, v = (self.linear(x, width) for _ in range(3))
        if self.rng.random() < 0.5:
            q = self.scaled(q)
        scores = self.batched(q, k, 2)
        if self.rng.random() < 0.5:
            scores = self.scaled(scores)
        if self.rng.random() < 0.5:
            rows, columns = (
                build(self.graph, "iota", shape=scores.shape, axis=axis, dtype=dtypes.i32)
                for axis in (1, 2)
            )
            seen = build(self.graph, "le", columns, rows)
            low = self.graph.constant(np.float32(-1e9))
            wide = build(self.graph, "broadcast", low, shape=scores.shape, axes=())
            scores = build(self.graph, "select", seen, scores, wide)
        axes = (2,)
        peak = build(self.graph, "reduce_max", scores, axes=axes)
        centred = build(self.graph, "sub", scores, self.restored(peak, scores, axes))
        powers = build(self.graph, "exp", centred)
        total = build(self.graph, "reduce_sum", powers, axes=axes)
        weights = build(self.graph, "div", powers, self.restored(total, scores, axes))
        self.keep(self.batched(weights, v, 1))
        if self.rng.random() < 0.1:
            self.keep(weights)


def random_graph(seed: int, steps: int) -> Graph:
    graph = RandomGraph(seed, steps).graph
    graph.verify()
    return graph
