"""Questions about pairs of layouts: what can be had without moving data between threads."""

from __future__ import annotations

from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout


def in_registers(source: Layout, layout: Layout) -> bool:
    """Whether every thread already owns what it needs."""
    longest = max(len(source.bits), len(layout.bits))
    if _padded(source, longest) == _padded(layout, longest):
        return all(offset in source.register_of for offset in layout.regs)
    return False


def moves_in_registers(x: Tile, made: Tile, *, flat: bool) -> bool:
    """Whether every thread has what it needs of x for another tile of the same elements. flat:
    under another shape, in the same order."""
    if flat:
        return in_registers(flattened(x.layout, x.shape), flattened(made.layout, made.shape))
    return in_registers(x.layout, made.layout)


def _padded(layout: Layout, count: int) -> tuple[Coordinates, ...]:
    """The bits of a layout; a layout of one block repeats in all blocks of a cluster."""
    return layout.bits + ((0,) * layout.rank,) * (count - len(layout.bits))


def row_major(shape: Coordinates, item: int) -> tuple[int, list[int]]:
    """The size of a tile whose elements lie densely in order, and the step along each axis; both in
    the unit of `item`, the size of an element."""
    size, steps = item, []
    for dim in reversed(shape):
        steps.append(size)
        size *= dim
    return size, steps[::-1]


def offset_of(offset: Coordinates, steps: list[int] | tuple[int, ...]) -> int:
    """How far from a tile's beginning an element lies, with the given step along each axis."""
    return sum(o * s for o, s in zip(offset, steps, strict=True))


def flattened(layout: Layout, shape: Coordinates) -> Layout:
    """The layout over the flat index. Exact only inside the tile's own shape."""
    size, steps = row_major(shape, 1)

    def flat(at: Coordinates) -> Coordinates:
        return (offset_of(at, steps),)

    return Layout(
        (size,),
        tuple(map(flat, layout.regs)),
        tuple(map(flat, layout.lanes)),
        tuple(map(flat, layout.warps)),
    )


def tile_size(shape: Coordinates) -> int:
    """Elements of a tile."""
    size = 1
    for dim in shape:
        size *= dim
    return size


def repeats(layout: Layout) -> bool:
    """Whether several threads have the same elements."""
    return not all(any(basis) for basis in layout.bits)


def vectors(layout: Layout, axis: int, width: int) -> list[tuple[Coordinates, list[int]]]:
    """(offset of the first element, register numbers) of every vector of `width` along `axis`."""
    if width == 1:
        return [(offset, [number]) for number, offset in enumerate(layout.regs)]
    found = []
    for offset in layout.regs:
        if offset[axis] % width:
            continue
        members = [
            layout.register_of[(*offset[:axis], offset[axis] + step, *offset[axis + 1 :])]
            for step in range(width)
        ]
        found.append((offset, members))
    return found
