"""Where the parts of a tensor are: a `Layout` says for each axis how ranks divide it.

An axis is a product of factors, outermost first, and a factor may be split: rank r has part
`places[r]` of `count` equal ones. With ranks 0 and 1, s = Split(2, (0, 1)):

    axis of 12, columns of one weight        (12, s)             rank 0 has 0..5
    axis of 12, Q, K and V of 4 columns      (3, None), (4, s)   rank 0 has 0, 1, 4, 5, 8, 9
    axis of 12, not divided                  (12, None)

Ranks of equal places hold copies. In normal form no factor is 1, a split factor takes in the whole
ones behind it, and whole neighbours are one factor: layouts are equal if they divide alike.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Split:
    """A division into `count` equal parts; places: the part of each rank."""

    count: int
    places: tuple[int, ...]


Factor = tuple[int, Split | None]
Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class Layout:
    """The factors of every axis, in normal form."""

    axes: tuple[Axis, ...]

    @property
    def splits(self) -> tuple[Split, ...]:
        """All of them, in order of axes."""
        return tuple(split for axis in self.axes for split in splits_of(axis))

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of a part."""
        return tuple(map(local_size, self.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return tuple(prod(size for size, _ in axis) for axis in self.axes)

    def __str__(self) -> str:
        return f"[{', '.join(map(_shown, self.axes))}]"


def _shown(axis: Axis) -> str:
    return " x ".join(f"{n}/{s.count}" if s else str(n) for n, s in axis) or "1"


def whole(shape: Iterable[int]) -> Layout:
    """The layout of a tensor that every rank has."""
    return Layout(tuple(normal([(size, None)]) for size in shape))


def normal(factors: Iterable[Factor]) -> Axis:
    """The normal form of an axis."""
    found: list[Factor] = []
    for size, split in factors:
        if size == 1:
            continue
        if split is None and found:
            found[-1] = (found[-1][0] * size, found[-1][1])
        else:
            found.append((size, split))
    return tuple(found)


def splits_of(axis: Axis) -> tuple[Split, ...]:
    return tuple(split for _, split in axis if split is not None)


def local_size(axis: Axis) -> int:
    return prod(size // split.count if split else size for size, split in axis)


def regroup(axes: Iterable[Axis], shape: Sequence[int]) -> tuple[Axis, ...] | None:
    """The axes of a reshape of a tensor: None where a part of it is no box of the result."""
    pending = list(reversed(normal(itertools.chain.from_iterable(axes))))
    result = []
    for dim in shape:
        found: list[Factor] = []
        while dim > 1:
            if not pending:
                return None
            size, split = pending.pop()
            if dim % size:
                if size % dim or (split and dim % split.count):
                    return None
                pending.append((size // dim, None))
                size = dim
            found.append((size, split))
            dim //= size
        result.append(normal(found))
    return None if pending else tuple(result)


def independent(splits: Sequence[Split]) -> bool:
    """Whether ranks have every combination of parts, each equally often."""
    met = Counter(zip(*(split.places for split in splits), strict=True))
    return len(met) == prod(split.count for split in splits) and len(set(met.values())) == 1


def groups_of(split: Split, others: Iterable[Split] = ()) -> tuple[tuple[int, ...], ...]:
    """The ranks that have the parts of a split between them, in order of their parts: those that
    agree in the other splits. Of copies the first goes with the first, and so on."""
    rest = [other for other in others if other != split]
    copies: Counter[tuple[int, ...]] = Counter()
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for rank, place in enumerate(split.places):
        alike = tuple(other.places[rank] for other in rest)
        number = copies[(*alike, place)]
        copies[(*alike, place)] += 1
        groups.setdefault((*alike, number), {})[place] = rank
    return tuple(tuple(found[place] for place in range(split.count)) for found in groups.values())


def part(array: Array, layout: Layout, rank: int) -> Array:
    """What a rank has of an array: a view where that is possible."""
    factors = [factor for axis in layout.axes for factor in axis]
    index = tuple(
        slice(None) if s is None else slice(s.places[rank] * n // s.count,
                                            (s.places[rank] + 1) * n // s.count)
        for n, s in factors
    )  # fmt: skip
    return array.reshape([size for size, _ in factors])[index].reshape(layout.local)


def join(parts: Sequence[Array], layout: Layout) -> Array:
    """The array whose parts these are, by rank."""
    if not layout.splits:
        return parts[0]
    result = np.empty(layout.shape, parts[0].dtype)
    factors = [factor for axis in layout.axes for factor in axis]
    divided = result.reshape([size for size, _ in factors])
    for rank, array in enumerate(parts):
        index = tuple(
            slice(None) if s is None else slice(s.places[rank] * n // s.count,
                                                (s.places[rank] + 1) * n // s.count)
            for n, s in factors
        )  # fmt: skip
        divided[index] = array.reshape(divided[index].shape)
    return result
