"""Random graphs through partition, emitters and interpreter, against the graph's own meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser.graph.ir import Value
from fuser.graph.passes import run_passes
from fuser.partition import partition
from tests.interpreted import TARGETS, check
from tests.tilegen_emit.graphs import Model

SIZES = (1, 2, 3, 5, 7, 8, 12, 16, 17, 33)


def ints(array: object) -> tuple[int, ...]:
    return tuple(int(item) for item in np.asarray(array).reshape(-1))


def elementwise(m: Model, x: Value, pool: list[Value]) -> Value:
    others = [value for value in pool if value.shape == x.shape]
    y = others[int(m.random.integers(len(others)))]
    return m.b.map(str(m.random.choice(["add", "mul", "sub", "max"])), m.b.map("tanh", x), y)


def bias(m: Model, x: Value, pool: list[Value]) -> Value:
    return m.b.map("add", x, m.weight(*x.shape[-1:]))


def transpose(m: Model, x: Value, pool: list[Value]) -> Value:
    return m.b.transpose(x, ints(m.random.permutation(x.type.rank)))


def reshape(m: Model, x: Value, pool: list[Value]) -> Value:
    size, dims = x.type.size, []
    for factor in (2, 2, 3, 5, 7, 11, 17):
        if size % factor == 0 and len(dims) < 3:
            dims.append(factor)
            size //= factor
    return m.b.reshape(x, ints(m.random.permutation([*dims, size])))


def cut(m: Model, x: Value, pool: list[Value]) -> Value:
    starts = ints([m.random.integers(0, max(1, dim // 2)) for dim in x.shape])
    strides = ints(m.random.choice([1, 1, 2], x.type.rank))
    return m.b.emit("slice", x, starts=starts, limits=x.shape, strides=strides)


def concat(m: Model, x: Value, pool: list[Value]) -> Value:
    axis = int(m.random.integers(x.type.rank))
    return m.b.emit("concat", x, m.b.map("mul", x, 2.0), axis=axis)


def fold(m: Model, x: Value, pool: list[Value]) -> Value:
    count = int(m.random.integers(1, x.type.rank + 1))
    axes = ints(np.sort(m.random.choice(x.type.rank, count, replace=False)))
    return m.b.emit(str(m.random.choice(["reduce_sum", "reduce_max"])), x, axes=axes)


def softmax(m: Model, x: Value, pool: list[Value]) -> Value:
    return m.softmax(x)


def product(m: Model, x: Value, pool: list[Value]) -> Value:
    columns = int(m.random.choice([1, 5, 16, 20]))
    y = m.dot(x, m.weight(x.shape[-1], columns), (x.type.rank - 1, 0))
    return m.b.map("mul", y, 0.3)


def pad(m: Model, x: Value, pool: list[Value]) -> Value:
    low, high = (ints(m.random.integers(-1, 2, x.type.rank)) for _ in range(2))
    return m.b.emit("pad", x, low=low, high=high, value=0.25)


def stretch(m: Model, x: Value, pool: list[Value]) -> Value:
    axes = tuple(range(1, x.type.rank + 1))
    return m.b.emit("broadcast", x, shape=(3, *x.shape), axes=axes)


def gather(m: Model, x: Value, pool: list[Value]) -> Value:
    axis = int(m.random.integers(x.type.rank))
    indices = m.integers(-x.shape[axis], x.shape[axis], 4)
    return m.b.emit("gather", x, indices, axis=axis)


def mask(m: Model, x: Value, pool: list[Value]) -> Value:
    if x.type.rank < 2:
        return x
    row, column = (m.b.iota(x.shape, x.type.rank - i) for i in (2, 1))
    return m.b.map("select", m.b.map("ge", row, column), x, 0.5)


def running(m: Model, x: Value, pool: list[Value]) -> Value:
    exclusive, reverse = (bool(flag) for flag in m.random.integers(0, 2, 2))
    axis = int(m.random.integers(x.type.rank))
    return m.b.emit("cumsum", m.b.map("tanh", x), axis=axis, exclusive=exclusive, reverse=reverse)


def pooling(m: Model, x: Value, pool: list[Value]) -> Value:
    window = ints(m.random.choice([1, 2], x.type.rank))
    return m.b.emit(
        "reduce_window", x, fn=str(m.random.choice(["max", "sum"])), window=window,
        strides=window, padding=((0, 1),) * len(window), dilation=(1,) * len(window),
    )  # fmt: skip


STEPS: tuple[Callable[[Model, Value, list[Value]], Value], ...] = (
    elementwise, elementwise, bias, transpose, reshape, cut, concat, fold, softmax, product, pad,
    stretch, gather, mask, running, pooling,
)  # fmt: skip


def random_model(seed: int) -> Model:
    """Three to fourteen random steps; the last value and perhaps one more are outputs."""
    m = Model(seed=seed)
    dims = ints(m.random.choice(SIZES, 3))
    pool = [m.input(*dims), m.input(*dims)]
    for _ in range(int(m.random.integers(3, 15))):
        x = pool[-1] if m.random.random() < 0.6 else pool[int(m.random.integers(len(pool)))]
        if x.type.rank == 0:
            continue
        y = STEPS[int(m.random.integers(len(STEPS)))](m, x, pool)
        if 0 < y.type.size <= 20000:
            pool.append(y)
    extra = pool[int(m.random.integers(2, len(pool)))] if len(pool) > 2 else pool[-1]
    m.output(*dict.fromkeys([m.b.map("tanh", pool[-1]), extra]))
    return m


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("seed", range(40))
def test_random_graph(seed: int, target: str) -> None:
    m = random_model(seed)
    regions = partition(run_passes(m.graph), TARGETS[target])
    check(regions, m.feeds, TARGETS[target], tolerance=1e-4)
