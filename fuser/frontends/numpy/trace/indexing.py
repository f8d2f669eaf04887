"""x[index]: numbers, slices, None, Ellipsis, integer arrays, and masks whose values are known."""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import Traced, View, current, is_traced, lift, wrap
from fuser.graph.builder import Builder
from fuser.graph.dims import maximum, minimum
from fuser.graph.ir import Value
from fuser.graph.linear_index import gather_at
from fuser.graph.sizes import is_symbolic


def get_item(x: Any, index: Any) -> Traced:
    """x[index] as NumPy has it. Raises TraceError for an index that cannot be traced."""
    trace = current()
    operands = [x.value, *(part.value for part in _parts(index) if is_traced(part))]
    found = wrap(
        trace.recorder.record(
            "getitem", operands, lambda: _get(trace.builder, lift(x), _parts(index)), lambda v: [v]
        )
    )
    if x.trace is trace and all(_is_basic(part) for part in _parts(index)):
        found.source = View(x, index, x.writes, lambda: get_item(x, index).value)
    return found


def _is_basic(part: Any) -> bool:
    return part is None or part is Ellipsis or isinstance(part, slice | int | np.integer)


def region_of(x: Value, index: Any) -> tuple[list[Any], list[Any], list[Any]] | None:
    """The box that an index of numbers, slices without strides and None selects: its starts, its
    limits, and the shape of x[index]. None for other indices."""
    if not all(_is_basic(part) for part in _parts(index)):
        return None
    starts, limits, shape = [], [], []
    axis = 0
    for item in _spell_out(x, _parts(index)):
        if item is None:
            shape.append(1)
            continue
        size = x.shape[axis]
        if isinstance(item, slice):
            start, limit, stride = _bounds(item, size)
            if stride != 1:
                return None
            shape.append(limit - start)
        else:
            start = _position(item, size, axis)
            limit = start + 1
        starts.append(start)
        limits.append(limit)
        axis += 1
    return starts, limits, shape


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _get(b: Builder, x: Value, parts: tuple[Any, ...]) -> Value:
    items = _spell_out(x, parts)
    value, items = _basic(b, x, items)
    arrays = {axis: item for axis, item in enumerate(items) if isinstance(item, Value)}
    return gather_at(b, value, arrays) if arrays else value


def _spell_out(x: Value, parts: tuple[Any, ...]) -> list[Any]:
    """One item an axis, None for new ones; ellipses and masks replaced, arrays as Values."""
    items: list[Any] = []
    masked: dict[Value, int] = {}  # indices of a mask's axis, and its size
    for part in parts:
        if part is None or part is Ellipsis or isinstance(part, slice):
            items.append(part)
        elif isinstance(part, bool | np.bool_):
            raise TraceError("an index is True or False", hint="use np.where")
        elif isinstance(part, int | np.integer):
            items.append(as_index(part))
        elif is_traced(part) or isinstance(part, np.ndarray | list):
            items += _array_items(part, masked)
        else:
            raise TraceError(f"an index is a {type(part).__name__}, not an int, slice or array")
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.type.rank:
        raise TraceError(f"{used} indices for an array with {x.type.rank} axes ({x.type})")
    whole = [slice(None)] * (x.type.rank - used)
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise TraceError("an index has more than one ellipsis")
    at = ellipses[0] if ellipses else len(items)
    items = items[:at] + whole + items[at + 1 :]
    for axis, item in enumerate(item for item in items if item is not None):
        size = masked.get(item) if isinstance(item, Value) else None
        if size is not None and size != x.shape[axis]:
            raise TraceError(f"a mask of size {size} for axis {axis}, which has {x.shape[axis]}")
    return items


def _array_items(part: Any, masked: dict[Value, int]) -> list[Value]:
    value = lift(np.asarray(part, np.int64) if isinstance(part, list) and not part else part)
    if value.dtype.is_integer:
        return [value]
    if value.dtype is not dtypes.bool_:
        raise TraceError(f"an index is {value.type}, not integers")
    if is_traced(part):
        raise TraceError(
            "an index is a mask that depends on data, and so would the shape of the result",
            hint="keep the whole array and mask it: np.where(mask, x, 0)",
        )
    mask = np.asarray(part)
    if not mask.ndim:
        raise TraceError("an index is True or False", hint="use np.where")
    found = [lift(indices) for indices in np.nonzero(mask)]
    masked.update(zip(found, mask.shape, strict=True))
    return found


def _basic(b: Builder, x: Value, items: list[Any]) -> tuple[Value, list[Any]]:
    """x sliced, and what is left to do: slices are done, arrays stay, numbers join the arrays if
    there are any."""
    advanced = any(isinstance(item, Value) for item in items)
    starts, limits, strides = [], [], []
    axis = 0
    for item in items:
        if item is None:
            continue
        size = x.shape[axis]
        start, limit, stride = 0, size, 1
        if isinstance(item, slice):
            start, limit, stride = _bounds(item, size)
        elif isinstance(item, int) and not advanced:
            start = _position(item, size, axis)
            limit = start + 1
        starts.append(start)
        limits.append(limit)
        strides.append(stride)
        axis += 1
    value = b.slice(x, starts, limits, strides)
    shape: list[int] = []
    left: list[Any] = []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            left.append(None)
            continue
        size = value.shape[axis]
        axis += 1
        if isinstance(item, int) and not advanced:
            continue
        if isinstance(item, int):
            item = b.constant(np.asarray(_position(item, size, axis - 1)))
        shape.append(size)
        left.append(item)
    return b.reshape(value, shape), left


def _bounds(item: slice, size: int) -> tuple[Any, Any, int]:
    if is_symbolic(size, item.start, item.stop) and (item.step or 1) > 0:
        start, limit = (
            otherwise if at is None else minimum(maximum(at + size if at < 0 else at, 0), size)
            for at, otherwise in ((item.start, 0), (item.stop, size))
        )
        return start, maximum(start, limit), item.step or 1
    try:
        start, limit, stride = item.indices(size)
    except TypeError as error:
        if any(map(is_traced, (item.start, item.stop, item.step))):
            raise TraceError(
                "a bound of a slice depends on data",
                hint="index with an array: x[start + np.arange(length)]",
            ) from error
        raise
    if stride > 0:
        return start, max(start, limit), stride
    if limit >= start:  # empty
        return 0, 0, 1
    return start, limit, stride


def _position(item: int, size: int, axis: int) -> int:
    if not -size <= item < size:
        raise TraceError(f"index {item} is outside of axis {axis}, which has size {size}")
    return item + size if item < 0 else item
