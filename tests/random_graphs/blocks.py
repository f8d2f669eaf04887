"""Steps of edition 2 that are blocks of models: attention in its many forms, rotated heads, deep
products, long rows, convolutions of many channels. A few drawings begin with one."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.ir import Value
from tests.random_graphs.draw import Drawing, Move, Refused
from tests.random_graphs.moves import activation, quantised_leaf, restored, softmax_of
from tests.random_graphs.patterns import row_of, section_of, turned


def some(d: Drawing, dtype: DType, *shape: int, scale: float = 1.0, fixed: bool = False) -> Value:
    """Data of a size, as an input or a constant."""
    rng = np.random.default_rng(d.random.getrandbits(32))
    array = (rng.standard_normal(shape) * scale).astype(dtype.numpy)
    return d.constant(array) if fixed else d.feed(array)


def product(d: Drawing, a: Value, b: Value, contract: tuple[int, int], batch: int = 0) -> Value:
    axes = tuple(range(batch))
    return d.emit("dot_general", a, b, lhs_contract=(contract[0],), rhs_contract=(contract[1],),
                  lhs_batch=axes, rhs_batch=axes)  # fmt: skip


def spread_along(d: Drawing, x: Value, like: Value, *axes: int) -> Value:
    return d.stretch(x, like.shape, axes)


# attention ----------------------------------------------------------------------------------------


def scored(d: Drawing, scores: Value) -> Value:
    """Caps, biases and masks on scores [b, h, q, k], as models have them."""
    _, heads, queries, keys = scores.shape
    if d.random.random() < 0.6:
        scores = d.emit("mul", scores, d.number(0.25, scores))
    if d.random.random() < 0.25:  # a soft cap
        inner = d.emit("tanh", d.emit("mul", scores, d.number(0.2, scores)))
        scores = d.emit("mul", inner, d.number(5.0, scores))
        if d.random.random() < 0.3:
            scores = d.emit("min", scores, d.number(4.0, scores))
    kind = d.random.choice(("none", "keys", "tiles", "heads"))
    if kind == "keys":
        bias = some(d, scores.dtype, keys, fixed=d.random.random() < 0.5)
        scores = d.emit("add", scores, spread_along(d, bias, scores, 3))
    elif kind == "tiles":
        bias = some(d, scores.dtype, queries, keys)
        scores = d.emit("add", scores, spread_along(d, bias, scores, 2, 3))
    elif kind == "heads":
        bias = some(d, scores.dtype, heads)
        scores = d.emit(d.random.choice(("add", "sub")), scores, spread_along(d, bias, scores, 1))
    kind = d.random.choice(("none", "causal", "window", "added", "table", "input",
                            "computed"))  # fmt: skip
    low = d.number(-30000.0 if scores.dtype is dtypes.f16 else -1e9, scores)
    if kind in ("causal", "window", "added"):
        rows, columns = (
            d.emit("iota", shape=scores.shape, axis=axis, dtype=dtypes.i32) for axis in (2, 3)
        )
        if d.random.random() < 0.5 and keys > queries:
            rows = d.emit("add", rows, d.number(keys - queries, rows))
        seen = d.emit("le", columns, rows)
        if kind == "window":
            near = d.emit("add", columns, d.number(d.random.choice((1, 3, 20)), columns))
            seen = d.emit("logical_and", seen, d.emit("gt", near, rows))
        if kind == "added":
            return d.emit("add", scores, d.emit("select", seen, d.number(0.0, scores), low))
        if d.random.random() < 0.2:
            return d.emit("select", d.emit("logical_not", seen), low, scores)
        return d.emit("select", seen, scores, low)
    if kind == "table":
        table = d.constant(np.tril(np.ones((queries, keys), bool), d.random.choice((0, 0, 2))))
        return d.emit("select", spread_along(d, table, scores, 2, 3), scores, low)
    if kind == "computed":
        array = d.array(dtypes.f32, (queries, keys))
        array[:, 0] = 1
        mask = d.emit("gt", d.feed(array), d.number(0.0, d.feed(array)))
        return d.emit("select", spread_along(d, mask, scores, 2, 3), scores, low)
    if kind == "input":
        array = d.array(dtypes.bool_, (keys,))
        array[0] = True
        return d.emit("select", spread_along(d, d.feed(array), scores, 3), scores, low)
    return scores


def attend(d: Drawing) -> list[Value]:
    """Attention over given queries, keys and values; few queries, many keys, shared heads."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f32, dtypes.f16, dtypes.bf16))
    batch, heads = d.random.choice((1, 2)), d.random.choice((1, 2, 4))
    queries = d.random.choice((1, 1, 2, 5, 17, 33, 65))
    keys = d.random.choice((queries, queries, 1, 16, 33, 100, 257))
    if queries == 1 and d.random.random() < 0.3:
        keys = d.random.choice((600, 1000))
    width, columns = (d.random.choice((2, 4, 8, 16, 17)) for _ in range(2))
    if d.random.random() < 0.04:
        columns = 600  # wider than a kernel keeps
        batch = heads = 1
        queries, keys = min(queries, 5), min(keys, 33)
    d.most_elements = max(d.most_elements, 1 << 16)
    shared = heads > 1 and d.random.random() < 0.4

    def side(size: int, last: int) -> Value:
        if not shared:
            return some(d, dtype, batch, heads, size, last, scale=0.7)
        x = some(d, dtype, batch, size, last, scale=0.7)
        return d.stretch(x, (batch, heads, size, last), (0, 2, 3))

    q = some(d, dtype, batch, heads, queries, width, scale=0.7)
    if d.random.random() < 0.3:  # computed by the kernel that reads it, or not
        q = d.emit(d.random.choice(("tanh", "neg")), q)
    k, v = side(keys, width), side(keys, columns)
    if d.random.random() < 0.2:  # factors on both sides
        q = d.emit("mul", q, d.number(0.5, q))
        k = d.emit("mul", k, d.number(0.75, k))
    if d.random.random() < 0.3:
        k = d.emit("transpose", k, perm=(0, 1, 3, 2))
        scores = product(d, q, k, (3, 2), 2)
    else:
        scores = product(d, q, k, (3, 3), 2)
    merged = not shared and d.random.random() < 0.25  # heads beside batches in the products
    if merged:
        flat = (batch * heads, queries, keys)
        scores = d.emit("reshape", scores, shape=flat)
        scores = d.emit("reshape", scores, shape=(batch, heads, queries, keys))
    scores = scored(d, scores)
    made: list[Value] = []
    weights = softmax_of(d, scores, (3,))
    if d.random.random() < 0.12:  # another reduction between the two products
        total = d.emit("reduce_max", weights, axes=(3,))
        weights = d.emit("div", weights, restored(d, total, weights, (3,)))
    if d.random.random() < 0.2:
        weights = d.emit("select", d.emit("is_nan", weights), d.number(0.0, weights), weights)
    if d.random.random() < 0.12:
        made.append(d.random.choice((weights, scores)))
    if d.random.random() < 0.06 and not shared and queries * keys * columns <= 4096:
        v = some(d, dtype, batch, heads, queries, keys, columns, scale=0.7)  # each its own
        return [*made, product(d, weights, v, (3, 3), 3)]
    if merged:
        weights = d.emit("reshape", weights, shape=(batch * heads, queries, keys))
        v = d.emit("reshape", v, shape=(batch * heads, keys, columns))
        y = product(d, weights, v, (2, 1), 1)
        return [*made, d.emit("reshape", y, shape=(batch, heads, queries, columns))]
    y = product(d, weights, v, (3, 2), 2)
    if d.random.random() < 0.5:
        y = d.emit("transpose", y, perm=(0, 2, 1, 3))
        y = d.emit("reshape", y, shape=(batch, queries, heads * columns))
    elif d.random.random() < 0.3:
        made.append(row_of(d, y, (3,)))
    return [*made, y]


def rotated_heads(d: Drawing) -> list[Value]:
    """Projected heads that are rotated by tables, beside others, and what reads them."""
    batch, length = d.random.choice((1, 2)), d.random.choice((1, 3, 7, 16))
    heads, size = d.random.choice((1, 2, 3)), d.random.choice((2, 4, 8, 16))
    depth = d.random.choice((5, 8, 17, 32))
    x = some(d, dtypes.f32, batch, length, depth)
    tables = [some(d, dtypes.f32, length, size, fixed=d.random.random() < 0.5) for _ in range(2)]
    first = d.random.random() < 0.5  # rotated before heads go outside
    bias = d.random.random() < 0.3

    def heads_of(count: int) -> Value:
        weights = some(d, dtypes.f32, depth, count * size, scale=depth**-0.5, fixed=True)
        y = product(d, x, weights, (2, 0))
        if bias:
            y = d.emit("add", y, spread_along(d, some(d, dtypes.f32, count * size, fixed=True),
                                              y, 2))  # fmt: skip
        return d.emit("reshape", y, shape=(batch, length, count, size))

    def outside(y: Value) -> Value:
        return d.emit("transpose", y, perm=(0, 2, 1, 3))

    def rotate(y: Value) -> Value:
        axis = 1 if first else 2
        y = y if first else outside(y)
        low = section_of(d, y, 3, (0, size // 2, 1))
        high = section_of(d, y, 3, (size // 2, size, 1))
        around = d.emit("concat", d.emit("neg", high), low, axis=3)
        parts = [
            d.emit("mul", part, spread_along(d, table, y, axis, 3))
            for part, table in zip((y, around), tables, strict=True)
        ]
        y = d.emit("add", *parts)
        return outside(y) if first else y

    q, k = rotate(heads_of(heads)), rotate(heads_of(heads))
    v = outside(heads_of(heads))
    if d.random.random() < 0.2:
        return [q, k, v]
    scores = scored(d, product(d, q, k, (3, 3), 2))
    y = product(d, softmax_of(d, scores, (3,)), v, (3, 2), 2)
    return [y] if d.random.random() < 0.7 else [y, k]


# products -----------------------------------------------------------------------------------------


def turned_pair(d: Drawing) -> list[Value]:
    """Two products that are mixed, and joined again by a concat."""
    rows, depth, width = (d.random.choice((2, 5, 8, 17, 33)) for _ in range(3))
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.bf16))
    x = some(d, dtype, rows, depth)
    a, b = (
        product(d, x, some(d, dtype, depth, width, scale=depth**-0.5, fixed=True), (1, 0))
        for _ in range(2)
    )
    c, s = (spread_along(d, some(d, dtype, width), a, 1) for _ in range(2))
    low = d.emit("sub", d.emit("mul", a, c), d.emit("mul", b, s))
    high = d.emit("add", d.emit("mul", b, c), d.emit("mul", a, s))
    parts = [low, high] if d.random.random() < 0.7 else [high, low]
    return [d.emit("concat", *parts, axis=d.random.choice((0, 1, 1)))]


def deep_product(d: Drawing) -> list[Value]:
    """A product of many steps, with a prologue or an epilogue."""
    m, k = d.random.choice((1, 16, 65, 128, 150)), d.random.choice((512, 768, 1024, 1026, 2048))
    n = d.random.choice((1, 16, 17, 40))
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f16, dtypes.bf16))
    if d.random.random() < 0.1:  # rows that nothing copies by itself
        m, k, n, dtype = 512, 129, 512, dtypes.f16
    d.most_elements = max(d.most_elements, m * k, k * n)
    x = some(d, dtype, m, k)
    if d.random.random() < 0.3:
        x = d.emit("tanh", x)
    y = product(d, x, some(d, dtype, k, n, scale=k**-0.5, fixed=d.random.random() < 0.7), (1, 0))
    if d.random.random() < 0.5:
        y = d.emit("add", y, spread_along(d, some(d, dtype, n), y, 1))
    return [activation(d, y) if d.random.random() < 0.5 else y]


def glu(d: Drawing) -> list[Value]:
    """A product whose columns are a gate and what it gates."""
    rows, depth, width = (d.random.choice((2, 5, 8, 17, 33)) for _ in range(3))
    x = some(d, dtypes.f32, rows, depth)
    weights = some(d, dtypes.f32, depth, 2 * width, scale=depth**-0.5, fixed=True)
    y = product(d, x, weights, (1, 0))
    if d.random.random() < 0.5:
        bias = some(d, dtypes.f32, 2 * width, fixed=True)
        y = d.emit("add", y, spread_along(d, bias, y, 1))
    gate = section_of(d, y, 1, (0, width, 1))
    up = section_of(d, y, 1, (width, 2 * width, 1))
    if d.random.random() < 0.5:
        gate, up = up, gate
    return [d.emit("mul", activation(d, gate), up)]


def parallel(d: Drawing) -> list[Value]:
    """Products on one operand, with biases or without, that other products read."""
    rows, depth = d.random.choice((3, 8, 17)), d.random.choice((5, 8, 32))
    x = some(d, dtypes.f32, rows, depth)
    made = []
    for _ in range(d.random.choice((2, 3, 3))):
        width = d.random.choice((4, 8, 8, 17))
        weights = some(d, dtypes.f32, depth, width, scale=depth**-0.5, fixed=True)
        y = product(d, x, weights, (1, 0))
        if d.random.random() < 0.5:
            bias = some(d, dtypes.f32, width, fixed=True)
            y = d.emit("add", y, spread_along(d, bias, y, 1))
        after = some(d, dtypes.f32, width, 5, scale=width**-0.5)
        kind = d.random.choice(("product", "product", "slice", "turn"))
        if kind == "product":
            made.append(product(d, y, after, (1, 0)))
        elif kind == "slice":
            made.append(row_of(d, section_of(d, y, 1, (1, width, 1)), (0,)))
        else:
            made.append(product(d, turned(d, y), some(d, dtypes.f32, rows, 2), (0, 0))
                        if width == rows else row_of(d, y, (0,)))  # fmt: skip
    return made


def large_scatter(d: Drawing) -> list[Value]:
    """More updates than every element would look through."""
    size, count = d.random.choice((40000, 50001)), d.random.choice((30000, 33333))
    d.most_elements = max(d.most_elements, size)
    rng = np.random.default_rng(d.random.getrandbits(32))
    dtype = d.random.choice((dtypes.f32, dtypes.i32, dtypes.f64))
    add = d.random.random() < 0.6
    places = rng.integers(-size, size, count) if add else rng.permutation(size)[:count]
    data = some(d, dtype, size, scale=3.0)
    updates = some(d, dtype, count, scale=3.0)
    if d.random.random() < 0.3 and dtype.is_float:
        data = d.emit("tanh", data)
    return [d.emit("scatter", data, d.feed(places.astype(np.int64)), updates, axis=0,
                   reduction="add" if add else "none")]  # fmt: skip


def large_conv(d: Drawing) -> list[Value]:
    """A 3x3 convolution of many channels, and what follows it."""
    channels, outputs = (d.random.choice((32, 33, 48)) for _ in range(2))
    side = d.random.choice((4, 7, 12, 16))
    d.most_elements = max(d.most_elements, 1 << 16)
    x = some(d, dtypes.f32, d.random.choice((1, 2)), channels, side, side + d.random.choice((0, 3)))
    if d.random.random() < 0.25:
        w = quantised_leaf(d, x, (outputs, channels, 3, 3))
    else:
        w = some(d, dtypes.f32, outputs, channels, 3, 3, scale=(9 * channels) ** -0.5, fixed=True)
    pad = d.random.choice((0, 1, 1))
    attrs: dict[str, Any] = {"strides": (1, 1), "padding": ((pad, pad),) * 2, "dilation": (1, 1)}
    if channels % 2 == outputs % 2 == 0 and d.random.random() < 0.4:  # two groups
        w = some(d, dtypes.f32, outputs, channels // 2, 3, 3, scale=0.1, fixed=True)
        y = d.emit("conv", x, w, groups=2, **attrs)
    else:
        y = d.emit("conv", x, w, groups=1, **attrs)
    if d.random.random() < 0.6:
        y = d.emit("add", y, spread_along(d, some(d, dtypes.f32, outputs, fixed=True), y, 1))
    return [activation(d, y) if d.random.random() < 0.6 else y]


# rows ---------------------------------------------------------------------------------------------


def long_row(d: Drawing) -> list[Value]:
    """Softmax, sums, extremes and scans of rows longer than a tile, a cluster or a cache holds."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.i32, dtypes.bf16))
    size = d.random.choice((8200, 9000, 16385, 16385, 40000, 70001))
    kind = d.random.choice(("sum", "extreme", "softmax", "scan", "mapped", "columns"))
    inner = d.random.choice((33, 64, 65)) if kind == "columns" else 1
    shape = (size // inner,) if inner == 1 else (size // inner, inner)
    if d.random.random() < 0.3 and size < 10000:
        shape = (2, *shape)
    d.most_elements = max(d.most_elements, int(np.prod(shape)))
    rng = np.random.default_rng(d.random.getrandbits(32))
    array = rng.standard_normal(shape) if dtype.is_float else rng.integers(-9, 9, shape)
    x = d.feed(array.astype(dtype.numpy))
    axis = x.type.rank - (1 if inner == 1 else 2)
    if kind == "scan":
        flags = {key: d.random.random() < 0.5 for key in ("exclusive", "reverse")}
        return [d.emit("cumsum", x, axis=axis, fn="sum", **flags)]
    if kind == "extreme":
        op = d.random.choice(("argmax", "argmin"))
        return [d.emit(op, x, axis=axis, select_last=d.random.random() < 0.5)]
    if not dtype.is_float:
        return [row_of(d, x, (axis,))]
    if kind == "softmax":
        return [softmax_of(d, x, (axis,))]
    if kind == "mapped":
        for _ in range(3):
            x = activation(d, x)
        peak = d.emit("reduce_max", x, axes=(axis,))
        return [d.emit("sub", x, restored(d, peak, x, (axis,)))]
    made = [row_of(d, x, (axis,))]
    if d.random.random() < 0.4:
        made.append(d.emit("sub", x, restored(d, made[0], x, (axis,))))
    return made


def images(d: Drawing) -> list[Value]:
    """A convolution, a pooling and a normalisation of one image, in channels-last order or not."""
    shape = (d.random.choice((1, 2)), d.random.choice((2, 4, 8)), d.random.choice((5, 8)),
             d.random.choice((6, 9)))  # fmt: skip
    d.most_elements = max(d.most_elements, 1 << 14)
    x = some(d, dtypes.f32, *shape)
    if d.random.random() < 0.4:
        x = turned(d, x)
    y = x
    for _ in range(d.random.randint(1, 3)):
        kind = d.random.choice(("conv", "pool", "norm", "add", "turn"))
        if kind == "conv":
            outputs = d.random.choice((3, 8))
            depthwise = d.random.random() < 0.3
            groups = y.shape[1] if depthwise else 1
            outputs = groups if depthwise else outputs
            w = some(d, dtypes.f32, outputs, y.shape[1] // groups, 3, 3, scale=0.2, fixed=True)
            step = d.random.choice((1, 1, 2))
            if min(y.shape[2:]) < 3:
                raise Refused
            y = d.emit("conv", y, w, strides=(step, step), padding=((1, 1), (1, 1)),
                       dilation=(1, 1), groups=groups)  # fmt: skip
        elif kind == "pool":
            y = d.emit("reduce_window", y, fn=d.random.choice(("max", "sum")), window=(1, 1, 2, 2),
                       strides=(1, 1, 1, 1), padding=((0, 0), (0, 0), (1, 1), (0, 1)),
                       dilation=(1, 1, 1, 1))  # fmt: skip
        elif kind == "norm":
            row = row_of(d, y, (2, 3))
            y = d.emit("sub", y, restored(d, row, y, (2, 3)))
        elif kind == "add":
            y = d.emit("add", activation(d, y), y)
        else:
            y = turned(d, y)
    return [y] if d.random.random() < 0.7 else [y, row_of(d, y, d.axes(y))]


BLOCKS: dict[Move, float] = {
    attend: 0.03, rotated_heads: 0.015, turned_pair: 0.008, deep_product: 0.006,
    glu: 0.008, parallel: 0.01, large_scatter: 0.001, large_conv: 0.006, long_row: 0.008,
    images: 0.02,
}  # fmt: skip
"""How often one of these begins a drawing."""
