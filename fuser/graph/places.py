"""Reads and writes at places that arrays of indices name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fuser import dtypes
from fuser.graph.builder import Builder, broadcast_shapes
from fuser.graph.ir import Value


def gather_at(b: Builder, x: Value, arrays: Mapping[int, Value]) -> Value:
    """Integer arrays at some axes: they broadcast together, and their axes stand where the first
    of them is, or in front if they are not neighbours."""
    axes = sorted(arrays)
    if len(axes) == 1:
        return b.emit("gather", x, arrays[axes[0]], axis=axes[0])
    neighbours = axes[-1] - axes[0] == len(axes) - 1
    rest = [axis for axis in range(x.type.rank) if axis not in arrays]
    places = linear_places(b, [arrays[a] for a in axes], [x.shape[a] for a in axes])
    front = b.transpose(x, [*axes, *rest])
    merged = b.reshape(
        front, (int(np.prod([x.shape[a] for a in axes])), *(x.shape[a] for a in rest))
    )
    result = b.emit("gather", merged, places, axis=0)
    if not neighbours:
        return result
    before = sum(axis < axes[0] for axis in rest)
    rank = places.type.rank
    order = [
        *range(rank, rank + before), *range(rank), *range(rank + before, result.type.rank)
    ]  # fmt: skip
    return b.transpose(result, order)


def linear_places(b: Builder, indices: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Row-major places of index tuples; negative indices count from the end."""
    shape = broadcast_shapes("index", [value.type.shape for value in indices])
    total: Value | None = None
    for value, size in zip(indices, sizes, strict=True):
        wide = b.cast(b.broadcast_to(value, shape), dtypes.i64)
        wide = b.map("select", b.map("lt", wide, 0), b.map("add", wide, size), wide)
        total = wide if total is None else b.map("add", b.map("mul", total, size), wide)
    assert total is not None
    return total


def gather_along(b: Builder, value: Value, places: Value, axis: int) -> Value:
    """value[..., places[i...], ...]: one gather of the flattened array, at linear places. Other
    axes broadcast."""
    lead = [
        n if i == axis else max(m, n)
        for i, (m, n) in enumerate(zip(value.shape, places.shape, strict=True))
    ]
    whole = [value.shape[i] if i == axis else n for i, n in enumerate(lead)]
    value = b.broadcast_to(value, whole)
    linear = along_places(b, b.broadcast_to(places, lead), whole, axis)
    return b.emit("gather", b.reshape(value, (value.type.size,)), linear, axis=0)


def along_places(b: Builder, places: Value, shape: Sequence[int], axis: int) -> Value:
    """The row-major place in an array of `shape` that each element of `places` names along `axis`,
    at its own position on the other axes; negative ones count from the end."""
    places = b.cast(places, dtypes.i64)
    linear: Value | None = None
    stride = 1
    for i in reversed(range(len(shape))):
        if i == axis:
            wrapped = b.map("add", places, shape[axis])
            part = b.map("select", b.map("lt", places, 0), wrapped, places)
        else:
            part = b.iota(places.type.shape, i)
        part = b.map("mul", part, stride) if stride != 1 else part
        linear = part if linear is None else b.map("add", linear, part)
        stride *= shape[i]
    assert linear is not None
    return linear
