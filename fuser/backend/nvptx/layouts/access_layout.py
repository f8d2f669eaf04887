"""Blocked layouts that suit loads and stores, and the layouts of what they are made from."""

from __future__ import annotations

from collections import defaultdict
from math import prod

from fuser.backend.nvptx.analysis.access import Access, step_of
from fuser.backend.nvptx.layouts.layout import Layout, blocked
from fuser.graph.sizes import same


def choose_blocked(
    shape: tuple[int, ...],
    accesses: list[Access],
    reduced: set[int],
    warps: int,
    spread: bool = False,
) -> Layout:
    """A blocked layout for a tile: vectors along the axis that most accessed bytes run along, and
    neighbours of which a load reads one number for all, such as codes of a word, in one thread.
    spread: all warps share each row."""
    votes: dict[tuple[int, ...], int] = defaultdict(int)
    for access in accesses:
        votes[access.order] += access.bytes * (2 if access.vector > 1 else 1)
    order = tuple(reversed(range(len(shape))))
    if votes:
        order = max(votes, key=lambda key: votes[key])
    vector = 1
    for access in accesses:
        if access.order[0] == order[0]:
            vector = max(vector, access.vector)
    if not accesses:
        vector = 4
    size = 1
    for dim in shape:
        size *= dim
    share = max(1, size // (32 * warps))
    while vector > 1 and (vector > share or shape[order[0]] % vector):
        vector //= 2
    across = spread or (bool(reduced) and order[0] not in reduced)
    if across or not order or not _runs(shape, accesses, order[0], share):
        return blocked(shape, warps, order, vector, spread=across)
    # vectors as long as those of most bytes, which are the ones to wait for, leave longer runs
    vector = min(vector, max((distinct_bytes(access), access.vector) for access in accesses)[1])
    runs = _runs(shape, accesses, order[0], share // vector)
    return blocked(shape, warps, order, vector, runs=runs)


def _runs(
    shape: tuple[int, ...], accesses: list[Access], fastest: int, share: int
) -> dict[int, int]:
    """By axis, so many neighbours that an access reads one number for, of those that a thread has
    room for beside its vector: the longest such run."""
    longest, along = 1, -1
    for access in accesses:
        for axis in range(len(shape)):
            count = repeat_of(access, axis) if axis != fastest else 1
            if count >= shape[axis]:
                continue  # one number for the whole tile is one in any layout
            while count > max(1, share) or shape[axis] % count:
                count //= 2
            if count > longest:
                longest, along = count, axis
    return {along: longest} if longest > 1 else {}


def distinct_bytes(access: Access) -> int:
    """What an access touches in memory."""
    runs = [min(repeat_of(access, axis), size) for axis, size in enumerate(access.shape)]
    return access.bytes // prod(runs)


MAX_REPEATED = 64
"""Neighbours beyond which nobody looks for more."""


def repeat_of(access: Access, axis: int) -> int:
    """Neighbours along an axis, from a multiple of their number on, that are one number in memory
    and not all: a power of two up to MAX_REPEATED."""
    if axis not in access.linear.axes():
        return 1
    count = 1
    while count < MAX_REPEATED and same(step_of(access.linear, axis, 2 * count), 0):
        count *= 2
    return count


def access_layout(access: Access, layout: Layout, warps: int) -> Layout:
    """The layout to move an access's elements in: the value's own, or a coalesced one that is
    converted, where its own would touch less than a 32-byte sector at a time."""
    if not access.shape or access.bytes < 2048:
        return layout
    axis, size = access.axis, access.view.dtype.bytes
    own = layout.coalesced(axis) * size
    if own >= 32 or (access.width == 1 and not _contiguous(access)):
        return layout
    better = choose_blocked(access.shape, [access], set(), warps)
    return better if better.coalesced(axis) * size >= 2 * own else layout


def _contiguous(access: Access) -> bool:
    return same(step_of(access.linear, access.axis, 1), 1)


def operand_layout(layout: Layout, axes: tuple[int, ...], shape: tuple[int, ...]) -> Layout:
    """The layout of what is broadcast into `layout`: axis i of the operand is axis axes[i]."""
    return layout.project(axes, [dim == 1 for dim in shape])


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `axes`."""
    return tuple(axes.index(axis) for axis in range(len(axes)))
