"""Masks, and what else is cheap to compute again: which vectors of a tile have one mask, and tiles
that are made anew in the layout that is wanted instead of moved to it.

A mask is most often a comparison of index tiles, `e < n`. Where e steps by 1 along a vector whose
first element is a multiple of the vector's width, and so is n, all of the vector is masked alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fuser.backend.nvptx.analysis.access import multiple_of, step_of
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.access_layout import operand_layout
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.dtypes import DType
from fuser.graph.sizes import certain, same
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Lookup, axis, index
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

Makers = Mapping[Value, Op]

DEEPEST = 24
"""Ops on top of each other that are worth doing twice."""
_LOGIC = frozenset(
    ("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or",
     "bitwise_xor", "bitwise_not", "select", "eq", "ne")
)  # fmt: skip
_ORDER = {"lt": (False, 0), "le": (False, 1), "gt": (True, 0), "ge": (True, 1)}
"""a < b, a < b + 1, b < a, b < a + 1: (whether operands change places, what is added)."""
_CHEAP = _LOGIC | frozenset((*_ORDER, "add", "sub", "mul", "min", "max", "neg", "div", "mod"))


def uniform(value: Value, makers: Makers, along: int, width: int, depth: int = DEEPEST) -> bool:
    """Whether a tile has one value for every `width` neighbours along an axis."""
    if not value.shape or value.shape[along] == 1:
        return True
    if value.shape[along] % width or depth == 0:
        return False
    maker = makers.get(value)
    match maker:
        case ops.Full():
            return True
        case ops.IndexTile():
            return same(step_of(maker.expression, along, width), 0)
        case ops.Map() if maker.fn in _ORDER and not maker.args[0].dtype.is_float:
            if all(uniform(arg, makers, along, width, depth - 1) for arg in maker.args):
                return True
            turned, more = _ORDER[maker.fn]
            a, b = (affine(arg, makers, depth) for arg in maker.args)
            dtype = maker.args[0].dtype
            if a is None or b is None or any(_may_wrap(at, dtype, along, width) for at in (a, b)):
                return False
            return _splits_between(b - a if turned else a - b, more, along, width)
        case ops.Map():
            return all(uniform(arg, makers, along, width, depth - 1) for arg in maker.args)
        case ops.Cast() | ops.Bitcast():
            return uniform(maker.x, makers, along, width, depth - 1)
        case ops.Broadcast():
            if along not in maker.axes:
                return True
            return uniform(maker.x, makers, maker.axes.index(along), width, depth - 1)
        case ops.Permute():
            return uniform(maker.x, makers, maker.axes[along], width, depth - 1)
        case ops.Reshape():
            axes = _kept_axes(maker.x.shape, maker.shape)
            if axes is None or along not in axes:
                return False
            return uniform(maker.x, makers, axes.index(along), width, depth - 1)
        case _:
            return False


def _may_wrap(at: Index, dtype: DType, along: int, width: int) -> bool:
    """Whether integers of a type may wrap around inside a vector. They do so at multiples of a
    power of 2, thus never inside one that begins at a multiple of its width."""
    if same(step_of(at, along, width), 0) or _fits(at, dtype):
        return False
    return multiple_of(at, along, width) % width != 0


def _fits(at: Index, dtype: DType) -> bool:
    low, high = at.range
    return certain(low - int(dtype.lowest)) and certain(int(dtype.highest) - high)


def _splits_between(difference: Index, more: int, along: int, width: int) -> bool:
    """Whether difference < more holds for all of a vector or for none of it."""
    step = step_of(difference, along, width)
    if same(step, 0):
        return True
    if same(step, 1):
        return multiple_of(difference + -more, along, width) % width == 0
    # d < more where d falls: more - 1 - d >= 0, which rises
    turned = difference * -1 + (more - 1)
    if same(step_of(turned, along, width), 1):
        return multiple_of(turned, along, width) % width == 0
    return False


def affine(value: Value, makers: Makers, depth: int = DEEPEST) -> Index | None:
    """An integer tile as an index expression over its own axes, if it is one: its numbers, if they
    do not wrap around in its type."""
    if value.dtype.is_float or value.dtype.kind == "bool" or depth == 0:
        return None
    maker = makers.get(value)
    match maker:
        case ops.IndexTile():
            return None if _looks_up(maker.expression) else maker.expression
        case ops.Full():
            return Index(int(maker.value))
        case ops.Cast() if maker.x.dtype.is_integer and maker.dtype.bits >= maker.x.dtype.bits:
            inner = affine(maker.x, makers, depth - 1)
            if inner is None or (inner.axes() and not _fits(inner, maker.x.dtype)):
                return None
            return inner
        case ops.Broadcast():
            inner = affine(maker.x, makers, depth - 1)
            return inner and _moved(inner, maker.x.shape, maker.axes, maker.shape)
        case ops.Reshape():
            axes = _kept_axes(maker.x.shape, maker.shape)
            inner = affine(maker.x, makers, depth - 1) if axes is not None else None
            if inner is None or axes is None:
                return None
            return _moved(inner, maker.x.shape, axes, maker.shape)
        case ops.Map() if maker.fn in ("add", "sub", "mul"):
            a, b = (affine(arg, makers, depth - 1) for arg in maker.args)
            if a is None or b is None:
                return None
            if maker.fn != "mul":
                return a + b if maker.fn == "add" else a - b
            if b.is_constant or a.is_constant:
                return a * b.constant if b.is_constant else b * a.constant
    return index(value) if not value.shape else None


def _looks_up(at: Index) -> bool:
    return any(value.shape for value in at.values())


def _moved(at: Index, source: Coordinates, axes: Coordinates, shape: Coordinates) -> Index | None:
    """An expression over axes i of `source`, which are axes[i] of `shape`."""

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):
            return Index(0) if source[atom.axis] == 1 else axis(axes[atom.axis], atom.extent)
        return None

    return None if any(isinstance(atom, Lookup) for atom, _ in at.terms) else at.replace(leaf)


def _kept_axes(source: Coordinates, shape: Coordinates) -> Coordinates | None:
    """Where the axes of a tile go in a reshape that only adds axes of 1, or drops them; an axis
    that is dropped goes to -1. None for any other reshape."""
    if [d for d in source if d != 1] != [d for d in shape if d != 1]:
        return None
    places = [place for place, dim in enumerate(shape) if dim != 1]
    found, at = [], 0
    for dim in source:
        found.append(places[at] if dim != 1 else -1)
        at += dim != 1
    return tuple(found)


def mapped(low: Recording, op: ops.Map, tiles: Sequence[Tile], layout: Layout) -> Tile:
    """A map: of a mask one result for each vector of elements that are masked alike."""
    alike = None
    if op.result.dtype.kind == "bool" and layout.rank:
        alike = _alike(op.result, low.assignment.makers, layout)
    made = low.new(op.result.dtype, op.result.shape, layout, op.result.name)
    return low.add(gpu.Map(fn=op.fn, args=tuple(tiles), alike=alike, results=(made,)))


def cast(low: Recording, tile: Tile, dtype: DType) -> Tile:
    """The same numbers as another dtype."""
    return low.add(gpu.Cast(x=tile, results=(low.new(dtype, tile.shape, tile.layout),)))


def _alike(value: Value, makers: Makers, layout: Layout) -> tuple[int, int] | None:
    """(axis, width) of the vectors of a layout in which a tile surely has one value."""
    for along in range(layout.rank):
        width = layout.vector(along)
        while width > 1 and not uniform(value, makers, along, width):
            width //= 2
        if width > 1:
            return along, width
    return None


# made again ---------------------------------------------------------------------------------------


def can_remake(
    value: Value, makers: Makers, known: Callable[[Value], bool], depth: int = DEEPEST
) -> bool:
    """Whether a tile is made of index tiles, constants and scalars by a few cheap ops. known:
    whether a scalar is there."""
    maker = makers.get(value)
    match maker:
        case ops.Full():
            return True
        case ops.IndexTile():
            return not _looks_up(maker.expression) and all(map(known, maker.expression.values()))
    if not value.shape and known(value):
        return True
    if depth == 0:
        return False
    match maker:
        case ops.Map() if maker.fn in _CHEAP:
            return all(can_remake(arg, makers, known, depth - 1) for arg in maker.args)
        case ops.Cast() | ops.Bitcast() | ops.Broadcast():
            return can_remake(maker.x, makers, known, depth - 1)
        case ops.Reshape() if _kept_axes(maker.x.shape, maker.shape) is not None:
            return can_remake(maker.x, makers, known, depth - 1)
        case _:
            return False


def remake(low: Recording, value: Value, layout: Layout, table: dict[Value, Tile]) -> Tile:
    """A tile that `can_remake`, in a layout. table: scalars that were made on the way."""
    maker = low.assignment.makers.get(value)
    if isinstance(maker, ops.Full | ops.IndexTile):
        if maker.shape or value not in low.env:
            return low.materialise(maker, layout)
    if not value.shape and value in low.env:
        return low.tile(value, layout)
    if not value.shape and value in table:
        return table[value]
    made: Tile
    match maker:
        case ops.Map():
            tiles = [remake(low, arg, layout, table) for arg in maker.args]
            made = mapped(low, maker, tiles, layout)
        case ops.Cast():
            made = cast(low, remake(low, maker.x, layout, table), maker.dtype)
        case ops.Bitcast():
            tile = remake(low, maker.x, layout, table)
            made = low.bits_as(tile, value.dtype)
        case ops.Broadcast():
            made = spread(
                low, remake(low, maker.x, operand_layout(layout, maker.axes, maker.x.shape), table),
                maker.axes, value.shape, layout,
            )  # fmt: skip
        case ops.Reshape():
            axes = _kept_axes(maker.x.shape, maker.shape)
            assert axes is not None
            inner = reshaped_layout(layout, axes)
            tile = remake(low, maker.x, inner, table)
            made = low.new(value.dtype, value.shape, layout)
            low.do(gpu.Relabel(x=tile, axes=axes, results=(made,)))
        case _:
            raise AssertionError(f"{value!r} cannot be made again")
    if not value.shape:
        table[value] = made
    return made


def spread(
    low: Recording, tile: Tile, axes: Coordinates, shape: Coordinates, layout: Layout
) -> Tile:
    """A tile that has what `layout` needs of it, broadcast into that layout."""
    made = low.new(tile.dtype, shape, layout)
    return low.add(gpu.Relabel(x=tile, axes=tuple(axes), results=(made,)))


def _at(offset: Coordinates, axes: Coordinates) -> Coordinates:
    return tuple(0 if a < 0 else offset[a] for a in axes)


def reshaped_layout(layout: Layout, axes: Coordinates) -> Layout:
    """The layout of a tile whose axis i is axis axes[i] of `layout`; -1: an axis of 1."""
    return Layout(
        tuple(1 if a < 0 else layout.shape[a] for a in axes),
        tuple(dict.fromkeys(_at(offset, axes) for offset in layout.regs)),
        tuple(_at(basis, axes) for basis in layout.lanes),
        tuple(_at(basis, axes) for basis in layout.warps),
    )


def unit_reshape(op: ops.Reshape) -> tuple[Coordinates, Coordinates] | None:
    """Of a reshape that only adds or drops axes of 1: where the operand's axes go, and where the
    result's came from."""
    there, back = _kept_axes(op.x.shape, op.shape), _kept_axes(op.shape, op.x.shape)
    return None if there is None or back is None else (there, back)
