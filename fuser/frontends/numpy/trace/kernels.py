"""Kernels in traced functions: `kernel[grid](x, out, n, BLOCK=64)` on traced arrays.

What the kernel writes is, from there on, another value of the array, as after `out[...] = value`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuser.base.recording import FINDERS, Record
from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import Traced, current, is_traced, lift, wrap
from fuser.frontends.numpy.trace.inplace import set_item
from fuser.graph.dims import DimExpr, as_int
from fuser.graph.ir import Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.kernel_call import row_major


def _find(values: Sequence[Any]) -> Record | None:
    return _record if any(map(is_traced, values)) else None


FINDERS.append(_find)


def _record(function: Any, bound: Mapping[str, Any], grid: tuple[int, ...], options: Any) -> None:
    """A launch as a node of the graph under way. Raises TraceError, and what the kernel raises."""
    from fuser.language.graph_calls import InMemory, make_call

    name = function.fn.__name__
    arrays: dict[int, Any] = {}

    def place(value: Any) -> Any:
        if isinstance(value, tuple):
            items = tuple(map(place, value))
            return type(value)(*items) if hasattr(value, "_fields") else items
        if isinstance(value, DimExpr):
            return as_int(value)
        if not is_traced(value) and not isinstance(value, np.ndarray):
            return value
        if is_traced(value) and value.weak is not None:
            raise TraceError(
                f"{name} is given a number that is not known while the function is traced",
                hint="make the argument static (static_argnames)",
            )
        numbers = list(arrays)
        if id(value) not in arrays:
            arrays[id(value)] = value
            numbers.append(id(value))
        shape = tuple(map(as_int, value.shape))
        return InMemory(numbers.index(id(value)), shape, row_major(shape))

    placed = {key: place(value) for key, value in bound.items()}
    given = list(arrays.values())
    operands = [lift(array) for array in given]
    types = [value.type for value in operands]
    if not all(grid):
        return
    call = make_call(function, placed, types, grid, options)
    written = [m.result is not None for m in call.memories]
    _check_memory(name, given, written)
    b = current().builder
    read = [v for v, m in zip(operands, call.memories, strict=True) if m.operand is not None]

    def record() -> tuple[Value, ...]:
        return b.emit_node(KERNEL_CALL, *read, call=call).outputs

    results = current().recorder.record(name, read, record, lambda values: values)
    for array, memory in zip(given, call.memories, strict=True):
        if memory.result is not None:
            set_item(array, ..., wrap(results[memory.result]))


def _check_memory(name: str, arrays: Sequence[Any], written: Sequence[bool]) -> None:
    """Raise TraceError where what a kernel writes is no traced array, or shares its memory with
    another argument."""
    owners = [_owner(array) for array in arrays]
    for array, owner, writes in zip(arrays, owners, written, strict=True):
        if not writes:
            continue
        if not is_traced(array):
            raise TraceError(
                f"{name} writes an array that is not traced",
                hint="make it from a traced one: np.empty_like(x), np.empty(shape, like=x)",
            )
        if sum(other is owner for other in owners) > 1:
            raise TraceError(
                f"{name} writes an array that shares its memory with another argument",
                hint="copy one of them first (.copy())",
            )


def _owner(array: Any) -> Any:
    """The array whose memory a view shows."""
    while isinstance(array, Traced) and array.source is not None:
        array = array.source.base
    return array
