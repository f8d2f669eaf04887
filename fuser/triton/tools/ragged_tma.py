"""triton.tools.ragged_tma: an array whose rows are in groups, each read as if it were alone.

    desc = create_ragged_descriptor(x, [64, 64])
    tile = load_ragged(desc, first_row, rows, [row, column])        # 0 beyond the group

A descriptor is one of the whole array; a block is checked against the rows of its group, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuser.errors import UsageError
from fuser.language import atomics, memory, shapes
from fuser.language.arithmetic import as_tensor, binary, compare, logical, where
from fuser.language.descriptors import Descriptor, TensorDescriptor
from fuser.language.emitter import Emitter
from fuser.language.registry import static_int
from fuser.language.tensors import Builtin, Pointer, Tensor
from fuser.triton.absent import names


def create_ragged_descriptor(
    T: Any, block_shape: Sequence[int], ragged_dim: int = 0
) -> TensorDescriptor:
    """The descriptor of an array of 2 or 3 dims for `load_ragged` and the like, whose dim
    ragged_dim (not the last) is in groups. Raises UsageError."""
    made = TensorDescriptor.from_tensor(T, block_shape)
    rank = len(made.shape)
    if not 2 <= rank <= 3:
        raise UsageError(f"a ragged descriptor of {rank} dims", hint="it has 2 or 3")
    if not 0 <= ragged_dim % rank < rank - 1 or not -rank <= ragged_dim < rank:
        raise UsageError(f"dim {ragged_dim} of {rank} is ragged", hint="any but the last can be")
    return made


def _block(
    e: Emitter, what: str, desc: Any, off: Any, size: Any, coords: Any, dim: Any
) -> tuple[Descriptor, Pointer, Tensor]:
    """(descriptor, pointers of a block, which of them are in the array and in the group)."""
    if not isinstance(desc, Descriptor):
        e.fail(f"{what} of what is no tensor descriptor", "make it with create_ragged_descriptor")
    rank = len(desc.block_shape)
    given = tuple(coords)
    if len(given) != rank:
        e.fail(f"{what} at {len(given)} coordinates of {rank}")
    axis = shapes.axis_of(e, static_int(e, dim, "ragged_dim"), rank, what)
    row = as_tensor(e, given[axis])
    places = tuple(binary(e, "+", off, row) if n == axis else p for n, p in enumerate(given))
    pointer, inside = memory.addresses(e, replace(desc, offsets=places), ())
    others = [n for n in range(rank) if n != axis]
    along = shapes.expand_dims(e, shapes.iota(e, 0, desc.block_shape[axis]), others)
    at = binary(e, "+", row, along)
    fits = logical(e, "&", compare(e, ">=", at, 0), compare(e, "<", at, size))
    assert inside is not None  # all dims of a descriptor are checked
    return desc, pointer, memory.both(e, inside, fits)


def _load(
    e: Emitter, TMA: Any, slice_off: Any, slice_size: Any, coords: Any, ragged_dim: Any = 0
) -> Any:
    """The block at coords of the group of slice_size rows from slice_off on; padding beyond it."""
    desc, pointer, inside = _block(e, "load_ragged", TMA, slice_off, slice_size, coords, ragged_dim)
    found = memory.load(e, pointer, inside, 0)
    if desc.padding == "nan":
        return where(e, inside, found, float("nan"))
    return found


def _store(
    e: Emitter, TMA: Any, slice_off: Any, slice_size: Any, coords: Any, data: Any,
    ragged_dim: Any = 0,
) -> None:  # fmt: skip
    """Write a block of a group; nothing beyond it."""
    _, pointer, inside = _block(e, "store_ragged", TMA, slice_off, slice_size, coords, ragged_dim)
    memory.store(e, pointer, data, inside)


def _atomic_add(
    e: Emitter, TMA: Any, slice_off: Any, slice_size: Any, coords: Any, data: Any,
    ragged_dim: Any = 0,
) -> None:  # fmt: skip
    """Add to a block of a group in steps that all programs see whole; nothing beyond it."""
    _, pointer, inside = _block(
        e, "atomic_add_ragged", TMA, slice_off, slice_size, coords, ragged_dim
    )
    atomics.atomic(e, "add", pointer, data, inside)


load_ragged = Builtin("load_ragged", _load, _load.__doc__ or "")
store_ragged = Builtin("store_ragged", _store, _store.__doc__ or "")
atomic_add_ragged = Builtin("atomic_add_ragged", _atomic_add, _atomic_add.__doc__ or "")

__getattr__ = names(
    __name__, "to_ragged_indices", "groups of rows are checked by coordinates, not by wrapping"
)
__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged"]
