"""Run-time parts of language values, for what loops carry and branches give.

A value is taken apart into leaves, integer or float tensors, and put together again from others: of
a pointer its offset, of a tuple the leaves of its items.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuser.language.aggregates import Aggregate, fields_of, with_fields
from fuser.language.memory import BlockPointer
from fuser.language.tensors import Choice, Constexpr, Pointer, Tensor


def leaves_of(value: Any) -> list[Tensor]:
    """The tensors in a value."""
    match value:
        case Tensor():
            return [value]
        case Pointer():
            return [value.offset]
        case Choice():
            return [value.which, *(pointer.offset for pointer in value.pointers)]
        case BlockPointer():
            parts = (value.base, *value.sizes, *value.strides, *value.offsets)
            return [leaf for part in parts for leaf in leaves_of(part)]
        case tuple():
            return [leaf for item in value for leaf in leaves_of(item)]
        case Aggregate():
            return leaves_of(tuple(fields_of(value).values()))
    return []


def rebuilt(value: Any, leaves: list[Tensor]) -> Any:
    """The value with other leaves, which are taken from the front of the list."""
    match value:
        case Tensor():
            return leaves.pop(0)
        case Pointer():
            return replace(value, offset=leaves.pop(0))
        case Choice():
            which = leaves.pop(0)
            pointers = tuple(replace(item, offset=leaves.pop(0)) for item in value.pointers)
            return Choice(pointers, which)
        case BlockPointer():
            base = rebuilt(value.base, leaves)
            parts = [
                tuple(rebuilt(item, leaves) for item in part)
                for part in (value.sizes, value.strides, value.offsets)
            ]
            return replace(value, base=base, sizes=parts[0], strides=parts[1], offsets=parts[2])
        case tuple():
            items = [rebuilt(item, leaves) for item in value]
            named = hasattr(value, "_fields")
            return type(value)(*items) if named else tuple(items)
        case Aggregate():
            return with_fields(value, [rebuilt(v, leaves) for v in fields_of(value).values()])
    return value


def skeleton(value: Any) -> Any:
    """What of a value no loop may change: all but the numbers."""
    match value:
        case Tensor():
            return ("tensor", value.dtype, value.shape)
        case Pointer():
            return ("pointer", value.buffer, value.element, value.shape, value.const)
        case Choice():
            return ("choice", *map(skeleton, (value.which, *value.pointers)))
        case BlockPointer():
            return ("block", value.base.buffer, value.base.element, value.block_shape)
        case tuple():
            return tuple(skeleton(item) for item in value)
        case Aggregate():
            return (type(value), *map(skeleton, fields_of(value).values()))
        case Constexpr():
            return skeleton(value.value)
    return ("constant", value)


def alike(a: Any, b: Any) -> bool:
    """Whether two values differ in their leaves at most."""
    x, y = skeleton(a), skeleton(b)
    try:
        return bool(x == y)
    except (TypeError, ValueError, RuntimeError):  # arrays have no one answer
        return x is y


def show(value: Any) -> str:
    """A value's type in an error message."""
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))})"
    if isinstance(value, Aggregate):
        items = (f"{name}: {show(item)}" for name, item in fields_of(value).items())
        return f"{type(value).__name__}({', '.join(items)})"
    return str(getattr(value, "type", repr(value)))
