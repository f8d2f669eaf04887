"""Tensor descriptors: arrays with a block shape, whose accesses are checked in every dim.

Made in a kernel by make_tensor_descriptor, or on the host as an argument:

    kernel[grid](fl.TensorDescriptor.from_tensor(x, [64, 64]), ...)
    tile = x.load([row, column])        # 0 (or NaN) beyond the array
    out.store([row, column], tile)      # drops what is beyond it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fuser.errors import UnsupportedError, UsageError
from fuser.language import atomics, memory, shapes
from fuser.language.arithmetic import as_tensor, binary, compare, describe, logical
from fuser.language.emitter import Emitter
from fuser.language.memory import BlockPointer
from fuser.language.registry import builtin, static_int
from fuser.language.stand_ins import Retyped
from fuser.language.tensors import Builtin, Pointer, Tensor
from fuser.language.types import BlockType
from fuser.tilegen.ops import AtomicFn

MOST_DIMS = 5
LEAST_BYTES = 16
"""Of the last dim of a block, in the spelling that asks for it."""
ATOMICS: dict[str, AtomicFn] = {
    "atomic_add": "add", "atomic_min": "min", "atomic_max": "max", "atomic_and": "and",
    "atomic_or": "or", "atomic_xor": "xor",
}  # fmt: skip


@dataclass(eq=False)
class Descriptor(BlockPointer):
    """A tensor descriptor in a kernel. Its `shape` is that of the array."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the array."""
        return self.sizes

    @property
    def block_type(self) -> BlockType:
        """The type of the tiles that it loads and stores."""
        return BlockType(self.base.element, self.block_shape)

    @property
    def members(self) -> dict[str, Any]:
        """What a kernel may ask of it."""
        found: dict[str, Any] = {
            "strides": self.strides, "block_shape": self.block_shape, "block_type": self.block_type,
            "load": self._bound(load), "store": self._bound(store),
            "gather": self._bound(gather), "scatter": self._bound(scatter),
        }  # fmt: skip
        return found | {name: self._bound(atomic, fn) for name, fn in ATOMICS.items()}

    def _bound(self, function: Callable[..., Any], *first: Any) -> Builtin:
        def call(e: Emitter, *args: Any, **named: Any) -> Any:
            return function(e, self, *first, *args, **named)

        return Builtin(function.__name__, call, function.__doc__ or "")


@builtin("make_tensor_descriptor")
def make_tensor_descriptor(
    e: Emitter, base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero"
) -> Descriptor:
    """A descriptor of an array of this shape and these strides, in elements."""
    if not isinstance(base, Pointer) or base.shape:
        e.fail(f"make_tensor_descriptor of {describe(base)}", "the base is a pointer argument")
    sizes, steps = tuple(shape), tuple(strides)
    block = tuple(static_int(e, n, "a block shape") for n in block_shape)
    if not 1 <= len(sizes) <= MOST_DIMS:
        e.fail(f"a descriptor of {len(sizes)} dims", f"it has 1 to {MOST_DIMS}")
    if not len(sizes) == len(steps) == len(block):
        e.fail(
            f"{len(sizes)} sizes, {len(steps)} strides and a block of {len(block)} dims",
            "they must be as many",
        )
    _check_spelling(e, base, steps, block)
    padding = padding_option or "zero"
    if padding not in ("zero", "nan") or (padding == "nan" and base.element.is_int()):
        e.fail(f"padding {padding!r} of {base.element}", "it is zero, or nan for floats")
    zeros = (0,) * len(block)  # every access has offsets of its own
    sizes, steps, offsets = (memory.numbers(e, item) for item in (sizes, steps, zeros))
    return Descriptor(base, sizes, steps, offsets, block, True, padding)


def _check_spelling(
    e: Emitter, base: Pointer, strides: Sequence[Any], block: Sequence[int]
) -> None:
    if not e.options.get("powers_of_two"):
        return
    bits = block[-1] * base.element.bits
    if bits < 8 * LEAST_BYTES:
        e.fail(
            f"Descriptor block shape must have at least {LEAST_BYTES} bytes in the last dimension, "
            f"but got {block[-1]} * {base.element.bits // 8} = {bits // 8} bytes"
        )
    last = strides[-1].literal if isinstance(strides[-1], Tensor) else strides[-1]
    if last != 1:
        e.fail(f"Tensor descriptor last dim must be 1 but got {describe(strides[-1])}")


# accesses -----------------------------------------------------------------------------------------


def _at(e: Emitter, descriptor: Any, offsets: Any) -> Descriptor:
    if not isinstance(descriptor, Descriptor):
        e.fail(f"{describe(descriptor)} is no tensor descriptor")
    places = tuple(offsets) if isinstance(offsets, tuple | list) else (offsets,)
    rank = len(descriptor.block_shape)
    if len(places) != rank:
        e.fail(f"expected {rank} offsets, but got {len(places)}")
    return replace(descriptor, offsets=places)


@builtin("load_tensor_descriptor")
def load(
    e: Emitter, desc: Any, offsets: Any, cache_modifier: str = "", eviction_policy: str = ""
) -> Tensor:
    """The block at these offsets; padding beyond the array."""
    return memory.load(e, _at(e, desc, offsets))


@builtin("store_tensor_descriptor")
def store(e: Emitter, desc: Any, offsets: Any, value: Any) -> None:
    """Write a block at these offsets; nothing beyond the array."""
    block = _at(e, desc, offsets)
    memory.store(e, block, _checked(e, block, value))


def _checked(e: Emitter, block: Descriptor, value: Any) -> Tensor:
    data = as_tensor(e, value)
    if data.shape != block.block_shape:
        e.fail(f"a {data.type} for a block of {shapes.show(block.block_shape)}")
    return data


def atomic(e: Emitter, desc: Any, fn: AtomicFn, offsets: Any, value: Any) -> None:
    """One step on memory for each element of a block; nothing beyond the array."""
    block = _at(e, desc, offsets)
    data = _checked(e, block, value)
    pointer, inside = memory.addresses(e, block, ())
    atomics.atomic(e, fn, pointer, data, inside)


def _rows(
    e: Emitter, desc: Any, x_offsets: Any, y_offset: Any
) -> tuple[Descriptor, Pointer, Tensor]:
    """Pointers to rows of an array from a column on, and which of them are inside."""
    if not isinstance(desc, Descriptor) or len(desc.block_shape) != 2 or desc.block_shape[0] != 1:
        e.fail("rows of what is no descriptor with a block of [1, columns]")
    rows = as_tensor(e, x_offsets)
    if len(rows.shape) != 1 or not rows.dtype.is_int():
        e.fail(f"rows {rows.type}", "they are a tile of integers with one axis")
    row = shapes.expand_dims(e, rows, [1])
    column = shapes.expand_dims(
        e, binary(e, "+", y_offset, shapes.iota(e, 0, desc.block_shape[1])), [0]
    )
    pointer, inside = desc.base, None
    for place, size, stride in zip((row, column), desc.sizes, desc.strides, strict=True):
        pointer = binary(e, "+", pointer, binary(e, "*", memory.long(e, place), stride))
        fits = logical(e, "&", compare(e, ">=", place, 0), compare(e, "<", place, size))
        inside = fits if inside is None else memory.both(e, inside, fits)
    assert inside is not None
    shape = (rows.shape[0], desc.block_shape[1])
    return desc, shapes.broadcast_to(e, pointer, shape), shapes.broadcast_to(e, inside, shape)


def gather(
    e: Emitter, desc: Any, x_offsets: Any, y_offset: Any, cache_modifier: str = "",
    eviction_policy: str = "",
) -> Tensor:  # fmt: skip
    """Rows of an array, from a column on; the block has one row."""
    found, pointer, inside = _rows(e, desc, x_offsets, y_offset)
    pad = float("nan") if found.padding == "nan" else 0
    return memory.load(e, pointer, inside, pad)


def scatter(e: Emitter, desc: Any, value: Any, x_offsets: Any, y_offset: Any) -> None:
    """Write rows of an array, from a column on."""
    _, pointer, inside = _rows(e, desc, x_offsets, y_offset)
    memory.store(e, pointer, value, inside)


# on the host --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """What of a descriptor is compiled in."""

    block_shape: tuple[int, ...]
    padding: str


class Parts(NamedTuple):
    """A descriptor as an argument: an array, numbers, and what is compiled in."""

    base: Any
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    layout: Layout

    def bound(self) -> Descriptor:
        """The descriptor in the kernel."""
        block = self.layout.block_shape
        zeros = (0,) * len(block)
        return Descriptor(
            self.base, self.sizes, self.strides, zeros, block, True, self.layout.padding
        )


@dataclass
class TensorDescriptor:
    """An array as an argument of a kernel that loads and stores blocks of it.

    shape, strides: in elements. padding: zero or nan, what is read beyond the array.
    round_f32_to_tf32: False. Raises UsageError and UnsupportedError.
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    def __post_init__(self) -> None:
        self.shape, self.strides = list(self.shape), list(self.strides)
        self.block_shape = list(self.block_shape)
        rank = len(self.shape)
        if not 1 <= rank <= MOST_DIMS:
            raise UsageError(f"a descriptor of {rank} dims", hint=f"it has 1 to {MOST_DIMS}")
        if len(self.strides) != rank or len(self.block_shape) != rank:
            raise UsageError(
                f"a descriptor of {rank} dims with {len(self.strides)} strides and a block of "
                f"{len(self.block_shape)} dims"
            )
        if any(size <= 0 for size in self.shape):
            raise UsageError(f"a descriptor of the shape {tuple(self.shape)}")
        if self.padding not in ("zero", "nan"):
            raise UsageError(f"the padding {self.padding!r}", hint="it is zero or nan")
        if self.round_f32_to_tf32:
            raise UnsupportedError(
                "round_f32_to_tf32: a descriptor's loads keep all bits",
                hint='multiply with tl.dot(..., input_precision="tf32")',
            )

    @staticmethod
    def from_tensor(
        tensor: Any,
        block_shape: Sequence[int],
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> TensorDescriptor:
        """The descriptor of a whole array."""
        from fuser.runtime.arrays import describe as record_of

        base = tensor.base if isinstance(tensor, Retyped) else tensor
        record = record_of(base, "the array of a descriptor")
        return TensorDescriptor(
            tensor, record.shape, record.strides, block_shape, padding, round_f32_to_tf32
        )

    def parts(self) -> Parts:
        """What a launch passes of it: the base, sizes, strides and the block."""
        block = tuple(int(n) for n in self.block_shape)
        sizes, strides = (tuple(int(n) for n in item) for item in (self.shape, self.strides))
        return Parts(self.base, sizes, strides, Layout(block, self.padding))
