"""Loads and stores through pointers and block pointers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fuser.language import choices, shapes
from fuser.language.arithmetic import (
    as_tensor,
    binary,
    cast,
    compare,
    is_number,
    logical,
    where,
)
from fuser.language.emitter import Emitter
from fuser.language.formats import code_of
from fuser.language.places import Place, place_of
from fuser.language.tensors import Choice, Pointer, RuntimeValue, Tensor
from fuser.language.types import BlockType, ElementType, int1, int32


@dataclass(eq=False)
class BlockPointer(RuntimeValue):
    """A block of a strided array: `offsets` of its corner, all in elements.

    checked: whether every access is checked in every dim (a tensor descriptor).
    """

    base: Pointer
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offsets: tuple[Any, ...]
    block_shape: tuple[int, ...]
    checked: bool = False
    padding: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.block_shape

    @property
    def dtype(self) -> ElementType:
        return self.base.element

    @property
    def type(self) -> BlockType:
        return BlockType(self.base.element, self.block_shape)


def load(
    e: Emitter,
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Tensor:
    """What a tile of pointers points to; `other` (0) where the mask is false."""
    if isinstance(pointer, BlockPointer):
        if mask is not None or other is not None:
            e.fail("a block pointer takes no mask", "use boundary_check and padding_option")
        where_to, inside = addresses(e, pointer, boundary_check)
        padding = padding_option or pointer.padding
        if padding == "nan" and not pointer.dtype.is_floating():
            e.fail(f"padding nan of {pointer.dtype}", "only floats have NaN")
        pad = float("nan") if padding == "nan" else 0
        return _loaded(e, where_to, inside, pad)
    if isinstance(pointer, Choice):
        (pointer, _, first), *rest = choices.each(e, pointer, mask)
        found = load(e, pointer, first, other)
        for pointer, this, inside in rest:
            found = where(e, this, load(e, pointer, inside, other), found)
        return found
    if not isinstance(pointer, Pointer):
        e.fail(f"load of {shown(pointer)}", "load takes a pointer: an argument plus offsets")
    if mask is None and other is not None:
        e.fail("`other` without a mask", "give mask=..., or leave other out")
    return _loaded(e, pointer, None if mask is None else as_tensor(e, mask), other)


def shown(value: Any) -> str:
    return str(getattr(value, "type", type(value).__name__))


def _loaded(e: Emitter, pointer: Pointer, mask: Tensor | None, other: Any) -> Tensor:
    shape = pointer.shape
    if mask is not None:
        shape = shapes.common_shape(e, shape, mask.shape)
        mask = shapes.broadcast_to(e, as_mask(e, mask), shape)
    if other is not None and not is_number(other):
        other = as_tensor(e, other)
        shape = shapes.common_shape(e, shape, other.shape)
        mask = None if mask is None else shapes.broadcast_to(e, mask, shape)
    pointer = shapes.broadcast_to(e, pointer, shape)
    dtype = pointer.element
    if mask is not None and mask.literal is False:
        filler = as_tensor(e, 0 if other is None else other)
        return shapes.broadcast_to(e, cast(e, filler, dtype), shape)
    place = place_of(e, pointer, mask)
    note(e, "load", pointer, place)
    constant = 0 if other is None else other
    if isinstance(constant, Tensor) and constant.literal is not None:
        constant = constant.literal
    masked = None if place.mask is None else e.value_of(place.mask)
    plain = is_number(constant)
    pad = _pad(e, constant, dtype) if plain else 0
    made = e.builder.load(place.view, place.indices, shape, pad, masked)
    found = e.tensor(made, dtype)
    if plain or mask is None:
        return found
    filler = shapes.broadcast_to(e, cast(e, as_tensor(e, constant), dtype), shape)
    if dtype.is_fp8():
        chosen = e.builder.map("select", *map(e.value_of, (mask, found, filler)))
        return e.tensor(chosen, dtype)
    return where(e, mask, found, filler)  # type: ignore[no-any-return]


def as_mask(e: Emitter, mask: Tensor) -> Tensor:
    if mask.dtype.is_floating():
        e.fail(f"the mask is a {mask.type}", "masks are comparisons, or integers that are not 0")
    return mask if mask.dtype is int1 else cast(e, mask, int1)


def _pad(e: Emitter, number: float | int | bool, dtype: ElementType) -> float | int:
    if dtype.is_floating():
        return code_of(float(number), dtype) if dtype.is_fp8() else float(number)
    literal = cast(e, as_tensor(e, number), dtype).literal
    return 0 if literal is None else int(literal)


def note(e: Emitter, what: str, pointer: Pointer, place: Place) -> None:
    if e.trials or not place.why:
        return
    source, node = e.frames[-1]
    e.notes.append(f"{source.place(node)}: the {what} of {pointer.buffer.name}: {place.why}")


def store(
    e: Emitter,
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Write a tile to where a tile of pointers points, where the mask holds."""
    inside: Tensor | None = None
    if isinstance(pointer, Choice):
        for one, _, mask_of in choices.each(e, pointer, mask):
            store(e, one, value, mask_of)
        return
    if isinstance(pointer, BlockPointer):
        if mask is not None:
            e.fail("a block pointer takes no mask", "use boundary_check")
        pointer, inside = addresses(e, pointer, boundary_check)
    elif not isinstance(pointer, Pointer):
        e.fail(f"store to {shown(pointer)}", "store takes a pointer: an argument plus offsets")
    elif mask is not None:
        inside = as_mask(e, as_tensor(e, mask))
    found = prepared(e, "store", pointer, value, inside)
    if found is None:
        return
    place, (data,), masked = found
    e.builder.store(place.view, place.indices, e.value_of(data), masked)


def prepared(
    e: Emitter, what: str, pointer: Pointer, value: Any, mask: Tensor | None, *more: Any
) -> tuple[Place, tuple[Tensor, ...], Any] | None:
    """(place, values of its type and shape, what is left of the mask); None where nothing is ever
    written."""
    if pointer.const:
        e.fail(
            f"Cannot store to a constant pointer: {what} to {pointer.buffer.name}",
            "its parameter has the annotation const",
        )
    pointer.buffer.role = "output"
    data = [cast_to(e, as_tensor(e, item), pointer.element) for item in (value, *more)]
    shape = pointer.shape
    if mask is not None:
        shape = shapes.common_shape(e, shape, mask.shape)
    for item in data:
        ranks = len(item.shape) in (0, len(shape)) or not e.options.get("equal_ranks")
        if not ranks or shapes.common_shape(e, shape, item.shape) != shape:
            e.fail(
                f"{what} of {item.type} to {pointer.type}",
                "the value must broadcast to the shape of the pointer",
            )
    pointer = shapes.broadcast_to(e, pointer, shape)
    if mask is not None:
        mask = shapes.broadcast_to(e, mask, shape)
        if mask.literal is False:
            return None
    place = place_of(e, pointer, mask)
    note(e, what, pointer, place)
    masked = None if place.mask is None else e.value_of(place.mask)
    return place, tuple(shapes.broadcast_to(e, item, shape) for item in data), masked


def cast_to(e: Emitter, value: Tensor, dtype: ElementType) -> Tensor:
    return cast(e, value, dtype)


# block pointers -----------------------------------------------------------------------------------


def addresses(
    e: Emitter, block: BlockPointer, boundary_check: Any
) -> tuple[Pointer, Tensor | None]:
    """The pointers of a block's elements, and which of them are inside where that is checked."""
    rank = len(block.block_shape)
    checked = range(rank) if block.checked else [int(d) % rank for d in boundary_check or ()]
    pointer, inside = block.base, None
    for d, extent in enumerate(block.block_shape):
        corner = as_tensor(e, block.offsets[d])
        others = [axis for axis in range(rank) if axis != d]
        along = shapes.expand_dims(e, shapes.iota(e, 0, extent), others)
        place = binary(e, "+", cast(e, corner, int32) if corner.dtype.bits < 32 else corner, along)
        pointer = binary(e, "+", pointer, binary(e, "*", long(e, place), block.strides[d]))
        if d in checked:
            fits = logical(
                e, "&", compare(e, ">=", place, 0), compare(e, "<", place, block.sizes[d])
            )
            inside = fits if inside is None else both(e, inside, fits)
    pointer = shapes.broadcast_to(e, pointer, block.block_shape)
    if inside is not None:
        inside = shapes.broadcast_to(e, inside, block.block_shape)
    return pointer, inside


def long(e: Emitter, place: Tensor) -> Tensor:
    from fuser.language.types import int64

    return cast(e, place, int64)


def both(e: Emitter, a: Tensor, b: Tensor) -> Tensor:
    x, y = shapes.broadcast_together(e, a, b)
    return logical(e, "&", x, y)


def make_block_ptr(
    e: Emitter, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
) -> BlockPointer:
    """A pointer to a block of an array of this shape and these strides, in elements."""
    if not isinstance(base, Pointer) or base.shape:
        e.fail(f"make_block_ptr of {shown(base)}", "the base is a pointer argument")
    parts = [tuple(item) for item in (shape, strides, offsets, block_shape)]
    if len({len(part) for part in parts}) != 1:
        e.fail("shape, strides, offsets and block_shape differ in length")
    block = tuple(int(n) for n in parts[3])
    sizes, steps, corner = (numbers(e, part) for part in parts[:3])
    return BlockPointer(base, sizes, steps, corner, block)


def numbers(e: Emitter, items: Any) -> tuple[Tensor, ...]:
    """Sizes, strides or offsets as tensors: a loop may change any of them."""
    return tuple(as_tensor(e, item) for item in items)


def advance(e: Emitter, base: Any, offsets: Any) -> BlockPointer:
    """The block pointer, further by so many elements along each dim."""
    if not isinstance(base, BlockPointer):
        e.fail(f"advance of {shown(base)}", "it moves block pointers")
    moved = tuple(binary(e, "+", a, b) for a, b in zip(base.offsets, offsets, strict=True))
    return replace(base, offsets=moved)
