"""Steps of edition 3: values that part and meet again across kernels, and blocks that hang over.

What decides where a kernel ends: a product that another kernel leads back to, a number of all of
one tensor among another's elements, rows of a tensor and of the same one turned, columns that are
stretched over rows again. And what only the bounds of a block keep out: results that are turned and
flattened, products whose operands are not 0 behind their last step. A few drawings begin with one;
where none does, a seed draws what it draws in edition 2.
"""

from __future__ import annotations

from math import prod

from fuser import dtypes
from fuser.graph.ir import Value
from tests.random_graphs.blocks import product, scored, some
from tests.random_graphs.draw import Drawing, Move
from tests.random_graphs.moves import activation, restored, softmax_of
from tests.random_graphs.patterns import meet, row_of, section_of

FLOATS = (dtypes.f32, dtypes.f32, dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16)
SMOOTH = ("tanh", "neg", "abs", "erf", "atan", "cos")


def mapped(d: Drawing, x: Value) -> Value:
    """A map of it, that a kernel computes or that its readers do."""
    return d.emit(d.random.choice(SMOOTH), x)


# kernels that meet again --------------------------------------------------------------------------


def anchored(d: Drawing) -> Value:
    """A product, a convolution or a window: what maps are taken along with."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f64))
    kind = d.random.choice(("product", "product", "conv", "window"))
    if kind == "product":
        rows, depth, width = (d.random.choice((2, 5, 9, 16, 33)) for _ in range(3))
        weights = some(d, dtype, depth, width, scale=depth**-0.5, fixed=d.random.random() < 0.5)
        return product(d, some(d, dtype, rows, depth), weights, (1, 0))
    if kind == "conv":
        channels, outputs = (d.random.choice((1, 3, 4)) for _ in range(2))
        x = some(d, dtype, 1, channels, 7, d.random.choice((5, 8)))
        return d.emit("conv", x, some(d, dtype, outputs, channels, 3, 3, scale=0.3, fixed=True),
                      strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1),
                      groups=1)  # fmt: skip
    x = some(d, dtype, d.random.choice((2, 5)), d.random.choice((9, 16, 33)))
    return d.emit("reduce_window", x, fn=d.random.choice(("max", "sum")), window=(1, 3),
                  strides=(1, 1), padding=((0, 0), (1, 1)), dilation=(1, 1))  # fmt: skip


def other_kernel(d: Drawing, x: Value) -> Value:
    """Something of x's shape and dtype that needs a kernel of its own."""
    axis = x.type.rank - 1 if d.random.random() < 0.6 else d.axis(x)
    kinds = ["row", "row"] + ["scan", "sort"] * (x.dtype.kind != "bool")
    kind = d.random.choice(kinds)
    if kind == "scan":
        return d.emit("cumsum", x, axis=axis, fn="sum", exclusive=False, reverse=False)
    if kind == "sort":
        return d.emit("sort", x, axis=axis, descending=d.random.random() < 0.5)
    axes = (axis,) if d.random.random() < 0.7 else tuple(range(x.type.rank))
    ops = ("reduce_max", "reduce_min") + ("reduce_sum",) * (x.dtype.kind != "bool")
    return restored(d, d.emit(d.random.choice(ops), x, axes=axes), x, axes)


def around(d: Drawing) -> list[Value]:
    """A value that goes around by another kernel and meets itself again, mostly in fewer bytes than
    it began with."""
    y = anchored(d)
    kind = d.random.choice(("mask", "mask", "half", "same"))

    def narrow(x: Value) -> Value:
        if d.random.random() < 0.6:
            x = mapped(d, x)
        if kind == "mask":
            return d.emit(d.random.choice(("gt", "le")), x, d.number(0.3, x))
        return d.emit("cast", x, dtype=dtypes.f16) if kind == "half" else x

    near, beside = narrow(y), narrow(y)
    if d.random.random() < 0.2:
        beside = near
    result = meet(d, beside, other_kernel(d, near))
    return [result, near] if d.random.random() < 0.2 else [result]


def totals(d: Drawing) -> list[Value]:
    """A number of all of one tensor among the elements of another, of whatever size."""
    dtype = d.random.choice(FLOATS)

    def tensor() -> Value:
        shape = [d.random.choice((3, 8, 17, 33)), d.random.choice((1, 9, 20, 33, 100))]
        if d.random.random() < 0.5:
            shape = [prod(shape)]
        x = some(d, dtype, *shape)
        return mapped(d, x) if d.random.random() < 0.8 else x

    x, other = tensor(), tensor()
    if d.random.random() < 0.3:
        other = mapped(d, other)
    total = row_of(d, x, tuple(range(x.type.rank)))
    made = [meet(d, other, d.stretch(total, other.shape, ()))]
    if d.random.random() < 0.3:
        made.append(d.random.choice((total, x, other)))
    return made


def watched(d: Drawing) -> list[Value]:
    """Attention whose scores or probabilities are read by somebody else as well."""
    dtype, heads = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f16)), d.random.choice((1, 2))
    queries, keys = (d.random.choice((1, 5, 9, 17)) for _ in range(2))
    width, columns = (d.random.choice((2, 4, 8)) for _ in range(2))
    q, k, v, w = (
        some(d, dtype, 1, heads, *shape, scale=0.7)
        for shape in ((queries, width), (keys, width), (keys, columns), (keys, columns))
    )
    scores = scored(d, product(d, q, k, (3, 3), 2))
    weights = softmax_of(d, scores, (3,))
    seen = scores if d.random.random() < 0.4 else weights
    kind = d.random.choice(("itself", "map", "row", "product"))
    if kind == "map":
        seen = mapped(d, seen)
    elif kind == "row":
        seen = row_of(d, seen, (d.random.choice((2, 3)),))
    elif kind == "product":
        seen = product(d, weights, w, (3, 2), 2)
    return [product(d, weights, v, (3, 2), 2), seen]


# rows that meet again -----------------------------------------------------------------------------


def rows_both_ways(d: Drawing) -> list[Value]:
    """Rows of a tensor, and rows along the same axes of the tensor turned, which has its shape."""
    dtype, size = d.random.choice(FLOATS), d.random.choice((3, 8, 9, 17, 33))
    shape = (size, size) if d.random.random() < 0.6 else (d.random.choice((2, 3)), size, size)
    x = mapped(d, some(d, dtype, *shape))
    last = len(shape) - 1
    axes = (last,) if d.random.random() < 0.7 else (last - 1,)
    row = row_of(d, x, axes)
    y = x
    if d.random.random() < 0.6:
        y = meet(d, x, restored(d, row, x, axes))
    around_ = d.emit("transpose", y, perm=(*range(last - 1), last, last - 1))
    if d.random.random() < 0.4:
        return [meet(d, y, around_)]
    made = [row_of(d, around_, axes)]
    if d.random.random() < 0.5:
        made.append(d.random.choice((row, y)))
    return made


def stretched_columns(d: Drawing) -> list[Value]:
    """A column of the rows with what the rows come to, stretched over another tensor."""
    dtype = d.random.choice(FLOATS)
    shape = (d.random.choice((2, 9, 33)), d.random.choice((3, 7, 16, 65)))
    if d.random.random() < 0.3:
        shape = (d.random.choice((2, 3)), *shape)
    x, other = some(d, dtype, *shape), some(d, dtype, *shape)
    axis = len(shape) - 1 if d.random.random() < 0.7 else d.axis(x)
    at = d.random.randrange(shape[axis])
    column = section_of(d, x, axis, (at, at + 1, 1))
    if d.random.random() < 0.3:
        column = mapped(d, column)
    row = row_of(d, x, (axis,))
    kept = d.emit("reshape", row, shape=column.shape)
    pair = (column, kept) if d.random.random() < 0.6 else (kept, column)
    value = d.emit(d.random.choice(("sub", "mul", "add")), *pair)
    result = meet(d, d.stretch(value, shape, range(len(shape))), other)
    return [result, row] if d.random.random() < 0.4 else [result]


# blocks that hang over ----------------------------------------------------------------------------


def flattened(d: Drawing) -> list[Value]:
    """Many short rows, or maps of them, turned and reshaped: an element outside of a block would be
    one of the next row."""
    d.most_elements = max(d.most_elements, 1 << 14)
    rows, width = d.random.randint(217, 700), d.random.choice((2, 3, 3, 5, 7))
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f16, dtypes.f64))
    kind = d.random.choice(("map", "map", "map", "rows", "softmax", "row"))
    shape = (rows, width, d.random.choice((2, 3))) if kind == "row" else (rows, width)
    x = mapped(d, some(d, dtype, *shape))
    if kind == "row":
        x = d.emit("reduce_sum", x, axes=(2,))
    elif kind == "softmax":
        x = softmax_of(d, x, (1,))
    elif kind == "rows":
        x = meet(d, x, restored(d, row_of(d, x, (1,)), x, (1,)))
    y = x
    for left in reversed(range(d.random.choice((1, 2, 2, 2, 3)))):
        y = d.emit("transpose", y, perm=(1, 0))
        shapes = [(rows, width), (width, rows)] if left else [(rows * width,), (rows, width)]
        y = d.emit("reshape", y, shape=d.random.choice(shapes))
    if d.random.random() < 0.3:
        y = mapped(d, y)
    return [x, y] if d.random.random() < 0.7 else [y]


def prologues(d: Drawing) -> list[Value]:
    """A product of maps that are not 0 where memory behind the last step would be."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f16, dtypes.bf16))
    rows, width = (d.random.choice((1, 2, 9, 16, 33)) for _ in range(2))
    depth = d.random.choice((3, 5, 13, 17, 33, 65, 100, 129))

    def side(*shape: int) -> Value:
        x = some(d, dtype, *shape)
        fn = d.random.choice(("cos", "exp", "number", "reciprocal"))
        if fn == "number":
            return d.emit("sub", d.number(1.0, x), x)
        if fn == "reciprocal":  # none of these numbers is near 0
            x = d.feed((d.array(dtypes.bool_, shape) * 2 - 1.5).astype(dtype.numpy))
        return d.emit(fn, x)

    kind = d.random.choice(("both", "both", "left", "right"))
    left = some(d, dtype, rows, depth) if kind == "right" else side(rows, depth)
    right = some(d, dtype, depth, width) if kind == "left" else side(depth, width)
    y = product(d, left, right, (1, 0))
    if d.random.random() < 0.4:
        y = activation(d, y)
    return [y]


KNOTS: dict[Move, float] = {
    around: 0.012, totals: 0.012, watched: 0.008, rows_both_ways: 0.01, stretched_columns: 0.01,
    flattened: 0.014, prologues: 0.01,
}  # fmt: skip
"""How often one of these begins a drawing."""
