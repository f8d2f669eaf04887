"""How often an access meets each element of its buffer, by evaluating its indices over its box."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fuser.base.limits import check_time
from fuser.errors import VerifyError
from fuser.graph.sizes import size_hint
from fuser.tilegen.coverage.access import Access
from fuser.tilegen.index import Axis, Extreme, FloorDiv, Index, Mod

Array = np.ndarray[Any, Any]

MOST_POINTS = 1 << 22
"""Of a box that is evaluated whole: 0.1 s."""


def points_of(access: Access) -> int:
    """How many points the box of an access has (at the example sizes)."""
    return math.prod(size_hint(extent) for extent in access.extents.values())


def count(accesses: Iterable[Access], total: int, most: int | None = None) -> Array:
    """For each of the `total` elements of a buffer, how often the accesses meet it in bounds.

    most: evaluate at most so many points of each box, spread over it. Raises VerifyError for an
    element outside of the buffer.
    """
    seen = np.zeros(total, np.int64)
    for access in accesses:
        address = addresses(access, most)
        if address.size and (address.min() < 0 or address.max() >= total):
            raise VerifyError(f"{access.view!r} reaches beyond its buffer of {total}")
        seen += np.bincount(address, minlength=total) * size_hint(access.repeats)
    return seen


def addresses(access: Access, most: int | None = None) -> Array:
    """The elements that an access meets in bounds, in the order of its box."""
    check_time()
    grid = _grid(access, most)
    shape = np.broadcast_shapes(*(array.shape for array in grid.values()), ())
    address = np.asarray(size_hint(access.view.offset), np.int64)
    inside = np.asarray(True)
    for place in access.places:
        at = _evaluate(place.at, grid)
        inside = inside & (at >= 0) & (at < size_hint(place.size))
        address = np.asarray(address + at * size_hint(place.stride))
    found: Array = np.broadcast_to(address, shape)[np.broadcast_to(inside, shape)]
    return found


def _grid(access: Access, most: int | None) -> dict[int, Array]:
    """Coordinates along each variable, as arrays that broadcast against each other."""
    extents = {number: size_hint(extent) for number, extent in access.extents.items()}
    kept = dict(extents)
    while most is not None and math.prod(kept.values()) > most:
        longest = max(kept, key=lambda number: kept[number])
        kept[longest] = -(-kept[longest] // 2)
    grid = {}
    for place, (number, extent) in enumerate(extents.items()):
        spread = np.linspace(0, extent - 1, kept[number]).astype(np.int64)
        grid[number] = spread.reshape([-1 if i == place else 1 for i in range(len(extents))])
    return grid


def _evaluate(expression: Index, grid: dict[int, Array]) -> Array:
    total = np.asarray(size_hint(expression.constant), np.int64)
    for atom, coefficient in expression.terms:
        match atom:
            case Axis():
                part = grid[atom.axis]
            case FloorDiv():
                part = _evaluate(atom.base, grid) // size_hint(atom.divisor)
            case Mod():
                part = _evaluate(atom.base, grid) % size_hint(atom.divisor)
            case Extreme():
                pick = np.minimum if atom.fn == "min" else np.maximum
                part = functools.reduce(pick, (_evaluate(item, grid) for item in atom.items))
            case _:
                raise VerifyError(f"{atom} depends on data")
        total = np.asarray(total + part * size_hint(coefficient))
    return total
