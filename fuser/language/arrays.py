"""Arrays as arguments: their members, and blocks of them, `x[rows, cols]`.

An index of each dim is a number, a tile of numbers, a slice or None (a new axis of 1). Tiles of one
axis and slices each make an axis of the block, in their order: x[rows, cols] is the block of all
rows and all cols. If a tile has more axes, all tiles broadcast together, as in NumPy. Elements
outside of the array read 0 and are not stored; a negative number that is known counts from the end.
Addresses are whole numbers: they do not wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser.graph.sizes import is_symbolic
from fuser.language import memory, shapes
from fuser.language.arithmetic import as_tensor, binary, compare, describe, logical
from fuser.language.emitter import Emitter
from fuser.language.layouts import Layout
from fuser.language.tensors import Builtin, Pointer, Tensor
from fuser.language.types import int1, int64


@dataclass(frozen=True)
class Slice:
    """start:stop:step of values; None where it is left out."""

    start: Any
    stop: Any
    step: Any


Item = Any
"""None, Ellipsis, a Slice, a number or a tensor."""


def layout_of(value: object) -> Layout | None:
    """The layout of an array argument that was not moved."""
    if not isinstance(value, Pointer) or value.shape or value.offset.literal != 0:
        return None
    layout = value.layout
    return layout if isinstance(layout, Layout) else None


def member(e: Emitter, array: Pointer, layout: Layout, name: str) -> Any:
    """x.shape, x.strides, x.stride, x.ndim, x.numel, x.dtype; None for anything else."""
    match name:
        case "shape":
            return layout.shape()
        case "strides":
            return layout.strides()
        case "stride":
            return Builtin("stride", lambda e, axis=None: _stride(e, layout, axis))
        case "ndim":
            return layout.rank
        case "numel":
            total: Any = 1
            for size in layout.shape():
                total = binary(e, "*", size, total)
            return total
        case "dtype":
            return array.element
    return None


def _stride(e: Emitter, layout: Layout, axis: Any) -> Any:
    if axis is None:
        return layout.strides()
    if isinstance(axis, Tensor) and axis.literal is not None:
        axis = axis.literal
    if not isinstance(axis, int) or not -layout.rank <= axis < layout.rank:
        e.fail(f"stride({describe(axis)}) of an array of {layout.rank} dims")
    return layout.number("stride", axis % layout.rank)


def read(e: Emitter, array: Pointer, layout: Layout, items: Sequence[Item]) -> Tensor:
    """x[items]."""
    pointer, inside = block(e, array, layout, items)
    return memory.load(e, pointer, inside)


def write(e: Emitter, array: Pointer, layout: Layout, items: Sequence[Item], value: Any) -> None:
    """x[items] = value, which broadcasts to the block."""
    pointer, inside = block(e, array, layout, items)
    tile = as_tensor(e, value)
    if shapes.common_shape(e, pointer.shape, tile.shape) != pointer.shape:
        e.fail(
            f"a {tile.type} for a block of {shapes.show(pointer.shape)}",
            "the value must broadcast to the block that is stored",
        )
    memory.store(e, pointer, tile, inside)


def block(
    e: Emitter, array: Pointer, layout: Layout, items: Sequence[Item]
) -> tuple[Pointer, Tensor]:
    """The pointers of a block, and which of them are inside of the array."""
    parts = [_part(e, layout, axis, item) for axis, item in _by_axis(e, layout, items)]
    shape, places = _axes(e, parts)
    offset: Any = array.offset
    inside = Tensor(int1, shape, literal=True)
    axis = 0
    for part, where in zip(parts, places, strict=True):
        if part is None:
            continue
        at = shapes.broadcast_to(e, _spread(e, part, where, len(shape)), shape)
        size, stride = (layout.number(what, axis) for what in ("shape", "stride"))
        axis += 1
        moved = binary(e, "*", at, _long(e, stride))
        offset = binary(e, "+", offset, moved)
        for fact in (compare(e, ">=", at, 0), compare(e, "<", at, _long(e, size))):
            inside = logical(e, "&", inside, fact)
    offset = shapes.broadcast_to(e, offset, shape)
    return Pointer(array.buffer, array.element, offset, array.const), inside


def _long(e: Emitter, x: Tensor) -> Tensor:
    """A whole number without an end."""
    return Tensor(int64, x.shape, literal=x.literal, index=e.index_of(x))


def _by_axis(e: Emitter, layout: Layout, items: Sequence[Item]) -> list[tuple[int, Item]]:
    """Every item with the axis of the array that it indexes; None where it makes a new one."""
    rank = layout.rank
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        e.fail(f"{used} indices for {layout.name}, which has {rank} dims")
    if sum(item is Ellipsis for item in items) > 1:
        e.fail("more than one ... in an index")
    whole = [Slice(None, None, None)] * (rank - used)
    full: list[Item] = []
    for item in items:
        full += whole if item is Ellipsis else [item]
    if Ellipsis not in [item for item in items if not isinstance(item, Tensor)]:
        full += whole
    found, axis = [], 0
    for item in full:
        found.append((axis, item))
        axis += item is not None
    return found


def _part(e: Emitter, layout: Layout, axis: int, item: Item) -> Tensor | None:
    """The index along an axis: a number, or a tile; None for a new axis."""
    if item is None:
        return None
    if isinstance(item, Slice):
        return _range(e, layout, axis, item)
    if isinstance(item, bool) or not isinstance(item, int | Tensor):
        e.fail(f"an index that is {describe(item)}", "an index is a whole number or a tile of them")
    if isinstance(item, int):
        return _end(e, layout, axis, item)
    if not item.dtype.is_int() or item.dtype.is_bool():
        e.fail(f"an index that is a {item.type}", "an index is a whole number or a tile of them")
    return _long(e, item)


def _end(e: Emitter, layout: Layout, axis: int, number: Any) -> Tensor:
    """A number that counts from the end where it is known to be negative."""
    found = _long(e, as_tensor(e, number))
    if isinstance(number, int) and number < 0:
        return binary(e, "+", _long(e, layout.number("shape", axis)), found)  # type: ignore[no-any-return]
    return found


def _range(e: Emitter, layout: Layout, axis: int, item: Slice) -> Tensor:
    step = item.step.literal if isinstance(item.step, Tensor) else item.step
    step = 1 if item.step is None else step
    if isinstance(step, bool) or not isinstance(step, int) or step == 0:
        e.fail("the step of a slice must be known while compiling, and not be 0")
    size = _long(e, layout.number("shape", axis))
    first = _long(e, as_tensor(e, 0)) if step > 0 else binary(e, "-", size, 1)
    last = size if step > 0 else _long(e, as_tensor(e, -1))
    start = first if item.start is None else _end(e, layout, axis, item.start)
    stop = last if item.stop is None else _end(e, layout, axis, item.stop)
    for end in (start, stop):
        if end.shape:
            e.fail(f"a slice with the end {end.type}", "its ends are numbers")
    span = (e.index_of(stop) - e.index_of(start)) * (1 if step > 0 else -1)
    if not span.is_constant:
        e.fail(
            "a slice whose length is known at run time only",
            "write x[start:start + BLOCK], or index with a tile",
        )
    length = span.constant
    count = -(-(int(length) if is_symbolic(length) else length) // abs(step))
    if count < 1:
        e.fail(f"a slice of {count} elements", "tiles have at least one element")
    along = e.index_of(shapes.iota(e, 0, count)) * step
    start = shapes.broadcast_to(e, start, (count,))
    return Tensor(int64, (count,), index=e.index_of(start) + along)


def _axes(
    e: Emitter, parts: Sequence[Tensor | None]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The shape of a block, and for each part the axes of the block that its own axes are."""
    tiles = [part for part in parts if part is not None and part.shape]
    together = any(len(tile.shape) > 1 for tile in tiles)
    shape: list[int] = []
    places: list[tuple[int, ...]] = []
    if not together:
        for part in parts:
            extents = (1,) if part is None else part.shape
            places.append(tuple(range(len(shape), len(shape) + len(extents))))
            shape += extents
        return tuple(shape), places
    common: tuple[int, ...] = ()
    for tile in tiles:
        common = shapes.common_shape(e, common, tile.shape)
    first = -1
    for part in parts:
        if part is None:
            places.append((len(shape),))
            shape.append(1)
        elif not part.shape:
            places.append(())
        else:
            if first < 0:
                first = len(shape)
                shape += common
            end = first + len(common)
            places.append(tuple(range(end - len(part.shape), end)))
    return tuple(shape), places


def _spread(e: Emitter, part: Tensor, axes: tuple[int, ...], rank: int) -> Tensor:
    """A part with axes of 1 where the block has others."""
    new = [axis for axis in range(rank) if axis not in axes]
    return shapes.expand_dims(e, part, new) if new and part.shape else part


__all__ = ["Slice", "block", "layout_of", "member", "read", "write"]
