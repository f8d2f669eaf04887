"""sort, topk and bitonic_merge: networks of comparisons between elements 2**k apart.

    distance 2, alternating every 8:   x[i] against x[i ^ 2]; blocks of 8 go up and down in turns

The elements keep their bits, but for NaN of 8 and 16 bits. NaN is greater and less than nothing, so
its place is open.
"""

from __future__ import annotations

from typing import Any

from fuser.language import folds, shapes
from fuser.language.arithmetic import as_tensor, cast, compare, mapped, where
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin, static_int
from fuser.language.tensors import Tensor, unwrap
from fuser.language.types import float32, int1, int32
from fuser.tilegen.index import Index, axis


def _exchanged(e: Emitter, x: Tensor, distance: int, down: Index | int) -> Tensor:
    """Elements `distance` apart along the last axis in order; down: over that axis, 1 where the
    greater comes first."""
    last, shape = len(x.shape) - 1, x.shape
    here = axis(last, shape[last])
    side = (here // distance) % 2
    partner = e.whole(here + distance - side * (2 * distance), int32, shape)
    other = folds.gathered(e, x, partner, last)
    flipped = e.whole((side + down) % 2, int32, shape)
    greater = compare(e, ">", x, other)
    swaps = mapped(e, "logical_xor", int1, greater, compare(e, "==", flipped, 1))
    return where(e, swaps, other, x)  # type: ignore[no-any-return]


def _merged(e: Emitter, x: Tensor, size: int, down: Index | int) -> Tensor:
    """Blocks of `size` along the last axis, each of which rises and falls once, in order."""
    distance = size // 2
    while distance:
        x = _exchanged(e, x, distance, down)
        distance //= 2
    return x


def _runs(e: Emitter, x: Tensor, size: int, last_down: int | None) -> Tensor:
    """Blocks of `size` in order, up and down in turns, or all as `last_down` says."""
    extent = x.shape[-1]
    here = axis(len(x.shape) - 1, extent)
    now = 2
    while now <= size:
        whole = now == size and last_down is not None
        x = _merged(e, x, now, last_down or 0 if whole else (here // now) % 2)
        now *= 2
    return x


def _prepared(e: Emitter, what: str, x: Any, dim: Any) -> tuple[Tensor, list[int]]:
    """The tile with the axis to sort last, and the order that puts it back."""
    tile = as_tensor(e, x)
    rank = len(tile.shape)
    if not rank:
        e.fail(f"{what} of {tile.type}", "it takes a tile")
    place = rank - 1 if dim is None else static_int(e, dim, f"the dim of {what}")
    place = shapes.axis_of(e, place, rank, f"{what}: {tile.type}")
    extent = tile.shape[place]
    if extent & (extent - 1):
        e.fail(f"{what} of {extent} elements", "their number must be a power of 2")
    order = [a for a in range(rank) if a != place] + [place]
    back = [order.index(a) for a in range(rank)]
    if tile.dtype.is_floating():  # widened once, and not in every comparison
        tile = cast(e, tile, float32 if tile.dtype.bits < 32 else tile.dtype)
    return shapes.permute(e, tile, order), back


def _restored(e: Emitter, found: Tensor, back: list[int], x: Any) -> Tensor:
    return cast(e, shapes.permute(e, found, back), as_tensor(e, x).dtype)


@builtin("sort", method=True)
def sort(e: Emitter, x: Any, dim: Any = None, descending: Any = False) -> Tensor:
    """The elements along an axis (the last) in order."""
    tile, back = _prepared(e, "sort", x, dim)
    found = _runs(e, tile, tile.shape[-1], int(bool(descending)))
    return _restored(e, found, back, x)


@builtin("bitonic_merge")
def bitonic_merge(e: Emitter, x: Any, dim: Any = None, descending: Any = False) -> Tensor:
    """In order, where the elements rise and fall once."""
    tile, back = _prepared(e, "bitonic_merge", x, dim)
    found = _merged(e, tile, tile.shape[-1], int(bool(descending)))
    return _restored(e, found, back, x)


@builtin("topk")
def topk(e: Emitter, x: Any, k: Any, dim: Any = None, descending: Any = True) -> Tensor:
    """The k greatest elements along an axis (the last), the greatest first; descending=False: the k
    least, the least first."""
    tile, back = _prepared(e, "topk", x, dim)
    count = static_int(e, k, "k of topk")
    down = bool(unwrap(descending))
    extent = tile.shape[-1]
    if count & (count - 1) or not 1 <= count <= extent:
        what = "greatest" if down else "least"
        e.fail(f"the {count} {what} of {extent} elements", f"k is a power of 2 up to {extent}")
    tile = _runs(e, tile, count, int(down) if count == extent else None)
    while extent > count:
        # A run up beside one down: the best of each pair are the best, and rise and fall once.
        extent //= 2
        pairs = shapes.reshape(e, tile, (*tile.shape[:-1], extent // count, 2, count))
        fn = folds.extreme_fold(tile.dtype, down)
        best = folds.folded(e, fn, pairs, len(pairs.shape) - 2)
        tile = shapes.reshape(e, best, (*tile.shape[:-1], extent))
        turns = axis(len(tile.shape) - 1, extent) // count % 2
        tile = _merged(e, tile, count, int(down) if extent == count else turns)
    return _restored(e, tile, back, x)
