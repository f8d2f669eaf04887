"""Places in sorted arrays, and what is counted by them: searchsorted, interp, histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, lift, result_type, traced, wrap
from fuser.frontends.numpy.trace.functions.registry import array_function, depends_on_data
from fuser.graph.ir import TensorType, Value

_COMPARED = 32
"""Sorted arrays of up to as many elements are compared with as a whole, larger ones by halving."""


def _vector(name: str, x: Any) -> Value:
    value = lift(x)
    if value.type.rank != 1:
        raise TraceError(f"{name} takes a vector, not {value.type}")
    return value


def _before(element: Any, wanted: Any, side: str) -> Any:
    """Whether an element comes before the place; NaN is more than all numbers."""
    if wanted.dtype.kind in "iub":
        return element < wanted if side == "left" else element <= wanted
    if side == "left":
        return (element < wanted) | (np.isnan(wanted) & ~np.isnan(element))
    return (element <= wanted) | np.isnan(wanted)


def _place(ordered: Any, wanted: Any, side: str) -> Any:
    """How many elements of a sorted vector come before each of `wanted`; int64."""
    size = ordered.shape[0]
    if size <= _COMPARED:
        return np.sum(_before(ordered, wanted[..., None], side), axis=-1)
    # Elements before the place, in steps of halves: those before `low` are, and no other ones
    # than the next `step` can be.
    low = np.zeros_like(wanted, dtype=np.int64)
    step = 1 << (size.bit_length() - 1)
    while step:
        ahead = low + step
        probe = np.take(ordered, np.minimum(ahead, size) - 1)
        low = np.where((ahead <= size) & _before(probe, wanted, side), ahead, low)
        step >>= 1
    return low


@array_function("searchsorted")
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    if side not in ("left", "right"):
        raise TraceError(f"searchsorted: side is {side!r}, not 'left' or 'right'")
    common = result_type(a, v)
    _vector("searchsorted", a)
    ordered, wanted = traced(a, common), traced(v, common)
    if sorter is not None:
        ordered = np.take(ordered, traced(sorter))
    return _place(ordered, wanted, side)


@array_function("digitize")
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The edges must be known: they may rise or fall."""
    edges = _known_edges("digitize", bins)
    falling = len(edges) > 1 and edges[0] > edges[-1]
    if not _rises(edges[::-1] if falling else edges):
        raise TraceError("digitize: the bins neither rise nor fall")
    side = "left" if right else "right"
    if not falling:
        return searchsorted(edges, x, side)
    return len(edges) - searchsorted(edges[::-1], x, side)


def _known_edges(name: str, edges: Any) -> np.ndarray:
    known = current().builder.known(lift(edges))
    if known is None or known.dtype == object:
        raise TraceError(
            f"{name}: edges that depend on data cannot be checked to rise",
            hint="np.searchsorted takes any sorted array",
        )
    if known.ndim != 1:
        raise TraceError(f"{name}: the edges have shape {known.shape}, not one axis")
    return known


def _rises(edges: np.ndarray) -> bool:
    return bool((edges[1:] >= edges[:-1]).all())


@array_function("interp")
def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Linear between points, in float64 as NumPy computes it."""
    double = np.dtype(np.float64)
    for points in (xp, fp):
        _vector("interp", points)
    at, places, values = (traced(part, double) for part in (x, xp, fp))
    size = places.shape[0]
    if not size or values.shape[0] != size:
        raise TraceError(f"interp: {size} places and {values.shape[0]} values")
    if period is not None:
        left = right = None
        period = np.abs(traced(period, double))
        at, places = at % period, places % period
        order = np.argsort(places)
        places, values = np.take(places, order), np.take(values, order)
        places = np.concatenate([places[-1:] - period, places, places[:1] + period])
        values = np.concatenate([values[-1:], values, values[:1]])
        size += 2
    below = np.clip(_place(places, at, "right") - 1, 0, max(size - 2, 0))
    above = np.minimum(below + 1, size - 1)
    x0, x1 = np.take(places, below), np.take(places, above)
    y0, y1 = np.take(values, below), np.take(values, above)
    slope = (y1 - y0) / (x1 - x0)
    found = slope * (at - x0) + y0
    found = np.where(np.isnan(found), slope * (at - x1) + y1, found)  # infinite at the left end
    found = np.where(np.isnan(found) & (y0 == y1), y0, found)
    found = np.where(at == x0, y0, found)
    found = np.where(at >= places[-1], values[-1], found)
    found = np.where(at > places[-1], values[-1] if right is None else right, found)
    found = np.where(at < places[0], values[0] if left is None else left, found)
    return np.where(np.isnan(at), at, found).astype(double)


@array_function("bincount")
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0, *, length: Any = None) -> Any:
    """NumPy's result grows with the largest number: `minlength` must hold all of them here, which
    each run checks. length (the array API namespace alone): numbers beyond are left out."""
    b, value = current().builder, _vector("bincount", x)
    if not value.dtype.is_integer:
        raise TraceError(f"bincount counts integers, not {value.type}")
    numbers: Any = wrap(b.cast(value, dtypes.i64))
    if length is None:
        size = int(minlength)
        if size <= 0:
            raise depends_on_data("bincount", "np.bincount(x, minlength=n), all numbers below n")
        fits = (numbers >= 0) & (numbers < size)
        current().require(lift(fits), f"bincount: minlength={size}, but a number is not below it")
    else:
        size = int(length)
        current().require(lift(numbers >= 0), "bincount: a number is negative")
    return _tally(numbers, size, weights)


def _tally(numbers: Any, size: int, weights: Any = None) -> Any:
    """How often each number below `size` occurs in a vector, or the sums of their weights."""
    b, value = current().builder, lift(numbers)
    if weights is None:
        updates = b.full(1, value.type)
    else:
        updates = lift(weights, np.dtype(np.float64))
        if updates.shape != value.shape:
            raise TraceError(f"weights are {updates.type}, the numbers {value.type}")
    start = b.full(0, TensorType(updates.dtype, (size,)))
    return wrap(b.emit("scatter", start, value, updates, axis=0, reduction="add"))


@array_function("histogram")
def histogram(
    x: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    """Counts and edges. bins: how many, or known edges; without a range of data that is finite."""
    data = np.ravel(traced(x))
    if isinstance(bins, str):
        raise TraceError("histogram: a rule for the bins needs the data", hint="give their number")
    if np.ndim(bins):
        edges = traced(_known_edges("histogram", bins))
    else:
        edges = _even_edges(data, int(bins), range)
    count = edges.shape[0] - 1
    common = result_type(data, edges)
    wide, sides = data.astype(common), edges.astype(common)
    at = _place(sides, wide, "right") - 1
    at = np.where(wide == sides[-1], count - 1, at)
    at = np.where((wide >= sides[0]) & (wide <= sides[-1]), at, count)  # beyond: not counted
    if weights is None:
        found = _tally(at, count)
    else:
        parts = np.ravel(traced(weights))
        found = _tally(at, count, parts).astype(parts.dtype)
    if density:
        found = found / np.diff(edges) / np.sum(found)
    return found, edges


def _even_edges(data: Any, count: int, range: Any) -> Any:
    kind = result_type(data, 1.0)
    if count < 1:
        raise TraceError("histogram: there must be a bin")
    if range is not None:
        low, high = range
        if not np.isfinite([low, high]).all() or low > high:
            raise TraceError(f"histogram: {low} to {high} is no range")
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        return traced(np.linspace(low, high, count + 1, dtype=kind))
    low, high = np.min(data).astype(kind), np.max(data).astype(kind)
    current().require(lift(np.isfinite(high - low)), "histogram: the data is not finite")
    spare = np.where(low == high, 0.5, 0.0).astype(kind)
    low, high = low - spare, high + spare
    steps = np.arange(count + 1).astype(kind)
    inner = low + steps[:-1] * ((high - low) / count)
    return np.concatenate([inner, np.reshape(high, (1,))])


@array_function("isin")
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *,
    kind: Any = None,
) -> Any:  # fmt: skip
    common = result_type(element, test_elements)
    wanted, among = traced(element, common), np.ravel(traced(test_elements, common))
    size = among.shape[0]
    if not size:
        found = np.zeros_like(wanted, dtype=np.bool_)
    else:
        ordered = np.sort(among)
        near = np.minimum(_place(ordered, wanted, "left"), size - 1)
        found = np.take(ordered, near) == wanted
    return ~found if invert else found


@array_function("unique")
def unique(
    x: Any, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, axis: Any = None, *, equal_nan: bool = True, sorted: bool = True,
    size: Any = None, fill_value: Any = None,
) -> Any:  # fmt: skip
    """size (the array API namespace alone, spelled as JAX has it): how many elements the result
    has; `fill_value`, by default the least of them, follows the distinct ones."""
    if size is None:
        raise depends_on_data("unique", "x.__array_namespace__().unique(x, size=n)")
    if axis is not None:
        raise TraceError("unique along an axis cannot be traced")
    array = traced(x)
    flat = np.ravel(array)
    count, room = flat.shape[0], np.arange(int(size))
    if not count:
        raise TraceError("an empty array has no elements to be unique")
    order = np.argsort(flat)
    keys = np.take(flat, order)
    new = keys[1:] != keys[:-1]
    if equal_nan and keys.dtype.kind not in "iub":
        new = new & ~(np.isnan(keys[1:]) & np.isnan(keys[:-1]))
    rank = np.concatenate([np.zeros(1, np.int64), np.cumsum(new)])
    message = f"unique: there are more than size={size} distinct elements"
    current().require(lift(rank[-1] < size), message)
    begin = _place(rank, traced(room), "left")
    at = np.minimum(begin, count - 1)
    there = room <= rank[-1]
    found = [np.where(there, np.take(keys, at), keys[0] if fill_value is None else fill_value)]
    found[0] = found[0].astype(array.dtype)
    if return_index:
        found.append(np.take(order, np.where(there, at, 0)))
    if return_inverse:
        found.append(np.reshape(np.take(rank, np.argsort(order)), array.shape))
    if return_counts:
        found.append(_place(rank, traced(room), "right") - begin)
    return tuple(found) if len(found) > 1 else found[0]


@array_function("flatnonzero")
def flatnonzero(x: Any, *, size: Any = None, fill_value: Any = 0) -> Any:
    """size, fill_value: as for `unique`."""
    if size is None:
        raise depends_on_data("flatnonzero")
    held = np.cumsum(np.ravel(traced(x)) != 0)
    if not held.shape[0]:
        raise TraceError("an empty array has no elements to be found")
    message = f"there are more than size={size} elements that are not zero"
    current().require(lift(held[-1] <= size), message)
    place = np.arange(1, int(size) + 1)
    return np.where(place <= held[-1], _place(held, traced(place), "left"), fill_value)


@array_function("nonzero")
def nonzero(x: Any, *, size: Any = None, fill_value: Any = 0) -> Any:
    """size, fill_value: as for `unique`."""
    if size is None:
        raise depends_on_data("nonzero")
    array = traced(x)
    linear = flatnonzero(array, size=size, fill_value=-1)
    found, stride = [], array.size
    for extent in array.shape:
        stride //= extent
        found.append(np.where(linear < 0, fill_value, linear // stride % extent))
    return tuple(found)


@array_function("argwhere")
def argwhere(x: Any, *, size: Any = None, fill_value: Any = 0) -> Any:
    if size is None:
        raise depends_on_data("argwhere")
    return np.stack(nonzero(x, size=size, fill_value=fill_value), axis=-1)
