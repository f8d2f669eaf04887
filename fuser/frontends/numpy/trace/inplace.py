"""Changes in place: x[index] = value and x += value, as the array's next value.

NumPy changes every view with the array, and the caller's array where it is an argument. Here a view
by an index writes through to what it looks at; a view that is read after its array was changed,
other views that are written to, and arguments are errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.errors import TraceError
from fuser.frontends.numpy.trace import ufuncs
from fuser.frontends.numpy.trace.context import Traced, current, is_traced, lift, wrap
from fuser.frontends.numpy.trace.indexing import get_item, region_of
from fuser.graph.builder import Builder
from fuser.graph.ir import TensorType, Value


def set_item(x: Traced, index: Any, value: Any) -> None:
    """x[index] = value. Raises TraceError."""
    source = value.source if is_traced(value) else None
    if source is not None and source.base is x and source.index is index:
        if source.seen == x.writes:
            return  # the end of x[index] += y, which wrote through
    _check(x)
    trace = current()
    operands = [x.value, *([value.value] if is_traced(value) else [])]
    record = trace.recorder.record
    _write(x, record("setitem", operands, lambda: _set(x, index, value), lambda v: [v]))


def update(ufunc: np.ufunc, x: Traced, other: Any) -> Any:
    """x += other and the like: x, changed; for one element, which NumPy has as a number, a new one.
    Raises TraceError."""
    found = ufuncs.apply(ufunc, (x, other))
    if not x.ndim:
        return found
    _check(x)
    if found.shape != x.shape:
        raise TraceError(
            f"{ufunc.__name__} in place: the result is {found!r}, the array {x!r}",
            hint="write x = x + y where the shape may change",
        )
    if not np.can_cast(found.dtype, x.dtype, "same_kind"):
        raise TraceError(
            f"{ufunc.__name__} in place: {found.dtype} cannot be put into an array of {x.dtype}",
            hint="write x = x + y, or cast with .astype",
        )
    _write(x, lift(found, x.dtype))
    return x


def _check(x: Traced) -> None:
    """Raise TraceError unless x may be changed here."""
    owner = x
    while owner.source is not None:
        if owner.source.index is None:
            raise TraceError(
                f"{x!r} may be a view of another array, which would change with it",
                hint="copy it first (.copy()), or write to the array itself",
            )
        owner = owner.source.base
    if owner.argument:
        raise TraceError(
            f"argument {owner.argument!r} is changed in place, and with it the caller's array",
            hint="begin with a copy (x = x.copy()), or write x = x + y",
        )
    if x.trace is not current():
        raise TraceError(
            "a loop changes an array from around it in place", hint="make it a part of the state"
        )
    if owner.branches != tuple(x.trace.assumed):
        raise TraceError(
            "a branch changes an array from around it in place",
            hint="copy it in the branch (.copy()), and return it",
        )


def _write(x: Traced, value: Value) -> None:
    source = x.source
    if source is not None:
        set_item(source.base, source.index, wrap(value))
        x.source = replace(source, seen=source.base.writes)
    x.rewrite(value)


def _set(x: Traced, index: Any, value: Any) -> Value:
    b, old = current().builder, x.value
    new = lift(value, x.dtype)
    if is_traced(index) and index.dtype == np.bool_:
        return _set_masked(b, old, index.value, new)
    region = region_of(old, index)
    if region is not None:
        return _set_region(b, old, *region, new)
    size = old.type.size
    positions = get_item(wrap(b.reshape(b.iota((size,), 0), old.shape)), index).value
    count = positions.type.size
    updates = b.reshape(_fitting(b, new, positions.shape), (count,))
    flat = b.emit(
        "scatter", b.reshape(old, (size,)), b.reshape(positions, (count,)), updates, axis=0,
        reduction="none",
    )  # fmt: skip
    return b.reshape(flat, old.shape)


def _fitting(b: Builder, new: Value, shape: tuple[Any, ...]) -> Value:
    """new in the shape of the place; outer axes of 1 may be too many, as in NumPy. Raises
    TraceError."""
    spare = new.type.rank - len(shape)
    fitting = new
    if spare > 0 and all(dim == 1 for dim in new.shape[:spare]):
        fitting = b.squeeze(new, range(spare))
    over = len(shape) - fitting.type.rank
    if over < 0 or any(a not in (1, n) for a, n in zip(fitting.shape, shape[over:], strict=True)):
        raise TraceError(f"{new.type} cannot be put into a place of shape {list(shape)}")
    return b.broadcast_to(fitting, shape)


def _set_masked(b: Builder, old: Value, mask: Value, new: Value) -> Value:
    if mask.shape != old.shape[: mask.type.rank]:
        raise TraceError(f"a mask {mask.type} for an array {old.type}")
    if new.type.rank > old.type.rank - mask.type.rank:
        raise TraceError(
            f"elements {new.type} for a mask that depends on data",
            hint="np.where(mask, new, old) takes arrays of the same shape",
        )
    wide = b.broadcast(mask, old.shape, range(mask.type.rank))
    return b.map("select", wide, b.broadcast_to(new, old.shape), old)


def _set_region(
    b: Builder, old: Value, starts: list[Any], limits: list[Any], shape: list[Any], new: Value
) -> Value:
    """A box of the array: the new elements, padded to its shape, where positions lie in the box."""
    box = [limit - start for start, limit in zip(starts, limits, strict=True)]
    wide = b.reshape(_fitting(b, new, tuple(shape)), box)
    after = [size - limit for size, limit in zip(old.shape, limits, strict=True)]
    if all(low == 0 for low in starts) and all(high == 0 for high in after):
        return wide
    padded = b.pad(wide, starts, after)
    inside = b.broadcast_to(b.scalar(True, dtypes.bool_), TensorType(dtypes.bool_, old.shape).shape)
    for axis, (start, limit, size) in enumerate(zip(starts, limits, old.shape, strict=True)):
        if start == 0 and limit == size:
            continue
        place = b.iota(old.shape, axis)
        inside = b.map("logical_and", inside, b.map("ge", place, start))
        inside = b.map("logical_and", inside, b.map("lt", place, limit))
    return b.map("select", inside, padded, old)
