"""Steps of edition 2 at the edges: rank 0, extreme integers, signs of zero, huge arguments, and,
now and then, what is deep, wide or long."""

from __future__ import annotations

import numpy as np

from fuser import dtypes
from fuser.graph.ir import Value
from tests.random_graphs.bounds import Array
from tests.random_graphs.draw import Drawing, Move, Refused
from tests.random_graphs.moves import (
    COMPARE,
    FLOAT_UNARY,
    WHOLE_BINARY,
    has_rank,
    is_float,
)
from tests.random_graphs.patterns import (
    MAPS,
    long_window,
    mean_of,
    meet,
    row_of,
    section_of,
)

ODD = ("sin", "tan", "tanh", "asin", "atan", "sinh", "asinh", "erf", "neg", "sqrt", "floor", "ceil",
       "round", "abs", "sign")  # fmt: skip
"""Maps of a zero to a zero, of which most keep its sign."""


# scalars ------------------------------------------------------------------------------------------


def scalar(d: Drawing) -> list[Value]:
    """A number of rank 0 through any kind of primitive."""
    dtype = d.dtype()
    fits = [v for v in d.pool if not v.type.rank]
    x = d.random.choice(fits) if fits and d.random.random() < 0.5 else d.input(dtype, ())
    kinds = ["transpose", "reshape", "broadcast", "slice", "pad", "gather", "meet", "cast",
             "scatter", "place", "dot", "row"]  # fmt: skip
    if is_float(x):
        kinds += ["unary", "unary"]
    kind = d.random.choice(kinds)
    if kind == "unary":
        return [d.emit(d.random.choice(FLOAT_UNARY), x)]
    if kind == "transpose":
        return [d.emit("transpose", x, perm=())]
    if kind == "slice":
        return [d.emit("slice", x, starts=(), limits=(), strides=())]
    if kind == "pad":
        return [d.emit("pad", x, low=(), high=(), value=0)]
    if kind == "cast":
        return [d.emit("cast", x, dtype=d.dtype())]
    if kind == "meet":
        return [meet(d, x, d.like(x))]
    if kind == "row":
        return [row_of(d, x, ())]
    if kind == "dot":
        if x.dtype.kind == "bool":
            raise Refused
        axes: tuple[int, ...] = ()
        return [d.emit("dot_general", x, d.leaf(x.dtype, ()), lhs_contract=axes,
                       rhs_contract=axes, lhs_batch=axes, rhs_batch=axes)]  # fmt: skip
    if kind in ("gather", "place"):  # one index, or a table of one element
        table = d.pick(lambda v: has_rank(v) and 0 not in v.shape)
        axis = d.axis(table)
        return [d.emit("gather", table, d.indices(table.shape[axis], ()), axis=axis)]
    ones = (1,) * d.random.randint(1, 4)
    y = d.emit("reshape", x, shape=ones)
    if kind == "scatter":
        into = d.leaf(x.dtype, (5,))
        return [d.emit("scatter", into, d.indices(5, ()), x, axis=0, reduction="none")]
    if kind == "broadcast":
        return [d.stretch(x, d.shape(), ())]
    made = [y]
    if y.dtype.kind != "bool":
        fn = d.random.choice(("argmax", "cumsum", "sort", "window"))
        if fn == "argmax":
            made.append(d.emit("argmax", y, axis=0, select_last=False))
        elif fn == "cumsum":
            made.append(d.emit("cumsum", y, axis=0, fn="sum", exclusive=False, reverse=False))
        elif fn == "sort":
            made.append(d.emit("sort", y, axis=0, descending=False))
        else:
            made.append(d.emit("reduce_window", y, fn="max", window=ones, strides=ones,
                               padding=((0, 0),) * len(ones), dilation=ones))  # fmt: skip
    return made


# integers -----------------------------------------------------------------------------------------


def extremes(d: Drawing, dtype: dtypes.DType, shape: tuple[int, ...]) -> Array:
    """The least and the greatest numbers of a dtype, and powers of two that narrow ones lose."""
    least, most = int(dtype.lowest), int(dtype.highest)
    powers = [2**k + off for k in (7, 8, 15, 16, 31, 32, 53, 62) for off in (-1, 0, 1)]
    found = [least, most, least + 1, most - 1, 0, 1, most // 2, *powers, *(-p for p in powers)]
    numbers = np.array([n for n in found if least <= n <= most], dtype.numpy)
    rng = np.random.default_rng(d.random.getrandbits(32))
    return np.asarray(rng.choice(numbers, shape), dtype.numpy)


def extreme_integers(d: Drawing) -> list[Value]:
    """Maps, comparisons, casts and reductions of integers at the ends of their dtypes."""
    dtype = d.random.choice((dtypes.i64, dtypes.i64, dtypes.i32, dtypes.i16, dtypes.i8, dtypes.u8,
                             dtypes.u16, dtypes.u32, dtypes.u64))  # fmt: skip
    fits = [v for v in d.pool if v.dtype is dtype]
    shape = d.random.choice(fits).shape if fits and d.random.random() < 0.7 else d.shape()
    x = d.feed(extremes(d, dtype, shape))
    kind = d.random.choice(("binary", "binary", "compare", "cast", "unary", "row", "extreme"))
    if kind == "unary":
        return [d.emit(d.random.choice(("neg", "abs", "sign", "bitwise_not")), x)]
    if kind == "cast":
        return [d.emit("cast", x, dtype=d.dtype())]
    if kind == "row" and shape and x.type.size:
        return [row_of(d, x, d.axes(x))]
    if kind == "extreme" and shape and x.type.size:
        op = d.random.choice(("argmax", "argmin", "sort"))
        if op == "sort":
            return [d.emit("sort", x, axis=d.axis(x), descending=d.random.random() < 0.5)]
        return [d.emit(op, x, axis=d.axis(x), select_last=d.random.random() < 0.5)]
    same = [v for v in fits if v.shape == shape]
    y = d.random.choice(same) if same else d.constant(extremes(d, dtype, shape))
    if kind == "compare":
        return [d.emit(d.random.choice(COMPARE), x, y)]
    op = d.random.choice([op for op in WHOLE_BINARY if not op.startswith(("shift", "pow"))])
    return [d.emit(op, x, y)]


def clipped_indices(d: Drawing) -> list[Value]:
    """Indices that are far out of range until they are clipped, wrapped or replaced."""
    x = d.pick(lambda v: has_rank(v) and 0 not in v.shape)
    axis = d.axis(x)
    size = x.shape[axis]
    shape = d.shape(d.random.choice((0, 1, 1, 2)))
    far = extremes(d, dtypes.i64, shape)
    indices = d.feed(np.where(d.array(dtypes.bool_, shape), far, d.array(dtypes.i64, shape)))
    zero, last = d.number(0, indices), d.number(size - 1, indices)
    kind = d.random.choice(("clip", "mod", "select"))
    if kind == "clip":
        places = d.emit("min", d.emit("max", indices, zero), last)
    elif kind == "mod":
        places = d.emit("mod", indices, d.number(size, indices))
    else:
        low, high = d.emit("ge", indices, zero), d.emit("le", indices, last)
        places = d.emit("select", d.emit("logical_and", low, high), indices, zero)
    if d.random.random() < 0.6:
        return [d.emit("gather", x, places, axis=axis)]
    updates = d.leaf(x.dtype, (*x.shape[:axis], *shape, *x.shape[axis + 1 :]))
    fn = "max" if x.dtype.kind != "bool" else "none"
    if fn == "none" and shape:
        raise Refused
    return [d.emit("scatter", x, places, updates, axis=axis, reduction=fn)]


# floats -------------------------------------------------------------------------------------------


def signs_of_zero(d: Drawing) -> list[Value]:
    """Bits of what odd functions make of zeros, whose sign intervals do not know."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f64))
    shape = d.shape(d.random.choice((1, 1, 2)))
    zeros = np.where(d.array(dtypes.bool_, shape), -0.0, 0.0).astype(dtype.numpy)
    op = d.random.choice(ODD)
    result = zeros
    if op == "neg":
        result = -zeros
    elif op in ("abs", "sign"):
        result = np.zeros(shape, dtype.numpy)
    y = d.emit(op, d.feed(zeros))
    bits = d.emit("float_bits", y)
    d.claim(bits, np.asarray(result).view(bits.dtype.numpy))
    return [bits]


def huge_arguments(d: Drawing) -> list[Value]:
    """Sines of large numbers, and functions at the ends of their range."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16))
    rng = np.random.default_rng(d.random.getrandbits(32))
    most = {"f16": 4.8, "f32": 38.0, "bf16": 38.0, "f64": 300.0}[dtype.name]
    shape = d.shape(d.random.choice((0, 1, 1, 2)))
    sizes = 10.0 ** rng.uniform(0, d.random.choice((3.0, 5.0, 10.0, most)) if most > 10 else most,
                                shape)  # fmt: skip
    x = np.asarray(sizes * rng.choice([-1.0, 1.0], shape)).astype(dtype.numpy)
    op = d.random.choice(("sin", "cos", "sin", "cos", "tan", "tanh", "atan", "erf", "sigmoid",
                          "asinh", "rsqrt"))  # fmt: skip
    value = d.feed(x)
    if op == "rsqrt":
        return [d.emit("rsqrt", d.emit("abs", value))]
    if op == "sigmoid":
        power = d.emit("exp", d.emit("neg", value))
        return [d.emit("reciprocal", d.emit("add", power, d.number(1.0, power)))]
    return [d.emit(op, value)]


# now and then -------------------------------------------------------------------------------------


def deep_chain(d: Drawing) -> list[Value]:
    """Many links, each of which uses the one before twice, or the two before."""
    depth = d.random.choice((30, 30, 40, 60, 100, 200))
    shape = d.shape(d.random.choice((1, 1, 2)))
    whole = d.random.random() < 0.3
    x = d.input(dtypes.i32 if whole else d.random.choice((dtypes.f32, dtypes.f64)), shape)
    kind = d.random.choice(("twice", "two before", "gated", "plain"))
    before = x
    for step in range(depth):
        if whole:
            op = d.random.choice(("add", "sub", "bitwise_xor", "max", "min"))
            other = before if kind == "two before" else d.emit("bitwise_not", x)
            before, x = x, d.emit(op, x, x if kind == "plain" and step % 2 else other)
            continue
        half = d.number(0.5, x)
        if kind == "plain":
            before, x = x, d.emit(MAPS[step % 3], x)
        elif kind == "twice":
            turn = d.emit(d.random.choice(("sin", "tanh", "atan")), x)
            before, x = x, d.emit("mul", d.emit("add", turn, x), half)
        elif kind == "gated":
            power = d.emit("exp", d.emit("neg", x))
            gate = d.emit("reciprocal", d.emit("add", power, d.number(1.0, x)))
            before, x = x, d.emit("mul", d.emit("add", d.emit("mul", x, gate), x), half)
        else:
            before, x = x, d.emit("mul", d.emit("sub", x, before), half)
    return [x]


def many_parts(d: Drawing) -> list[Value]:
    """A concat of many operands: inputs, constants, slices, or maps of slices."""
    count = d.random.choice((10, 17, 33, 64, 100))
    x = d.input(d.dtype(), (count * d.random.choice((1, 2, 3)), d.random.choice((1, 2, 5))))
    step = x.shape[0] // count
    parts = []
    for i in range(count):
        start = i * step if d.random.random() < 0.8 else d.random.randrange(x.shape[0] - step + 1)
        part = section_of(d, x, 0, (start, start + step, 1))
        if d.random.random() < 0.3 and is_float(part):
            part = d.emit(d.random.choice(MAPS[:3]), part)
        elif d.random.random() < 0.1:
            part = d.constant(d.array(x.dtype, part.shape))
        parts.append(part)
    if d.random.random() < 0.2:
        return parts
    return [d.emit("concat", *parts, axis=d.random.choice((0, 0, 1)))]


def large_counts(d: Drawing) -> list[Value]:
    """Means of halves over more elements than a half can count."""
    dtype = d.random.choice((dtypes.f16, dtypes.f16, dtypes.bf16))
    rows = d.random.choice((1, 1, 2, 3))
    if dtype is dtypes.f16:
        columns = d.random.choice((65504, 65505, 65536, 70001))
    else:
        columns = d.random.choice((257, 300, 515, 1000, 4097))
    d.most_elements = max(d.most_elements, rows * columns)
    d.special = False
    x = d.feed((d.array(dtypes.f32, (rows, columns)) + np.float32(2)).astype(dtype.numpy))
    if d.random.random() < 0.3:
        x = d.emit("reshape", x, shape=(columns, rows))
        return [mean_of(d, x, (0,), sure=True)]
    return [mean_of(d, x, d.random.choice(((1,), (1,), (0, 1))), sure=True)]


EDGES: dict[Move, float] = {
    scalar: 2.5, extreme_integers: 2, clipped_indices: 1, signs_of_zero: 0.5, huge_arguments: 1,
}  # fmt: skip
OCCASIONS: dict[Move, float] = {
    long_window: 0.02, deep_chain: 0.006, many_parts: 0.01, large_counts: 0.005,
}  # fmt: skip
"""How often one of these begins a drawing: they are slow."""
