"""The steps of a drawing: every primitive, and the patterns that models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.graph.ir import Value
from fuser.graph.ops.quantised import decode
from tests.random_graphs.draw import Drawing, Move, Refused

FLOAT_UNARY = (
    "neg", "abs", "sign", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "erf", "floor", "ceil",
    "round", "tanh", "tanh", "exp", "erf",
)  # fmt: skip
FLOAT_BINARY = ("add", "sub", "mul", "div", "min", "max", "pow", "mod", "fmod", "add", "mul", "sub")
WHOLE_BINARY = (
    "add", "sub", "mul", "div", "mod", "fmod", "min", "max", "pow",
    "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right",
)  # fmt: skip
BOOL_BINARY = ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
               "bitwise_xor")  # fmt: skip
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def is_float(value: Value) -> bool:
    return value.dtype.is_float


def is_whole(value: Value) -> bool:
    return value.dtype.is_integer


def has_rank(value: Value) -> bool:
    return value.type.rank > 0


def wide_float(value: Value) -> bool:
    return is_float(value) and has_rank(value)


# maps ---------------------------------------------------------------------------------------------


def unary(d: Drawing) -> list[Value]:
    x = d.pick()
    if is_float(x):
        return [d.emit(d.random.choice(FLOAT_UNARY), x)]
    if is_whole(x):
        return [d.emit(d.random.choice(("neg", "abs", "sign", "bitwise_not")), x)]
    return [d.emit(d.random.choice(("logical_not", "bitwise_not")), x)]


def binary(d: Drawing) -> list[Value]:
    x = d.pick()
    if is_float(x):
        op = d.random.choice(FLOAT_BINARY)
        y = d.like(x)
        if op == "pow":
            x = d.emit("abs", x)
            if d.random.random() < 0.7:
                y = d.number(d.random.choice((2.0, 3.0, 0.5, -1.0, 1.0, 0.0)), x)
    elif is_whole(x):
        op = d.random.choice(WHOLE_BINARY)
        y = d.like(x)
        if op.startswith("shift") or op == "pow":
            y = d.constant(np.asarray(d.array(x.dtype, x.shape) % 7 + d.random.choice((0, 60))))
            if op == "pow":
                y = d.number(d.random.randint(0, 4), x)
            elif (y.constant < 0).any():
                raise Refused
    else:
        op, y = d.random.choice(BOOL_BINARY), d.like(x)
    turned = d.random.random() < 0.2 and op not in ("pow", "shift_left", "shift_right")
    return [d.emit(op, *((y, x) if turned else (x, y)))]


def chain(d: Drawing) -> list[Value]:
    """A few maps in a row."""
    x = d.pick(is_float)
    for _ in range(d.random.randint(2, 5)):
        if d.random.random() < 0.5:
            x = d.emit(d.random.choice(("tanh", "neg", "abs", "erf", "atan")), x)
        else:
            x = d.emit(d.random.choice(("add", "mul", "sub", "max", "min")), x, d.like(x))
    return [x]


def compare(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: v.dtype.kind != "bool")
    return [d.emit(d.random.choice(COMPARE), x, d.like(x))]


def select(d: Drawing) -> list[Value]:
    x = d.pick()
    masks = [v for v in d.pool if v.dtype.kind == "bool" and v.shape == x.shape]
    if masks and d.random.random() < 0.7:
        mask = d.random.choice(masks)
    elif x.dtype.kind != "bool":
        mask = d.emit(d.random.choice(COMPARE), x, d.like(x))
    else:
        mask = d.leaf(dtypes.bool_, x.shape)
    return [d.emit("select", mask, x, d.like(x))]


def classify(d: Drawing) -> list[Value]:
    return [d.emit(d.random.choice(("is_nan", "is_inf")), d.pick(is_float))]


def cast(d: Drawing) -> list[Value]:
    x = d.pick()
    return [d.emit("cast", x, dtype=d.dtype())]


def bits(d: Drawing) -> list[Value]:
    """The bits of numbers, or numbers of changed bits."""
    x = d.pick(lambda v: v.dtype in (dtypes.f32, dtypes.f64, dtypes.i32, dtypes.i64))
    if not is_float(x):
        # an exponent of one and the low bits of x: numbers of moderate size
        pattern = 0x3F800000 if x.dtype is dtypes.i32 else 0x3FF0000000000000
        low = d.emit("bitwise_and", x, d.number(0x7FFFFF, x))
        return [d.emit("bits_float", d.emit("bitwise_or", low, d.number(pattern, x)))]
    x = d.leaf(x.dtype, x.shape) if d.random.random() < 0.5 else x
    return [d.emit("float_bits", x)]


# creation -----------------------------------------------------------------------------------------


def create(d: Drawing) -> list[Value]:
    x = d.pick()
    pick = d.random.random()
    if pick < 0.5 and has_rank(x):
        dtype = x.dtype if x.dtype.kind != "bool" else dtypes.i32
        y = d.emit("iota", shape=x.shape, axis=d.axis(x), dtype=dtype)
        if dtype is x.dtype and d.random.random() < 0.8:
            op = d.random.choice(("add", "mul", "sub", *COMPARE))
            return [d.emit(op, y, x)]
        return [y]
    if pick < 0.6:
        values = tuple(d.random.randint(0, 9) for _ in range(d.random.randint(1, 4)))
        return [d.emit("dims", values=values, shape=(len(values),), dtype=dtypes.i64)]
    return [d.leaf(d.dtype(), d.shape())]


# reductions ---------------------------------------------------------------------------------------


def reduce(d: Drawing) -> list[Value]:
    x = d.pick(has_rank)
    names = ["reduce_sum", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod"]
    if x.dtype.kind == "bool":
        names = ["reduce_max", "reduce_min"]
    return [d.emit(d.random.choice(names), x, axes=d.axes(x))]


def extreme(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: has_rank(v) and v.dtype.kind != "bool" and 0 not in v.shape)
    op = d.random.choice(("argmax", "argmin"))
    return [d.emit(op, x, axis=d.axis(x), select_last=d.random.random() < 0.5)]


def running(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: has_rank(v) and v.dtype.kind != "bool")
    fn = "prod" if d.random.random() < 0.2 else "sum"
    flags = {key: d.random.random() < 0.5 for key in ("exclusive", "reverse")}
    return [d.emit("cumsum", x, axis=d.axis(x), fn=fn, **flags)]


def window(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: has_rank(v) and v.dtype.kind != "bool" and 0 not in v.shape)
    rank = x.type.rank
    sizes = [d.random.choice((1, 1, 2, 3)) for _ in range(rank)]
    steps = [d.random.choice((1, 1, 2)) for _ in range(rank)]
    holes = [d.random.choice((1, 1, 2)) for _ in range(rank)]
    pads = [(d.random.randint(0, s - 1), d.random.randint(0, s - 1)) for s in sizes]
    for size, hole, pad, dim in zip(sizes, holes, pads, x.shape, strict=True):
        if (size - 1) * hole + 1 > dim + sum(pad):
            raise Refused
    return [
        d.emit("reduce_window", x, fn=d.random.choice(("sum", "max")), window=tuple(sizes),
               strides=tuple(steps), padding=tuple(pads), dilation=tuple(holes))
    ]  # fmt: skip


# products -----------------------------------------------------------------------------------------


def scaled_leaf(d: Drawing, like: Value, shape: Sequence[int], depth: int) -> Value:
    """Weights that keep a product's size."""
    array = d.array(like.dtype, shape)
    if is_float(like):
        array = (array.astype(np.float64) / np.sqrt(max(depth, 1))).astype(like.dtype.numpy)
    return d.constant(array) if d.random.random() < 0.7 else d.feed(array)


def quantised_leaf(d: Drawing, like: Value, shape: Sequence[int]) -> Value:
    """Weights of few bits with scales, and perhaps zero points, a block of elements."""
    numbers = d.random.choice(("i4", "u4", "i8", "u8", "f4e2m1", "f8e4m3fn"))
    size = int(np.prod(shape))
    table = np.arange(16 if numbers in ("i4", "u4", "f4e2m1") else 256, dtype=np.uint8)
    table = table[np.isfinite(decode(table.view(np.int8) if numbers == "i8" else table, numbers))]
    if size > MOST_CHOICES:
        codes = np.random.default_rng(d.random.getrandbits(32)).choice(table, shape)
    else:
        codes = np.array(d.random.choices(table.tolist(), k=size), np.uint8).reshape(shape)
    codes = codes.view(np.int8) if numbers == "i8" else codes
    blocks = tuple(d.random.choice((1, 4, dim)) if dim > 4 else dim for dim in shape)
    reach = float(np.abs(decode(table, numbers)).max())
    factors = [-(-dim // block) for dim, block in zip(shape, blocks, strict=True)]
    scale = np.nan_to_num(np.abs(d.array(dtypes.f32, factors)), posinf=1) / np.float32(reach)
    operands = [d.constant(codes), d.constant(scale)]
    if d.random.random() < 0.4:
        zero = np.nan_to_num(d.array(dtypes.f32, factors), posinf=1, neginf=1)
        operands.append(d.constant(zero))
    return d.emit("dequantize", *operands, numbers=numbers, blocks=blocks, dtype=like.dtype)


def linear(d: Drawing, x: Value, width: int) -> Value:
    depth = x.shape[-1]
    turned = d.random.random() < 0.3
    shape = (width, depth) if turned else (depth, width)
    packs = is_float(x) and x.dtype.bits < 64 and 0 not in shape and d.random.random() < 0.2
    weights = quantised_leaf(d, x, shape) if packs else scaled_leaf(d, x, shape, depth)
    return d.emit("dot_general", x, weights, lhs_contract=(x.type.rank - 1,),
                  rhs_contract=(int(turned),), lhs_batch=(), rhs_batch=())  # fmt: skip


def width_of(d: Drawing) -> int:
    return d.random.choice((1, 2, 3, 5, 8, 16, 17, 32, 33))


def dot(d: Drawing) -> list[Value]:
    """dot_general with random batch, contracted and free axes, in any order."""
    x = d.pick(lambda v: has_rank(v) and v.dtype.kind != "bool")
    order = list(range(x.type.rank))
    d.random.shuffle(order)
    contracted = d.random.choice((1, 1, 1, 2, 0))
    shared = d.random.choice((0, 0, 1, 2))
    contract, batch = order[:contracted], order[contracted : contracted + shared]
    free = [width_of(d) for _ in range(d.random.choice((0, 1, 1, 2)))]
    parts = [("c", axis) for axis in contract] + [("b", axis) for axis in batch]
    parts += [("f", size) for size in free]
    d.random.shuffle(parts)
    shape = [n if kind == "f" else x.shape[n] for kind, n in parts]
    if prod(shape) > 4096:
        raise Refused
    depth = prod(x.shape[axis] for axis in contract)
    fits = [v for v in d.pool if v.dtype is x.dtype and v.shape == tuple(shape) and 0 not in shape]
    other = d.random.choice(fits) if fits else scaled_leaf(d, x, shape, depth)
    places = {part: i for i, part in enumerate(parts)}
    attrs: dict[str, Any] = {
        "lhs_contract": tuple(contract),
        "rhs_contract": tuple(places["c", axis] for axis in contract),
        "lhs_batch": tuple(batch),
        "rhs_batch": tuple(places["b", axis] for axis in batch),
    }
    if d.random.random() < 0.3:
        swapped = {
            f"{'rhs' if key.startswith('lhs') else 'lhs'}{key[3:]}": item
            for key, item in attrs.items()
        }
        return [d.emit("dot_general", other, x, **swapped)]
    return [d.emit("dot_general", x, other, **attrs)]


def dense(d: Drawing) -> list[Value]:
    """A linear layer with bias, activation and residual, as far as they go."""
    x = d.pick(wide_float)
    y = linear(d, x, x.shape[-1] if d.random.random() < 0.4 else width_of(d))
    if d.random.random() < 0.6:
        bias = d.leaf(y.dtype, y.shape[-1:])
        y = d.emit("add", y, d.stretch(bias, y.shape, (y.type.rank - 1,)))
    if d.random.random() < 0.6:
        y = activation(d, y)
    if y.shape == x.shape and d.random.random() < 0.6:
        y = d.emit("add", x, y)
    return [y]


def activation(d: Drawing, x: Value) -> Value:
    kind = d.random.choice(("relu", "tanh", "gelu", "silu"))
    if kind == "relu":
        return d.emit("max", x, d.number(0.0, x))
    if kind == "tanh":
        return d.emit("tanh", x)
    if kind == "gelu":
        inner = d.emit("erf", d.emit("mul", x, d.number(0.5**0.5, x)))
        half = d.emit("mul", x, d.number(0.5, x))
        return d.emit("mul", half, d.emit("add", inner, d.number(1.0, x)))
    power = d.emit("exp", d.emit("neg", x))
    gate = d.emit("reciprocal", d.emit("add", power, d.number(1.0, x)))
    return d.emit("mul", x, gate)


def gated(d: Drawing) -> list[Value]:
    x = d.pick(wide_float)
    width = width_of(d)
    gate, up = linear(d, x, width), linear(d, x, width)
    return [d.emit("mul", activation(d, gate), up)]


def shared(d: Drawing) -> list[Value]:
    """Two or three products on one operand, which go their own ways."""
    x = d.pick(wide_float)
    return [linear(d, x, width_of(d)) for _ in range(d.random.randint(2, 3))]


def conv(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: 3 <= v.type.rank <= 5 and v.dtype.kind != "bool" and 0 not in v.shape)
    spatial = x.type.rank - 2
    channels = x.shape[1]
    groups = d.random.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    outputs = groups * d.random.choice((1, 2, 3, 5))
    kernel = [d.random.choice((1, 1, 2, 3)) for _ in range(spatial)]
    steps = [d.random.choice((1, 1, 2)) for _ in range(spatial)]
    holes = [d.random.choice((1, 1, 1, 2)) for _ in range(spatial)]
    pads = [(d.random.randint(-1 if d.random.random() < 0.1 else 0, 2), d.random.randint(0, 2))
            for _ in range(spatial)]  # fmt: skip
    for size, hole, pad, dim in zip(kernel, holes, pads, x.shape[2:], strict=True):
        if (size - 1) * hole + 1 > dim + sum(pad):
            raise Refused
    shape = (outputs, channels // groups, *kernel)
    if prod(shape) > 4096:
        raise Refused
    weights = scaled_leaf(d, x, shape, prod(shape[1:]))
    y = d.emit("conv", x, weights, strides=tuple(steps), padding=tuple(pads),
               dilation=tuple(holes), groups=groups)  # fmt: skip
    if is_float(y) and d.random.random() < 0.5:
        bias = d.leaf(y.dtype, (outputs,))
        y = d.emit("add", y, d.stretch(bias, y.shape, (1,)))
        if d.random.random() < 0.5:
            y = activation(d, y)
    return [y]


# rows ---------------------------------------------------------------------------------------------


def restored(d: Drawing, row: Value, x: Value, axes: Sequence[int]) -> Value:
    kept = tuple(axis for axis in range(x.type.rank) if axis not in axes)
    return d.stretch(row, x.shape, kept)


def softmax_of(d: Drawing, x: Value, axes: tuple[int, ...]) -> Value:
    peak = d.emit("reduce_max", x, axes=axes)
    powers = d.emit("exp", d.emit("sub", x, restored(d, peak, x, axes)))
    total = d.emit("reduce_sum", powers, axes=axes)
    return d.emit("div", powers, restored(d, total, x, axes))


def softmax(d: Drawing) -> list[Value]:
    x = d.pick(wide_float)
    return [softmax_of(d, x, d.axes(x, 2))]


def normalise(d: Drawing) -> list[Value]:
    x = d.pick(wide_float)
    axes = d.axes(x)
    count = prod(x.shape[axis] for axis in axes)
    centred = x
    if d.random.random() < 0.7:
        mean = d.emit("reduce_sum", x, axes=axes)
        mean = d.emit("mul", mean, d.number(1 / max(count, 1), mean))
        centred = d.emit("sub", x, restored(d, mean, x, axes))
    spread = d.emit("reduce_sum", d.emit("mul", centred, centred), axes=axes)
    spread = d.emit("mul", spread, d.number(1 / max(count, 1), spread))
    scale = d.emit("rsqrt", d.emit("add", spread, d.number(1e-2, spread)))
    y = d.emit("mul", centred, restored(d, scale, x, axes))
    if d.random.random() < 0.5:
        last = (x.type.rank - 1,)
        y = d.emit("mul", y, d.stretch(d.leaf(x.dtype, x.shape[-1:]), x.shape, last))
    return [y]


def attention(d: Drawing) -> list[Value]:
    """Self-attention with random projections, heads, scales and masks."""
    x = d.pick(lambda v: is_float(v) and v.type.rank == 3 and 0 not in v.shape)
    batch, length, _ = x.shape
    heads, width = d.random.choice((1, 2, 3)), d.random.choice((1, 2, 4, 8, 16))
    keys = length

    def split(y: Value) -> Value:
        y = d.emit("reshape", y, shape=(batch, length, heads, width))
        return d.emit("transpose", y, perm=(0, 2, 1, 3))

    q, k, v = (split(linear(d, x, heads * width)) for _ in range(3))
    scores = d.emit("dot_general", q, k, lhs_contract=(3,), rhs_contract=(3,), lhs_batch=(0, 1),
                    rhs_batch=(0, 1))  # fmt: skip
    if d.random.random() < 0.7:
        scores = d.emit("mul", scores, d.number(width**-0.5, scores))
    if d.random.random() < 0.5:
        rows, columns = (
            d.emit("iota", shape=scores.shape, axis=axis, dtype=dtypes.i32) for axis in (2, 3)
        )
        seen = d.emit("le", columns, rows)
        low = -1e9 if scores.dtype is not dtypes.f16 else -60000.0
        scores = d.emit("select", seen, scores, d.number(low, scores))
    elif d.random.random() < 0.4:
        bias = d.leaf(scores.dtype, (length, keys))
        scores = d.emit("add", scores, d.stretch(bias, scores.shape, (2, 3)))
    weights = softmax_of(d, scores, (3,))
    y = d.emit("dot_general", weights, v, lhs_contract=(3,), rhs_contract=(2,), lhs_batch=(0, 1),
               rhs_batch=(0, 1))  # fmt: skip
    made = [y]
    if d.random.random() < 0.7:
        y = d.emit("transpose", y, perm=(0, 2, 1, 3))
        made = [d.emit("reshape", y, shape=(batch, length, heads * width))]
    if d.random.random() < 0.1:
        made.append(weights)
    return made


def rotate(d: Drawing) -> list[Value]:
    """x cos + rotated(x) sin, as rotary embeddings have it."""
    x = d.pick(lambda v: wide_float(v) and v.shape[-1] % 2 == 0 and v.shape[-1] > 0)
    half, rank = x.shape[-1] // 2, x.type.rank
    starts = (0,) * rank
    first = d.emit("slice", x, starts=starts, limits=(*x.shape[:-1], half), strides=(1,) * rank)
    second = d.emit("slice", x, starts=(*starts[:-1], half), limits=x.shape, strides=(1,) * rank)
    turned = d.emit("concat", d.emit("neg", second), first, axis=rank - 1)
    parts = [
        d.emit("mul", item, d.stretch(d.leaf(x.dtype, x.shape[-1:]), x.shape, (rank - 1,)))
        for item in (x, turned)
    ]
    return [d.emit("add", *parts)]


# movement -----------------------------------------------------------------------------------------


def move_once(d: Drawing, x: Value) -> Value:
    rank = x.type.rank
    op = d.random.choice(("reshape", "transpose", "broadcast", "slice", "concat", "pad", "slice"))
    if op == "reshape":
        dims = list(x.shape)
        pick = d.random.random()
        if pick < 0.35:
            dims = [prod(dims)]
        elif pick < 0.7:
            dims.insert(d.random.randint(0, rank), 1)
        elif prod(dims):
            dims, rest = [], prod(dims)
            for factor in (2, 3, 4, 5, 7):
                if rest % factor == 0 and d.random.random() < 0.5:
                    dims.append(factor)
                    rest //= factor
            dims.append(rest)
            d.random.shuffle(dims)
        return d.emit("reshape", x, shape=tuple(dims))
    if op == "broadcast":
        new = list(x.shape)
        axes = list(range(rank))
        if d.random.random() < 0.4:
            new = [d.random.choice((1, 2, 3)) if size == 1 else size for size in new]
        at = d.random.randint(0, rank)
        new.insert(at, d.random.choice((1, 2, 3, 5)))
        axes = [axis + (axis >= at) for axis in axes]
        return d.emit("broadcast", x, shape=tuple(new), axes=tuple(axes))
    if not rank:
        raise Refused
    if op == "transpose":
        return d.emit("transpose", x, perm=tuple(d.random.sample(range(rank), rank)))
    if op == "slice":
        starts, limits, strides = [], [], []
        for size in x.shape:
            stride = d.random.choice((1, 1, 1, 2, 3, -1, -2))
            low = d.random.randint(0, size) if d.random.random() < 0.5 else 0
            high = d.random.randint(low, size) if d.random.random() < 0.5 else size
            if low == high and d.random.random() < 0.95:
                low, high = 0, size
            forward = stride > 0 or low == high
            stride = abs(stride) if forward else stride
            starts.append(low if forward else high - 1)
            limits.append(high if forward else low - 1)
            strides.append(stride)
        attrs = {"starts": starts, "limits": limits, "strides": strides}
        return d.emit("slice", x, **{name: tuple(item) for name, item in attrs.items()})
    axis = d.axis(x)
    if op == "concat":
        parts = [x]
        for _ in range(d.random.randint(1, 3)):
            same = [
                v for v in d.pool
                if v.dtype is x.dtype and v.type.rank == rank
                and v.shape[:axis] == x.shape[:axis] and v.shape[axis + 1 :] == x.shape[axis + 1 :]
            ]  # fmt: skip
            parts.append(d.random.choice(same) if same and d.random.random() < 0.8 else d.like(x))
        d.random.shuffle(parts)
        return d.emit("concat", *parts, axis=axis)
    low = [d.random.choice((0, 0, 1, 2, -1)) for _ in range(rank)]
    high = [d.random.choice((0, 0, 1, 3, -1)) for _ in range(rank)]
    low, high = (
        [max(amount, -(size // 2)) for amount, size in zip(side, x.shape, strict=True)]
        for side in (low, high)
    )
    number: Any = d.random.choice((0, 0, 1, 2))
    if is_float(x) and d.random.random() < 0.3:
        number = d.random.choice((0.5, -1.25, float("-inf") if d.special else 0.1))
    if x.dtype.kind == "bool":
        number = bool(number)
    return d.emit("pad", x, low=tuple(low), high=tuple(high), value=number)


def move(d: Drawing) -> list[Value]:
    return [move_once(d, d.pick())]


def move_chain(d: Drawing) -> list[Value]:
    x = d.pick()
    for _ in range(d.random.randint(2, 5)):
        x = move_once(d, x)
    return [x]


def gather(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: has_rank(v) and 0 not in v.shape)
    axis = d.axis(x)
    shape = d.shape(d.random.choice((0, 1, 1, 2)))
    known = [
        v for v in d.pool
        if v.dtype.is_integer and v.type.size and not d.bounds[v].loose.any()
        and v.dtype.kind == "int" and d.bounds[v].low.min() >= -x.shape[axis]
        and d.bounds[v].low.max() < x.shape[axis]
    ]  # fmt: skip
    if known and d.random.random() < 0.5:
        indices = d.random.choice(known)
    else:
        indices = d.indices(x.shape[axis], shape)
    return [d.emit("gather", x, indices, axis=axis)]


def scatter(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: has_rank(v) and 0 not in v.shape)
    axis = d.axis(x)
    kinds = ["none"] if x.dtype.kind == "bool" else ["none", "add", "add", "mul", "min", "max"]
    reduction = d.random.choice(kinds)
    if reduction == "none":
        shape: tuple[int, ...] = (d.random.randint(1, x.shape[axis]),)
        indices = d.indices(x.shape[axis], shape, distinct=True)
    else:
        shape = d.shape(d.random.choice((0, 1, 1, 2)))
        indices = d.indices(x.shape[axis], shape)
    updates = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
    fits = [v for v in d.pool if v.dtype is x.dtype and v.shape == updates]
    if prod(updates) > 4096:
        raise Refused
    source = d.random.choice(fits) if fits and d.random.random() < 0.7 else d.leaf(x.dtype, updates)
    return [d.emit("scatter", x, indices, source, axis=axis, reduction=reduction)]


MOST_CHOICES = 4096
"""That are drawn one by one: hypothesis makes no longer lists."""
MOST_COMPARISONS = 1 << 28
"""Of a sort, which ranks each element among its row: about 20 s in the interpreter."""


def sort(d: Drawing) -> list[Value]:
    x = d.pick(lambda v: has_rank(v) and v.dtype.kind != "bool" and 0 not in v.shape)
    axis = d.axis(x)
    if x.type.size * x.shape[axis] > MOST_COMPARISONS:
        raise Refused
    values = d.emit("sort", x, axis=axis, descending=d.random.random() < 0.5)
    assert values.node is not None
    order = values.node.outputs[1]
    return [values, order] if d.random.random() < 0.6 else [d.random.choice((values, order))]


MOVES: dict[Move, float] = {
    bits: 1, unary: 8, binary: 12, chain: 5, compare: 3, select: 4, classify: 1, cast: 5, create: 4,
    reduce: 6, extreme: 2, running: 2.5, window: 2.5, dot: 5, dense: 4, gated: 2, shared: 2,
    conv: 3, softmax: 3, normalise: 3, attention: 2, rotate: 1.5, move: 7, move_chain: 5,
    gather: 4, scatter: 2.5, sort: 2,
}  # fmt: skip
