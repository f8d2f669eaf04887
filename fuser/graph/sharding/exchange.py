"""From one layout to another in the graph of a rank: slices, and collectives where parts are
missing. Collectives exchange the outermost axis, as NCCL does; movement around them is fused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from fuser.graph.builder import Builder
from fuser.graph.ir import Value
from fuser.graph.sharding.layout import (
    Axis,
    Layout,
    Split,
    groups_of,
    local_size,
    normal,
    splits_of,
)


def reshard(b: Builder, x: Value, held: Layout, wanted: Layout, rank: int) -> Value:
    """The part of a tensor that a rank has in another layout. Axes that differ are gathered first,
    whole, and then cut."""
    axes = list(held.axes)
    for axis, target in enumerate(wanted.axes):
        while axes[axis] != target and splits_of(axes[axis]):
            x, axes[axis] = _gathered(b, x, axes, axis)
    return cut(b, x, axes, wanted.axes, rank)


def _gathered(b: Builder, x: Value, axes: Sequence[Axis], axis: int) -> tuple[Value, Axis]:
    """x with the last split of an axis gathered, and what the axis is then."""
    factors = axes[axis]
    at = max(place for place, (_, split) in enumerate(factors) if split)
    split = factors[at][1]
    assert split is not None
    others = [s for a in axes for s in splits_of(a) if s != split]
    gathered = b.emit("all_gather", x, groups=groups_of(split, others))
    outer = local_size(factors[:at])
    shape = list(x.shape)
    inner = shape[axis] // outer
    apart = [split.count, *shape[:axis], outer, inner, *shape[axis + 1 :]]
    order = [*range(1, axis + 2), 0, *range(axis + 2, len(apart))]
    shape[axis] *= split.count
    moved = b.transpose(b.reshape(gathered, apart), order)
    return b.reshape(moved, shape), normal(
        (size, None if place == at else s) for place, (size, s) in enumerate(factors)
    )


def cut(b: Builder, x: Value, held: Sequence[Axis], wanted: Sequence[Axis], rank: int) -> Value:
    """The part that a rank has of x, whose axes are whole where they are not as wanted."""
    sizes: list[int] = []
    starts: list[int] = []
    limits: list[int] = []
    for now, target, size in zip(held, wanted, x.shape, strict=True):
        factors = ((size, None),) if now == target else target
        for factor, split in factors:
            count, place = (split.count, split.places[rank]) if split else (1, 0)
            sizes.append(factor)
            starts.append(place * (factor // count))
            limits.append((place + 1) * (factor // count))
    local = b.slice(b.reshape(x, sizes), starts, limits)
    return b.reshape(local, [local_size(axis) for axis in wanted])


def fold(b: Builder, x: Value, how: str, split: Split, others: Iterable[Split]) -> Value:
    """The sum (or product, maximum, minimum) over the parts of a split of what ranks computed."""
    return b.emit("all_reduce", x, fold=how, groups=groups_of(split, others))


def fold_into(
    b: Builder, x: Value, how: str, split: Split, others: Iterable[Split], axis: int, target: Axis
) -> Value:
    """The same, of which each rank keeps what `target` gives it of an axis that x has whole."""
    at = next(place for place, (_, found) in enumerate(target) if found == split)
    outer = prod(size for size, _ in target[:at])
    shape = list(x.shape)
    inner = shape[axis] // outer // split.count
    apart = [*shape[:axis], outer, split.count, inner, *shape[axis + 1 :]]
    order = [axis + 1, *(place for place in range(len(apart)) if place != axis + 1)]
    parts = b.transpose(b.reshape(x, apart), order)
    kept = b.emit("reduce_scatter", parts, fold=how, groups=groups_of(split, others))
    shape[axis] //= split.count
    return b.reshape(kept, shape)
