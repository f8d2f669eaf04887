"""ATen operators that move elements."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fuser.base.limits import check_table
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import (
    as_values,
    aten,
    axes_of,
    axis_of,
    named_axes,
    promote,
)
from fuser.graph import compose
from fuser.graph.builder import Builder, infer_minus_one
from fuser.graph.dims import Dim, maximum, minimum
from fuser.graph.ir import Value


@aten(
    "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "positive",
)  # fmt: skip
def same(b: Builder, x: Value, *_: Any, **__: Any) -> Value:
    return x


@aten("view.default", "_unsafe_view", "reshape", "view_copy", "_reshape_alias")
def view(b: Builder, x: Value, shape: Any, *_: Any) -> Value:
    return b.reshape(x, infer_minus_one(x.type, list(shape)))


@aten("permute", "permute_copy")
def permute(b: Builder, x: Value, axes: Any) -> Value:
    return b.transpose(x, [axis_of(axis, x.type.rank) for axis in axes])


@aten("transpose")
def transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    rank = x.type.rank
    return b.swap(x, axis_of(first, rank), axis_of(second, rank)) if rank else x


@aten("t")
def t(b: Builder, x: Value) -> Value:
    return b.transpose(x, range(x.type.rank)[::-1])


@aten("unsqueeze", "unsqueeze_copy")
def unsqueeze(b: Builder, x: Value, axis: int) -> Value:
    return b.unsqueeze(x, [axis_of(axis, x.type.rank + 1)])


@aten("squeeze", "squeeze_copy")
def squeeze(b: Builder, x: Value, axes: Any = None) -> Value:
    return b.squeeze(x, [a for a in named_axes(axes, x.type.rank) if x.shape[a] == 1])


@aten("expand", "expand_copy")
def expand(b: Builder, x: Value, shape: Any, *, implicit: bool = False) -> Value:
    offset = len(shape) - x.type.rank
    full = [x.shape[i - offset] if dim == -1 else dim for i, dim in enumerate(shape)]
    return b.broadcast_to(x, full)


@aten("cat", "concat", "concatenate")
def cat(b: Builder, tensors: Any, axis: int = 0) -> Value:
    # An empty vector joins anything: a remnant of PyTorch's past.
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    values = as_values(b, kept, promote(*tensors))
    return b.concat(values, axis_of(axis, values[0].type.rank))


@aten("stack")
def stack(b: Builder, tensors: Any, axis: int = 0) -> Value:
    values = as_values(b, tensors, promote(*tensors))
    at = axis_of(axis, values[0].type.rank + 1)
    return b.concat([b.unsqueeze(value, [at]) for value in values], at)


def _bound(index: Any, size: Dim, otherwise: Dim) -> Any:
    if index is None:
        return otherwise
    return minimum(maximum(index + size if index < 0 else index, 0), size)


@aten("slice", "slice_copy")
def slice_(
    b: Builder, x: Value, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    at = axis_of(axis, x.type.rank)
    size = x.shape[at]
    low = _bound(start, size, 0)
    return b.slice_axis(x, at, low, maximum(low, _bound(end, size, size)), step)


@aten("select.int", "select_copy")
def select(b: Builder, x: Value, axis: int, index: Any) -> Value:
    at = axis_of(axis, x.type.rank)
    if isinstance(index, Value):
        return b.emit("gather", x, b.reshape(index, ()), axis=at)
    index = index + x.shape[at] if index < 0 else index
    return b.squeeze(b.slice_axis(x, at, index, index + 1), [at])


@aten("split.Tensor", "split")
def split(b: Builder, x: Value, width: int, axis: int = 0) -> list[Value]:
    size = x.shape[axis_of(axis, x.type.rank)]
    widths = [min(width, size - low) for low in range(0, size, width)] or [0]
    return split_with_sizes(b, x, widths, axis)


@aten("split_with_sizes", "split_with_sizes_copy", "split.sizes")
def split_with_sizes(b: Builder, x: Value, sizes: Any, axis: int = 0) -> list[Value]:
    at = axis_of(axis, x.type.rank)
    bounds = [0, *accumulate(sizes)]
    return [b.slice_axis(x, at, low, high) for low, high in pairwise(bounds)]


@aten("chunk")
def chunk(b: Builder, x: Value, count: int, axis: int = 0) -> list[Value]:
    return split(b, x, max(1, -(-x.shape[axis_of(axis, x.type.rank)] // count)), axis)


@aten("unbind")
def unbind(b: Builder, x: Value, axis: int = 0) -> list[Value]:
    return [select(b, x, axis, i) for i in range(x.shape[axis_of(axis, x.type.rank)])]


@aten("flip")
def flip(b: Builder, x: Value, axes: Any) -> Value:
    turned = named_axes(axes, x.type.rank)
    if not x.type.size:
        return x
    starts = [n - 1 if i in turned else 0 for i, n in enumerate(x.shape)]
    limits = [-1 if i in turned else n for i, n in enumerate(x.shape)]
    return b.slice(x, starts, limits, [-1 if i in turned else 1 for i in range(x.type.rank)])


@aten("roll")
def roll(b: Builder, x: Value, shifts: Any, axes: Any = ()) -> Value:
    if not axes:
        flat = roll(b, b.reshape(x, (x.type.size,)), shifts, [0])
        return b.reshape(flat, x.type.shape)
    amounts = shifts if isinstance(shifts, list | tuple) else [shifts]
    for shift, axis in zip(amounts, axes_of(axes, x.type.rank), strict=True):
        size = x.shape[axis]
        cut = -shift % size if size else 0
        if cut:
            ends = b.slice_axis(x, axis, cut, size), b.slice_axis(x, axis, 0, cut)
            x = b.concat(ends, axis)
    return x


@aten("repeat")
def repeat(b: Builder, x: Value, repeats: Any) -> Value:
    x = b.unsqueeze(x, range(len(repeats) - x.type.rank))
    spread = [dim for pair in zip(repeats, x.shape, strict=True) for dim in pair]
    wide = b.broadcast(x, spread, range(1, len(spread), 2))
    return b.reshape(wide, [r * n for r, n in zip(repeats, x.shape, strict=True)])


def _pairs(x: Value, padding: Any) -> tuple[list[int], list[int]]:
    """Low and high amounts an axis; PyTorch lists them from the last axis."""
    low, high = [0] * x.type.rank, [0] * x.type.rank
    for i in range(len(padding) // 2):
        low[-1 - i], high[-1 - i] = padding[2 * i], padding[2 * i + 1]
    return low, high


@aten("constant_pad_nd")
def constant_pad(b: Builder, x: Value, padding: Any, value: Any = 0) -> Value:
    return b.pad(x, *_pairs(x, padding), value)


def _pad_by_index(b: Builder, x: Value, padding: Any, mode: Any) -> Value:
    for axis, widths in enumerate(zip(*_pairs(x, padding), strict=True)):
        if any(widths):
            check_table("the places of a padded axis", x.shape[axis] + sum(widths), arrays=3)
            indices = np.pad(np.arange(x.shape[axis]), widths, mode=mode)
            x = b.emit("gather", x, b.constant(indices), axis=axis)
    return x


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: Builder, x: Value, padding: Any) -> Value:
    return _pad_by_index(b, x, padding, "reflect")


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: Builder, x: Value, padding: Any) -> Value:
    return _pad_by_index(b, x, padding, "edge")


@aten(*(f"replication_pad{rank}d_backward" for rank in (1, 2, 3)))
def replication_pad_backward(b: Builder, grad: Value, x: Value, padding: Any) -> Value:
    """What was padded has its gradient added to that of the edge."""
    found = compose.stash(b, grad)
    for axis, (low, high) in enumerate(zip(*_pairs(x, padding), strict=True)):
        size, n = found.shape[axis], x.shape[axis]
        if not (low or high):
            continue
        inner = b.slice_axis(found, axis, max(low, 0), size - max(high, 0))
        total = _padded(b, inner, axis, max(-low, 0), max(-high, 0))
        edges = ((0, max(low, 0), 0), (size - max(high, 0), size, n - 1))
        for start, limit, place in edges:
            if start < limit:
                part = b.reduce("reduce_sum", b.slice_axis(found, axis, start, limit), [axis], True)
                total = b.map("add", total, _padded(b, part, axis, place, n - 1 - place))
        found = total
    return b.cast(found, grad.dtype)


def _padded(b: Builder, x: Value, axis: int, low: int, high: int) -> Value:
    before, after = [0] * x.type.rank, [0] * x.type.rank
    before[axis], after[axis] = low, high
    return b.pad(x, before, after)


@aten("diagonal", "diagonal_copy")
def diagonal(b: Builder, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    """The flattened matrices at every (columns + 1)-th element."""
    pair = [axis_of(first, x.type.rank), axis_of(second, x.type.rank)]
    x = b.transpose(x, [*(a for a in range(x.type.rank) if a not in pair), *pair])
    *outer, rows, columns = x.shape
    row, column = max(0, -offset), max(0, offset)
    count = max(0, min(rows - row, columns - column))
    start = row * columns + column
    flat = b.reshape(x, (*outer, rows * columns))
    if not count:  # an offset beyond the matrix, or a matrix without elements
        return b.slice_axis(flat, len(outer), 0, 0)
    limit = start + (count - 1) * (columns + 1) + 1
    return b.slice_axis(flat, len(outer), start, limit, columns + 1)


def strided_places(x: Value, shape: Any, strides: Any, offset: Any) -> np.ndarray:
    """The linear indices in row-major memory that strides give. Raises UnsupportedError."""
    check_table("the places of a view", *shape, arrays=2)
    indices = np.full((), offset or 0, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        indices = indices[..., None] + np.arange(size) * stride
    if indices.size and indices.max() >= x.type.size:
        raise UnsupportedError("as_strided reaches beyond its operand")
    return indices


@aten("as_strided", "as_strided_copy")
def as_strided(b: Builder, x: Value, shape: Any, strides: Any, offset: Any = None) -> Value:
    """Elements of the row-major tensor at linear indices."""
    indices = strided_places(x, shape, strides, offset)
    check_table("the places of a view", *x.shape)
    if np.array_equal(indices.reshape(-1), np.arange(x.type.size)):
        return b.reshape(x, tuple(shape))
    return b.emit("gather", b.reshape(x, (x.type.size,)), b.constant(indices), axis=0)


@aten("unfold", "unfold_copy")
def unfold(b: Builder, x: Value, axis: int, size: int, step: int) -> Value:
    """Windows along an axis; their elements become the last axis."""
    if not x.type.rank:
        return b.slice_axis(b.reshape(x, (1,)), 0, 0, size)
    at = axis_of(axis, x.type.rank)
    check_table("the places of windows", max(0, x.shape[at] - size) // step + 1, size, arrays=2)
    starts = np.arange(0, x.shape[at] - size + 1, step)
    found = b.emit("gather", x, b.constant(starts[:, None] + np.arange(size)), axis=at)
    order = [a for a in range(found.type.rank) if a != at + 1]
    return b.transpose(found, [*order, at + 1])


@aten("copy")
def copy(b: Builder, x: Value, source: Any, non_blocking: bool = False) -> Value:
    if not isinstance(source, Value):
        return b.full(np.asarray(source).astype(x.dtype.numpy).item(), x.type)
    return b.broadcast_to(b.cast(source, x.dtype), x.type.shape)


@aten("pixel_shuffle")
def pixel_shuffle(b: Builder, x: Value, factor: int) -> Value:
    *outer, channels, height, width = x.shape
    kept = channels // factor**2
    n = len(outer)
    split_ = b.reshape(x, (*outer, kept, factor, factor, height, width))
    order = [*range(n + 1), n + 3, n + 1, n + 4, n + 2]
    return b.reshape(b.transpose(split_, order), (*outer, kept, height * factor, width * factor))
