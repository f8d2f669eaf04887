"""Running folds that are no primitives by themselves: maxima of long rows, and folds of any
associative function by doubling."""

from __future__ import annotations

from collections.abc import Callable

from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import Value

WHOLE = 256
"""Rows of up to as many elements are one scan; longer ones are scans of parts and of their last
elements, so that every kernel holds its rows whole."""


def running_max(b: Builder, x: Value, axis: int) -> Value:
    """The greatest element so far along an axis, inclusive; NaN from the first NaN on."""
    size = as_int(x.shape[axis])
    if size <= WHOLE:
        return b.emit("cumsum", x, axis=axis, exclusive=False, reverse=False, fn="max")
    parts = -(-size // WHOLE)
    lowest = x.dtype.lowest
    high = [0] * x.type.rank
    high[axis] = parts * WHOLE - size
    whole = b.pad(x, [0] * x.type.rank, high, lowest)
    split = (*x.shape[:axis], parts, WHOLE, *x.shape[axis + 1 :])
    within = running_max(b, b.reshape(whole, split), axis + 1)
    ends = b.squeeze(b.slice_axis(within, axis + 1, WHOLE - 1, WHOLE), [axis + 1])
    before = b.slice_axis(running_max(b, ends, axis), axis, 0, parts - 1)
    low = [0] * x.type.rank
    low[axis] = 1
    carried = b.pad(before, low, [0] * x.type.rank, lowest)
    kept = [a for a in range(len(split)) if a != axis + 1]
    found = b.map("max", within, b.broadcast(carried, split, kept))
    return b.slice_axis(b.reshape(found, whole.shape), axis, 0, size)


def by_doubling(
    b: Builder, x: Value, axis: int, combine: Callable[[Value, Value], Value], identity: float
) -> Value:
    """The running fold of an associative function along an axis, inclusive: after step k an element
    is the fold of 2^k elements. combine: of a fold and that of what follows."""
    size, step = as_int(x.shape[axis]), 1
    while step < size:
        low = [0] * x.type.rank
        low[axis] = step
        moved = b.pad(b.slice_axis(x, axis, 0, size - step), low, [0] * x.type.rank, identity)
        x = combine(moved, x)
        step *= 2
    return x
