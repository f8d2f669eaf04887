"""map_elementwise: a function of single numbers, on every element of tiles.

The function is compiled once, on whole tiles. An `if` in it, which a tile cannot decide, runs both
ways, and the condition chooses between what they give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.language import pieces, shapes
from fuser.language.aggregates import Aggregate
from fuser.language.arithmetic import as_tensor, where
from fuser.language.emitter import Emitter
from fuser.language.leaves import alike, leaves_of, rebuilt
from fuser.language.registry import builtin, static_int
from fuser.language.tensors import Tensor


@builtin("map_elementwise")
def map_elementwise(e: Emitter, scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    """scalar_fn of the elements of tiles; pack: how many neighbours along the last axis one call
    gets: all of the first argument, then all of the second; so it returns them."""
    count = static_int(e, pack, "pack")
    tiles = [as_tensor(e, item) for item in args]
    shape: tuple[int, ...] = ()
    for tile in tiles:
        shape = shapes.common_shape(e, shape, tile.shape)
    tiles = [shapes.broadcast_to(e, tile, shape) for tile in tiles]
    if count > 1:
        if not shape or shape[-1] % count:
            e.fail(f"packs of {count} elements of a tile of {shapes.show(shape)}")
        split = (*shape[:-1], shape[-1] // count, count)
        wide = [shapes.reshape(e, tile, split) for tile in tiles]
        tiles = [pieces.select_last(e, tile, n) for tile in wide for n in range(count)]
    before, e.pointwise = e.pointwise, True
    found = e.call(scalar_fn, *tiles)
    e.pointwise = before
    single = not isinstance(found, tuple)
    results = [as_tensor(e, item) for item in ((found,) if single else found)]
    results = [shapes.broadcast_to(e, item, tiles[0].shape) for item in results]
    if count > 1:
        if len(results) % count:
            e.fail(f"{len(results)} results of packs of {count}")
        groups = [results[n : n + count] for n in range(0, len(results), count)]
        results = [shapes.reshape(e, pieces.stack_last(e, group), shape) for group in groups]
        single = len(results) == 1
    return results[0] if single else tuple(results)


def chosen(e: Emitter, condition: Tensor, a: Any, b: Any) -> Any:
    """a where a tile of conditions holds, else b."""
    if a is b:
        return a
    if isinstance(a, Aggregate) and alike(a, b):
        sides = zip(leaves_of(a), leaves_of(b), strict=True)
        return rebuilt(a, [x if x is y else where(e, condition, x, y) for x, y in sides])
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(chosen(e, condition, x, y) for x, y in zip(a, b, strict=True))
    return where(e, condition, a, b)


Side = Callable[[], tuple[dict[str, Any], Any]]
"""Compiles a side of an `if`: its names behind it, and what it returns or None."""


def both_sides(
    e: Emitter, condition: Tensor, then: Side, other: Side, missing: Callable[[], Any]
) -> tuple[dict[str, Any], Any]:
    """An `if` that a tile decides: names behind it and what it returns. missing: makes the value of
    a name that only one side sets."""
    (left, given), (right, otherwise) = then(), other()
    names = {}
    for name in dict.fromkeys((*left, *right)):
        both = name in left and name in right
        names[name] = chosen(e, condition, left[name], right[name]) if both else missing()
    if given is None and otherwise is None:
        return names, None
    if given is None or otherwise is None:
        e.fail("one side of an `if` returns, the other does not", "return a value on both sides")
    return names, chosen(e, condition, given, otherwise)
