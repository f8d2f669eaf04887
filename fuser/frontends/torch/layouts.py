"""How results lie in memory: as PyTorch's traced program says.

    y = x * 2        # x is channels_last: so is y

A plan's outputs are row-major. A result whose strides are a permutation of that is written with its
axes in the order of its memory, and the tensor is made with the strides of the traced one: no
kernel and no copy is added. A result with gaps is computed row-major and copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuser.errors import FuserError, UnsupportedError
from fuser.frontends.torch.symbols import dim_of, hint
from fuser.graph.dims import Dim
from fuser.graph.sizes import evaluate, same


@dataclass(frozen=True)
class Layout:
    """Strides of a result. order: its axes from the outermost in memory to the innermost; None:
    there are gaps between the elements, or overlaps. strides: None where dims cannot spell them:
    they follow from the order."""

    order: tuple[int, ...] | None
    strides: tuple[Dim, ...] | None

    def at(self, sizes: Mapping[str, int]) -> Layout:
        """The layout at these sizes of all symbols."""
        if self.strides is None:
            return self
        try:
            return replace(self, strides=tuple(evaluate(dim, sizes) for dim in self.strides))
        except KeyError as error:  # of a symbol that no argument tells
            if self.order is None:
                raise UnsupportedError(f"a result with the strides {self.strides}") from error
            return replace(self, strides=None)

    def strides_for(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides, once sizes are known."""
        if self.strides is not None:
            return tuple(map(int, self.strides))
        assert self.order is not None
        strides, width = [1] * len(shape), 1
        for axis in reversed(self.order):
            strides[axis], width = width, width * max(1, shape[axis])
        return tuple(strides)


def layout_of(value: Any) -> Layout | None:
    """The layout of a traced tensor; None where it is row-major. Raises UnsupportedError for
    strides that cannot be told."""
    shape, strides = tuple(value.shape), tuple(value.stride())
    if all(map(_same, strides, row_major(shape))):
        return None
    order = _order(shape, strides)
    try:
        return Layout(order, tuple(map(dim_of, strides)))
    except FuserError as error:
        if order is None:
            raise UnsupportedError(f"a result with the strides {strides}") from error
        return Layout(order, None)


def dense_layout_of(value: Any) -> Layout | None:
    """The layout of a traced tensor, where that has gaps or overlaps the one without them whose
    axes have the same order in memory: that of what PyTorch computes of it element by element."""
    found = layout_of(value)
    if found is None or found.order is not None:
        return found
    axes = range(len(value.shape))
    strides = [hint(stride) for stride in value.stride()]
    order = tuple(sorted(axes, key=lambda axis: -strides[axis]))
    return None if order == tuple(axes) else Layout(order, None)


def row_major(shape: Sequence[Any]) -> list[Any]:
    """The strides that PyTorch gives to a new tensor; sizes may be open."""
    import torch

    strides: list[Any] = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        size = shape[axis + 1]
        least = max(size, 1) if type(size) is int else torch.sym_max(size, 1)  # type: ignore[no-untyped-call]
        strides[axis] = strides[axis + 1] * least
    return strides


def _order(shape: Sequence[Any], strides: Sequence[Any]) -> tuple[int, ...] | None:
    """The axes from the outermost in memory to the innermost, where the elements fill it without
    gaps and overlaps; None where they do not, or where that depends on sizes."""
    if any(_is(size, 0) for size in shape):
        return tuple(range(len(shape)))
    long = [axis for axis, size in enumerate(shape) if not _is(size, 1)]
    order = sorted(long, key=lambda axis: (-hint(strides[axis]), axis))
    expected: Any = 1
    for axis in reversed(order):
        if not _same(strides[axis], expected):
            return None
        expected = expected * shape[axis]
    for axis in range(len(shape)):  # one of a single element may be anywhere
        if axis not in long:
            order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(order)


def overlaps(value: Any) -> bool:
    """Whether elements of a traced tensor share memory, at the sizes that it was traced with."""
    pairs = [(hint(n), hint(s)) for n, s in zip(value.shape, value.stride(), strict=True)]
    reach = 0
    for size, stride in sorted((p for p in pairs if p[0] > 1), key=lambda pair: pair[1]):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def are_apart(one: Any, other: Any) -> bool:
    """Whether two views of a traced tensor share no element, whatever the symbols are: one ends
    in memory before the other begins."""
    ends = []
    for value in (one, other):
        shape, strides, start = value.shape, value.stride(), value.storage_offset()
        if any(type(number) is not int for number in (*shape, *strides, start)):
            return False
        if 0 in shape:
            return True
        steps = ((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        ends.append((start, start + sum(steps)))
    (first, last), (start, end) = ends
    return bool(last < start or end < first)


def count(value: Any) -> int:
    """How many elements a traced tensor has, at the sizes that it was traced with."""
    return math.prod(map(hint, value.shape))


def _same(a: Any, b: Any) -> bool:
    """Whether sizes are equal whatever the symbols are."""
    if type(a) is type(b) is int:
        return bool(a == b)
    try:
        return same(dim_of(a), dim_of(b))
    except FuserError:
        return _text(a) == _text(b)


def _text(size: Any) -> str:
    return str(size) if type(size) is int else str(size.node.expr)


def _is(size: Any, number: int) -> bool:
    return type(size) is int and size == number
