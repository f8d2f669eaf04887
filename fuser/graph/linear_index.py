"""Gathers at arrays of indices, and the linear (row-major) index that several axes make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fuser import dtypes
from fuser.graph.builder import Builder, broadcast_shapes
from fuser.graph.dims import Dim, product
from fuser.graph.ir import Value


def gather_at(b: Builder, x: Value, arrays: Mapping[int, Value]) -> Value:
    """Integer arrays at some axes: they broadcast together, and their axes stand where the first
    of them is, or in front if they are not neighbours."""
    axes = sorted(arrays)
    if len(axes) == 1:
        return b.emit("gather", x, arrays[axes[0]], axis=axes[0])
    neighbours = axes[-1] - axes[0] == len(axes) - 1
    rest = [axis for axis in range(x.type.rank) if axis not in arrays]
    linear = linear_index(b, [arrays[a] for a in axes], [x.shape[a] for a in axes])
    front = b.transpose(x, [*axes, *rest])
    merged = b.reshape(
        front, (int(np.prod([x.shape[a] for a in axes])), *(x.shape[a] for a in rest))
    )
    result = b.emit("gather", merged, linear, axis=0)
    if not neighbours:
        return result
    before = sum(axis < axes[0] for axis in rest)
    rank = linear.type.rank
    order = [
        *range(rank, rank + before), *range(rank), *range(rank + before, result.type.rank)
    ]  # fmt: skip
    return b.transpose(result, order)


class LinearIndex:
    """Linear indices into a flattened array, summed axis by axis, negative indices counted from the
    end. An index outside of its axis makes the sum one outside of the array: by itself it could
    point at another row, or wrap around."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self._sum: Value | None = None
        self._inside: Value | None = None

    def add(self, index: Value, size: Dim, stride: Dim) -> None:
        """An axis with the given index; int64 from here on."""
        b = self.b
        wide = b.cast(index, dtypes.i64)
        known = b.known(wide)
        plain, within = False, False
        if known is not None and known.dtype != object:
            plain = not known.size or int(known.min()) >= 0
            within = isinstance(size, int) and (not known.size or int(known.max()) < size)
        if not (plain and within):
            extent = size if isinstance(size, int) else b.dim(size)
            below = b.map("lt", wide, extent)
            least = -size if isinstance(size, int) else b.map("neg", b.dim(size))
            inside = b.map("logical_and", b.map("ge", wide, least), below)
            self._inside = (
                inside if self._inside is None else b.map("logical_and", self._inside, inside)
            )
            if not plain:
                wrapped = b.map("add", wide, extent)
                wide = b.map("select", b.map("lt", wide, 0), wrapped, wide)
        self.add_inside(wide, stride)

    def add_inside(self, index: Value, stride: Dim) -> None:
        """An axis with indices that are known to lie in it: positions."""
        if stride != 1:
            index = self.b.map(
                "mul", index, stride if isinstance(stride, int) else self.b.dim(stride)
            )
        self._sum = index if self._sum is None else self.b.map("add", self._sum, index)

    def result(self, size: Dim) -> Value:
        """The indices into an array of `size` elements."""
        assert self._sum is not None
        if self._inside is None:
            return self._sum
        outside = size if isinstance(size, int) else self.b.dim(size)
        return self.b.map("select", self._inside, self._sum, outside)


def linear_index(b: Builder, indices: Sequence[Value], sizes: Sequence[Dim]) -> Value:
    """The linear index of index tuples; negative indices count from the end."""
    shape = broadcast_shapes("index", [value.type.shape for value in indices])
    linear = LinearIndex(b)
    for axis, (value, size) in enumerate(zip(indices, sizes, strict=True)):
        linear.add(b.broadcast_to(value, shape), size, product(list(sizes[axis + 1 :])))
    return linear.result(product(list(sizes)))


def gather_along(b: Builder, value: Value, indices: Value, axis: int) -> Value:
    """value[..., indices[i...], ...]: one gather of the flattened array, at linear indices.
    Other axes broadcast."""
    lead = [
        n if i == axis else max(m, n)
        for i, (m, n) in enumerate(zip(value.shape, indices.shape, strict=True))
    ]
    whole = [value.shape[i] if i == axis else n for i, n in enumerate(lead)]
    value = b.broadcast_to(value, whole)
    linear = linear_index_along(b, b.broadcast_to(indices, lead), whole, axis)
    return b.emit("gather", b.reshape(value, (value.type.size,)), linear, axis=0)


def linear_index_along(b: Builder, indices: Value, shape: Sequence[Dim], axis: int) -> Value:
    """The linear index into an array of `shape` that each element of `indices` gives along `axis`,
    at its own position on the other axes; negative ones count from the end."""
    linear = LinearIndex(b)
    for i, size in enumerate(shape):
        stride = product(list(shape[i + 1 :]))
        if i == axis:
            linear.add(indices, size, stride)
        elif indices.type.shape[i] != 1:
            linear.add_inside(b.iota(indices.type.shape, i), stride)
    return linear.result(product(list(shape)))
