"""Loads as tensor-map boxes: what Hopper's copy engine (TMA) can fetch by itself.

A box is a [rows, columns] window on a view: one tile axis runs along a view dim of stride 1, the
other along any other dim, and the remaining dims are fixed by index scalars. A tile of one axis is
a box of one row. The engine fills zeros out of bounds in every dim, which is what a padded load
means. Rows that are windows on an image are in windows.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.access import Access
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import SharedTile
from fuser.backend.nvptx.windows import Windows, offsets_of, start_of, windows_of
from fuser.graph.sizes import certain, divides, is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index
from fuser.tilegen.ir import View
from fuser.tilegen.value import UNBOUNDED

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering
    from fuser.backend.nvptx.multicast import Share

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
    (see `filled_rows`); 0: all of them."""

    dims: tuple[Dim, ...]
    rows: int = 0


Source = Box | Windows


def source_of(low: Lowering, op: ops.Load, bytes_: int = 2) -> Source | None:
    """How the copy engine can fetch a load of elements of so many bytes, if it can.
    `schedule.extra["windows"]` may forbid windows."""
    access = low.assignment.accesses[op]
    if op.mask is not None or not mappable(op.view):
        return None
    box = box_of(op, access, bytes_)
    if box is not None or not low.kernel.schedule.extra.get("windows", True):
        return box
    return windows_of(op, access, bytes_)


def mappable(view: View) -> bool:
    """Whether a tensor map may be made over a view: it has bounds, and starts at 16 bytes."""
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


def filled_rows(low: Lowering, op: ops.Load, source: Source, tile: SharedTile) -> int:
    """How many rows of a tile are worth fetching: those that can be there, where there are fewer.
    Only for an operand whose other rows end up in results that nobody looks at.

    The engine writes zeros for rows out of bounds, and is slow at it: a matmul of 24 rows and 5120
    columns took 21 to 45 % longer than one of 48, with the same tiles (an H200).
    """
    if not isinstance(source, Box) or tile.flat or low.neighbours.share(op, tile):
        return tile.rows
    dim = source.dims[1]
    if is_symbolic(dim.extent) or dim.extent >= min(tile.rows, MAX_BOX):
        return tile.rows
    return dim.extent if dim.start.is_constant and same(dim.start.constant, 0) else tile.rows


def add_map(low: Lowering, op: ops.Load, source: Source, tile: SharedTile) -> str:
    """Describe the source to the launcher; the name of the kernel parameter."""
    columns = tile.span // tile.dtype.bytes
    share = low.neighbours.share(op, tile)
    rows = tile.rows // share.down if share else tile.rows
    if isinstance(source, Windows):
        dims, boxed = source.dims, source.dims[:-1]
        record = TensorMap(
            argument=low.kernel.buffers.index(op.view.buffer),
            dtype=tile.dtype.name,
            shape=(source.columns[0], *(dim.extent for dim in dims)),
            strides=tuple(dim.stride for dim in dims),
            box=(columns, rows),
            swizzle=tile.span,
            offset=op.view.offset,
            lower=tuple(dim.lower for dim in boxed),
            upper=tuple(dim.upper for dim in boxed),
            steps=tuple(dim.step for dim in boxed),
        )
    else:
        shape = (columns, min(source.rows or rows, MAX_BOX)) + (1,) * (len(source.dims) - 2)
        record = TensorMap(
            argument=low.kernel.buffers.index(op.view.buffer),
            dtype=tile.dtype.name,
            shape=tuple(dim.extent for dim in source.dims),
            strides=tuple(dim.stride for dim in source.dims[1:]),
            box=shape,
            swizzle=0 if tile.flat else tile.span,
            offset=op.view.offset,
        )
    known = list(map(str, low.tensor_maps))  # by form: sizes that are equal at times are not
    if str(record) in known:
        return f"%map{known.index(str(record))}"
    low.tensor_maps.append(record)
    name = f"map{len(low.tensor_maps) - 1}"
    low.emitter.params.append(('ptr byval([128 x i8]) align 64 "nvvm.grid_constant"', name))
    return f"%{name}"


def fetch(
    low: Lowering,
    source: Source,
    tile: SharedTile,
    name: str,
    barrier: str,
    share: Share | None = None,
) -> None:
    """Issue the copies of a source into a shared tile, for one thread; they complete on `barrier`.
    share: the block's part of it, which goes to several blocks, at the same place in each."""
    e = low.emitter
    columns = tile.span // tile.dtype.bytes
    blocks, rows, stage = tile.blocks, tile.rows, tile.stage
    across: Operand = 0
    down: Operand = 0
    to: Operand | None = None
    if share:
        blocks, rows = blocks // share.across, rows // share.down
        across = e.times(e.bitwise("and", share.part, share.across - 1), blocks)
        down = e.shift("lshr", share.part, share.across.bit_length() - 1)
        stage = e.plus(stage, e.times(across, tile.block_bytes))
        stage = e.plus(stage, e.times(e.times(down, rows), tile.span))
        to = share.mask
    offsets: list[Operand] = []
    if isinstance(source, Windows):
        first = low.evaluate(source.columns[1])
        starts = start_of(low, source, down, share.down if share else 1, rows)
        offsets = offsets_of(low, source)
        step = rows
    else:
        first = low.evaluate(source.dims[0].start)
        starts = [low.evaluate(dim.start) for dim in source.dims[1:]]
        starts[0] = e.plus(starts[0], e.times(down, rows))
        step, rows = MAX_BOX, source.rows or rows
    first = e.plus(first, e.times(across, columns))
    low.do(gpu.Fetch(
        map=name, into=tile.at_stage(stage), barrier=barrier, start=(first, *starts),
        across=blocks, rows=rows, step=step, offsets=tuple(offsets),
        im2col=isinstance(source, Windows), to=to,
    ))  # fmt: skip
