"""Steps of edition 2: parts of one tensor that meet again, with each other and with its rows.

What programs from elsewhere have and single random moves hardly ever draw: several slices of one
tensor, beside reductions of it along the same axis; several reductions and maps of the same rows;
the same again of a transposed tensor; chains that turn and reshape; long windows with padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.windows import reduce_windows
from tests.random_graphs.bounds import Array
from tests.random_graphs.draw import Drawing, Move, Refused
from tests.random_graphs.moves import (
    activation,
    has_rank,
    is_float,
    restored,
    softmax_of,
    wide_float,
    width_of,
)

Section = tuple[int, int, int]
"""The start, limit and stride of a slice along one axis."""
MEETINGS = ("add", "sub", "sub", "mul", "max", "min")
MAPS = ("tanh", "neg", "abs", "exp", "erf", "atan", "floor", "sin", "cos")


# slices -------------------------------------------------------------------------------------------


def sections(d: Drawing, size: int, count: int) -> list[Section]:
    """Parts of one length along an axis of `size`."""
    kind = d.random.choice(("single", "single", "single", "half", "shift", "strided", "turned"))
    if kind == "half" and size >= 2:
        length = size // 2
        return [d.random.choice(((0, length, 1), (size - length, size, 1))) for _ in range(count)]
    if kind == "strided" and size >= 2:
        step = d.random.choice((2, 2, 3))
        length = size // step
        if length:
            starts = [d.random.randrange(size - (length - 1) * step) for _ in range(count)]
            return [(start, start + (length - 1) * step + 1, step) for start in starts]
    if kind == "turned":
        ways: list[Section] = [(0, size, 1), (size - 1, -1, -1)]
        return [d.random.choice(ways) for _ in range(count)]
    if kind == "shift":
        length = max(1, size - d.random.choice((1, 1, 2, size // 3)))
    else:
        length = 1
    places = [0, size - length, min(1, size - length), d.random.randint(0, size - length)]
    found = [d.random.choice(places) for _ in range(count)]
    return [(start, start + length, 1) for start in found]


def section_of(d: Drawing, x: Value, axis: int, section: Section) -> Value:
    rank = x.type.rank
    starts, limits, strides = [0] * rank, list(x.shape), [1] * rank
    starts[axis], limits[axis], strides[axis] = section
    attrs = {"starts": tuple(starts), "limits": tuple(limits), "strides": tuple(strides)}
    return d.emit("slice", x, **attrs)


def meet(d: Drawing, a: Value, b: Value) -> Value:
    """One of two values of the same shape, whatever their kind."""
    pair = (a, b) if d.random.random() < 0.7 else (b, a)
    if a.dtype.kind == "bool":
        return d.emit(d.random.choice(("logical_and", "logical_or", "logical_xor")), *pair)
    if d.random.random() < 0.12:
        mask = d.emit(d.random.choice(("lt", "ge", "eq")), *pair)
        return d.emit("select", mask, *pair)
    return d.emit(d.random.choice(MEETINGS), *pair)


def row_of(d: Drawing, x: Value, axes: tuple[int, ...]) -> Value:
    """A reduction of x, plain or composed."""
    if x.dtype.kind == "bool":
        return d.emit(d.random.choice(("reduce_max", "reduce_min")), x, axes=axes)
    kinds = ["reduce_sum", "reduce_max", "reduce_min", "reduce_sum", "reduce_max"]
    if is_float(x):
        kinds += ["mean", "mean", "logsumexp", "variance", "norm", "prod"]
    kind = d.random.choice(kinds)
    if kind.startswith("reduce"):
        return d.emit(kind, x, axes=axes)
    if kind == "prod":
        return d.emit("reduce_prod", d.emit("tanh", x), axes=axes)
    if kind == "norm":
        return d.emit("sqrt", d.emit("reduce_sum", d.emit("mul", x, x), axes=axes))
    if kind == "mean":
        return mean_of(d, x, axes)
    if kind == "variance":
        centred = d.emit("sub", x, restored(d, mean_of(d, x, axes), x, axes))
        return mean_of(d, d.emit("mul", centred, centred), axes)
    peak = d.emit("reduce_max", x, axes=axes)
    powers = d.emit("exp", d.emit("sub", x, restored(d, peak, x, axes)))
    return d.emit("add", peak, d.emit("log", d.emit("reduce_sum", powers, axes=axes)))


def middle(d: Drawing, x: Value) -> Array:
    """A value that x may have, in float64."""
    bound = d.bounds[x]
    if not bound.dtype.is_float:
        return np.asarray(bound.low, np.float64)
    with np.errstate(all="ignore"):
        return np.where(bound.nan > 0, np.nan, (bound.low + bound.high) / 2)


def mean_of(d: Drawing, x: Value, axes: tuple[int, ...], sure: bool = False) -> Value:
    """The front ends' mean."""
    if not x.type.size:
        raise Refused
    with np.errstate(all="ignore"):
        meaning = np.mean(middle(d, x), axis=axes)
    return d.composed(lambda b: b.mean(x, axes), meaning, sure)


def slices_meet(d: Drawing) -> list[Value]:
    """Some parts of a tensor combined, and perhaps with a reduction of it along the same axis."""
    x = d.pick(lambda v: has_rank(v) and 0 not in v.shape)
    axis = d.axis(x) if d.random.random() < 0.5 else x.type.rank - 1
    made: list[Value] = []
    row = None
    if d.random.random() < 0.3:  # before the slices, else behind
        row = row_of(d, x, (axis,))
    found = sections(d, x.shape[axis], d.random.choice((1, 2, 2, 2, 3, 4)))
    parts = [section_of(d, x, axis, section) for section in found]
    if d.random.random() < 0.25 and is_float(x):
        parts = [d.emit(d.random.choice(MAPS), part) for part in parts]
    value = parts[0]
    for part in parts[1:]:
        value = meet(d, value, part)
    if len(parts) == 1:
        value = meet(d, value, value)
    if d.random.random() < 0.15:
        made.append(value)
    if row is None and d.random.random() < 0.8:
        row = row_of(d, x, (axis,))
    if row is None:
        return [*made, value]
    if d.random.random() < 0.15:
        made.append(row)
    flat = tuple(size for at, size in enumerate(x.shape) if at != axis)
    if value.shape[axis] == 1 and d.random.random() < 0.5:
        value = d.emit("reshape", value, shape=flat)
        return [*made, meet(d, row, value)]
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if d.random.random() < 0.5:  # a kept axis that stretches, or none
        row = d.emit("reshape", row, shape=kept)
        row = row if value.shape[axis] == 1 else d.stretch(row, value.shape, range(x.type.rank))
    else:
        row = d.stretch(row, value.shape, [at for at in range(x.type.rank) if at != axis])
    value = meet(d, row, value)
    if d.random.random() < 0.2:
        whole = d.stretch(value, x.shape, range(x.type.rank)) if value.shape[axis] == 1 else value
        if whole.shape == x.shape:
            value = meet(d, whole, x)
    return [*made, value]


def pieces(d: Drawing) -> list[Value]:
    """A tensor in pieces that go their own ways and are joined again, perhaps in another order."""
    x = d.pick(lambda v: has_rank(v) and max(v.shape) >= 2 and 0 not in v.shape)
    axis = d.random.choice([at for at, size in enumerate(x.shape) if size >= 2])
    size = x.shape[axis]
    cuts = sorted(d.random.sample(range(1, size), min(size - 1, d.random.choice((1, 1, 2, 3, 7)))))
    parts = []
    for start, limit in zip([0, *cuts], [*cuts, size], strict=True):
        part = section_of(d, x, axis, (start, limit, 1))
        if d.random.random() < 0.6:
            part = (
                d.emit(d.random.choice(MAPS[:3]), part) if is_float(part) else meet(d, part, part)
            )
        parts.append(part)
    if d.random.random() < 0.3:
        return parts
    if d.random.random() < 0.5:
        d.random.shuffle(parts)
    if d.random.random() < 0.3:
        parts.append(d.random.choice(parts))
    return [d.emit("concat", *parts, axis=axis)]


# rows ---------------------------------------------------------------------------------------------


def rows_and_maps(d: Drawing) -> list[Value]:
    """Reductions of the same rows, maps of them and what joins the two, all of it asked for."""
    x = d.pick(lambda v: has_rank(v) and 0 not in v.shape)
    axes = d.axes(x, 2)
    made = []
    for _ in range(d.random.choice((1, 2, 2, 3))):
        row = row_of(d, x, axes)
        made.append(row)
        if d.random.random() < 0.5:
            made.append(meet(d, restored(d, row, x, axes), x))
    if is_float(x):
        if d.random.random() < 0.5:
            made.append(d.emit(d.random.choice(MAPS), x))
        if d.random.random() < 0.3:
            made.append(softmax_of(d, x, axes))
        if d.random.random() < 0.3:
            made.append(activation(d, x))
    d.random.shuffle(made)
    return made


def turned(d: Drawing, x: Value) -> Value:
    perm = tuple(d.random.sample(range(x.type.rank), x.type.rank))
    return d.emit("transpose", x, perm=perm)


def transposed_siblings(d: Drawing) -> list[Value]:
    """A reduction of one tensor beside the turned rows of another of its shape."""
    x = d.pick(lambda v: wide_float(v) and v.type.rank >= 2 and 0 not in v.shape)
    dtype = x.dtype if d.random.random() < 0.6 else d.random.choice((dtypes.f32, dtypes.f64))
    others = [v for v in d.pool if v.shape == x.shape and v is not x and v.dtype.kind != "bool"]
    w = d.random.choice(others) if others and d.random.random() < 0.7 else d.leaf(dtype, x.shape)
    if d.random.random() < 0.3:
        w = turned(d, w)
    axes = d.axes(w, 1)
    row = row_of(d, w, axes)
    made = [row]
    if d.random.random() < 0.4:
        made.append(d.emit("eq" if d.random.random() < 0.5 else "le", restored(d, row, w, axes), w))
    axes = d.axes(x, 1)
    soft = softmax_of(d, x, axes) if d.random.random() < 0.6 else meet(
        d, restored(d, row_of(d, x, axes), x, axes), x
    )  # fmt: skip
    made.append(turned(d, soft))
    if d.random.random() < 0.3:
        made.append(d.emit(d.random.choice(MAPS), soft))
    return made


def products_beside_rows(d: Drawing) -> list[Value]:
    """A product whose result is reduced, mapped, sliced and turned."""
    x = d.pick(lambda v: wide_float(v) and v.type.rank >= 2 and 0 not in v.shape)
    depth, width = x.shape[-1], width_of(d)
    array = d.array(x.dtype, (depth, width)).astype(np.float64) / np.sqrt(max(depth, 1))
    weights = d.feed(array.astype(x.dtype.numpy))
    y = d.emit("dot_general", x, weights, lhs_contract=(x.type.rank - 1,), rhs_contract=(0,),
               lhs_batch=(), rhs_batch=())  # fmt: skip
    made = [y] if d.random.random() < 0.4 else []
    last = y.type.rank - 1
    for _ in range(d.random.randint(1, 3)):
        kind = d.random.choice(("row", "map", "turn", "slices", "softmax", "column"))
        if kind == "row":
            made.append(row_of(d, y, (last,)))
        elif kind == "column":
            made.append(row_of(d, y, d.axes(y)))
        elif kind == "map":
            made.append(activation(d, y))
        elif kind == "turn":
            made.append(turned(d, y))
        elif kind == "softmax":
            made.append(softmax_of(d, y, (last,)))
        else:
            one, two = sections(d, width, 2)
            made.append(meet(d, section_of(d, y, last, one), section_of(d, y, last, two)))
    return made


# movement -----------------------------------------------------------------------------------------


def split_sizes(d: Drawing, size: int) -> list[int]:
    """Factors of a size, in any order."""
    found: list[int] = []
    for factor in (2, 3, 5, 7):
        while size % factor == 0 and size > 1 and d.random.random() < 0.6 and len(found) < 3:
            found.append(factor)
            size //= factor
    found.append(size)
    d.random.shuffle(found)
    return found


def turning_chain(d: Drawing) -> list[Value]:
    """Transposes and reshapes in turn."""
    x = d.pick(lambda v: has_rank(v) and v.type.size > 3)
    for step in range(d.random.choice((3, 4, 5, 6, 8, 12))):
        if step % 2:
            x = d.emit("reshape", x, shape=tuple(split_sizes(d, x.type.size)))
        else:
            x = turned(d, x)
        if d.random.random() < 0.1 and is_float(x):
            x = d.emit(d.random.choice(MAPS[:3]), x)
    return [x]


# windows ------------------------------------------------------------------------------------------


def long_window(d: Drawing) -> list[Value]:
    """Sums, maxima and means of long windows with padding, as the front ends write them."""
    dtype = d.random.choice((dtypes.f32, dtypes.f32, dtypes.f64, dtypes.f16, dtypes.i32))
    rank = d.random.choice((1, 1, 2))
    shape = [d.random.choice((1, 2, 3))]
    lines: list[tuple[int, int, tuple[int, int], int]] = []
    for _ in range(rank):
        window = d.random.choice((30, 50, 65, 100, 129, 200, 256, 300, 400) if rank == 1
                                 else (2, 7, 9, 15, 17, 33))  # fmt: skip
        hole = d.random.choice((1, 1, 1, 2, 3)) if window < 100 else 1
        reach = (window - 1) * hole + 1
        low, high = (d.random.choice((0, 1, window // 2, window - 1)) for _ in range(2))
        size = max(1, reach - low - high + d.random.choice((0, 0, 1, 5, 30)))
        shape.append(size)
        lines.append((window, d.random.choice((1, 1, 2, 3, window)), (low, high), hole))
    x = d.input(dtype, shape)
    if is_float(x) and d.random.random() < 0.3:
        x = d.emit("tanh", x)
    fn = d.random.choice(("sum", "sum", "max"))
    windows, strides, padding, dilation = (list(item) for item in zip(*lines, strict=True))
    y = window_of(d, x, fn, windows, strides, padding, dilation)
    if fn == "max" or not is_float(x):
        return [y]
    if d.random.random() < 0.5:  # padding counts
        return [d.emit("mul", y, d.number(1 / prod(windows), y))]
    ones = d.constant(np.ones(x.shape, np.float32))
    counts = window_of(d, ones, "sum", windows, strides, padding, dilation)
    if d.bounds[counts].low.min(initial=1) < 0.5:
        raise Refused
    if x.dtype is not dtypes.f32:
        counts = d.emit("cast", counts, dtype=x.dtype)
    return [d.emit("div", y, counts)]


def window_of(d: Drawing, x: Value, fn: str, windows: Sequence[int], strides: Sequence[int],
              padding: Sequence[tuple[int, int]], dilation: Sequence[int]) -> Value:  # fmt: skip
    """The primitive as it is, or as the front ends write it."""
    if d.random.random() < 0.5 and 1 not in x.shape[1:]:
        return d.composed(lambda b: reduce_windows(b, fn, x, windows, strides, padding, dilation))
    lead = x.type.rank - len(windows)
    attrs: dict[str, Any] = {
        "window": (*[1] * lead, *windows), "strides": (*[1] * lead, *strides),
        "padding": (*[(0, 0)] * lead, *padding), "dilation": (*[1] * lead, *dilation),
    }  # fmt: skip
    return d.emit("reduce_window", x, fn=fn, **attrs)


# compositions -------------------------------------------------------------------------------------


def composition(d: Drawing) -> list[Value]:
    """What the front ends make of an operator, held against its meaning."""
    from fuser.graph import compose

    x = d.pick(lambda v: wide_float(v) and 0 not in v.shape)
    axes = d.axes(x, 2)
    mid = middle(d, x)
    with np.errstate(all="ignore"):
        powers = np.exp(mid - np.max(mid, axis=axes, keepdims=True))
        total = np.sum(powers, axis=axes, keepdims=True)
        centred = mid - np.mean(mid, axis=axes, keepdims=True)
        spread = np.mean(centred * centred, axis=axes, keepdims=True)
        meanings: dict[str, tuple[Callable[[Builder], Value], Array]] = {
            "softmax": (lambda b: compose.softmax(b, x, axes), powers / total),
            "log_softmax": (lambda b: compose.log_softmax(b, x, axes), np.log(powers / total)),
            "standardize": (
                lambda b: compose.standardize(b, x, axes, 0.01)[0], centred / np.sqrt(spread + 0.01)
            ),
            "sigmoid": (lambda b: compose.sigmoid(b, x), 1 / (1 + np.exp(-mid))),
            "softplus": (lambda b: compose.softplus(b, x), np.logaddexp(mid, 0)),
        }  # fmt: skip
    make, meaning = meanings[d.random.choice(list(meanings))]
    return [d.composed(make, meaning)]


PATTERNS: dict[Move, float] = {
    slices_meet: 10, pieces: 3, rows_and_maps: 4, transposed_siblings: 3, products_beside_rows: 2,
    turning_chain: 1.5, composition: 2,
}  # fmt: skip
