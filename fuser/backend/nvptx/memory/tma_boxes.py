"""Loads as tensor-map boxes: what Hopper's copy engine (TMA) can fetch by itself.

A box is a [rows, columns] window on a view: one tile axis runs along a view dim of stride 1, the
other along any other dim, and the remaining dims are fixed by index scalars. A tile of one axis is
a box of one row. The engine fills zeros out of bounds in every dim, which is what a padded load
means. Rows that are windows on an image are in memory/im2col.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.memory.im2col import Im2colWalk, im2col_walk_of
from fuser.graph.sizes import certain, divides, is_symbolic, moves, same
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index
from fuser.tilegen.ir import View
from fuser.tilegen.value import UNBOUNDED

MAX_BOX = 256
MAX_RANK = 5


@dataclass(frozen=True)
class Dim:
    """A view dim as the tensor map has it: extent, stride in elements, and where a box starts."""

    extent: int
    stride: int
    start: Index


@dataclass(frozen=True)
class Box:
    """dims: columns first, then rows, then the fixed dims. rows: how many of the tile are fetched
    (see `filled_rows`); 0: all of them. edge: how many of the last tile, which has fewer (see
    `edge_rows`); 0: as many as of the others."""

    dims: tuple[Dim, ...]
    rows: int = 0
    edge: int = 0


Source = Box | Im2colWalk


@dataclass(frozen=True)
class MulticastSlice:
    """What a block fetches of a tile: slice `number`, of `across` cuts of the tile's blocks of
    columns times `down` cuts of its rows. mask: the blocks it is sent to, a bit each."""

    across: int
    down: int
    number: Operand
    mask: Operand


def source_of(op: ops.Load, access: Access, windows: bool, bytes_: int = 2) -> Source | None:
    """How the copy engine can fetch a load of elements of so many bytes, if it can. windows:
    whether rows may be windows on an image."""
    if op.mask is not None or not mappable(op.view):
        return None
    box = box_of(op, access, bytes_)
    return box if box is not None or not windows else im2col_walk_of(op, access, bytes_)


def mappable(view: View) -> bool:
    """Whether a tensor map may be made over a view: it has bounds, which are known when the launch
    is recorded, and starts at 16 bytes."""
    if moves(*view.shape, *view.strides, view.offset):
        return False
    bounded = all(is_symbolic(extent) or extent < UNBOUNDED for extent in view.shape)
    return bounded and (not view.buffer.open or view.buffer.align % 16 == 0 < view.buffer.align)


def box_of(op: ops.Load, access: Access, bytes_: int = 2) -> Box | None:
    """The box of a load of one or two axes, of elements of so many bytes, or None where the copy
    engine cannot fetch it."""
    view, size = op.view, op.view.dtype.bytes
    if op.mask is not None or not mappable(view):
        return None
    inner = access.axis
    found: dict[int, Dim] = {}
    fixed: list[Dim] = []
    for at, extent, stride in zip(op.indices, view.shape, view.strides, strict=True):
        axes = at.axes()
        if not axes:
            if not same(extent, 1) or not (at.is_constant and same(at.constant, 0)):
                fixed.append(Dim(extent, stride, at))
            continue
        if len(axes) > 1:
            return None
        (axis,) = axes
        moving, start = at.split(axes)
        if moving.terms != ((Axis(axis, op.shape[axis]), 1),) or axis in found:
            return None
        found[axis] = Dim(extent, stride, start)
    if len(op.shape) == 1 and 0 in found and not is_symbolic(found[0].extent):
        found[1] = Dim(1, -(-found[0].extent // 16) * 16, Index(0))
    if set(found) != {0, 1} or not same(found[inner].stride, 1) or size != bytes_:
        return None
    dims = (found[inner], found[1 - inner], *fixed)
    if len(dims) > MAX_RANK or not divides(16, view.offset * size):
        return None
    if not all(certain(dim.stride - 1) and divides(16, dim.stride * size) for dim in dims[1:]):
        return None
    return Box(dims)
