"""Tensor maps of a kernel, and fetches by them."""

from __future__ import annotations

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, SharedTile
from fuser.backend.nvptx.layouts.assignment import Assignment
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.memory.im2col import Im2colWalk, offsets_of, start_of
from fuser.backend.nvptx.memory.operand_staging import dots_fed_by
from fuser.backend.nvptx.memory.tma_boxes import MAX_BOX, Box, MulticastSlice, Source
from fuser.graph.sizes import divides, is_symbolic, same
from fuser.tilegen import ops


def are_summed(assignment: Assignment, op: ops.Load, axis: int) -> bool:
    """Whether dots sum over an axis of a load: what lies there beyond the bounds must be zeros."""
    return any(axis ^ turned == (role == "a") for _, role, turned in dots_fed_by(assignment, op))


def filled_rows(source: Box, tile: SharedTile) -> int:
    """How many rows of a tile are worth fetching: those that can be there, where there are fewer.
    Only for an operand whose other rows end up in results that nobody looks at.

    The engine writes zeros for rows out of bounds, and is slow at it: a matmul of 24 rows and 5120
    columns took 21 to 45 % longer than one of 48, with the same tiles (an H200).
    """
    dim = source.dims[1]
    if is_symbolic(dim.extent) or dim.extent >= min(tile.rows, MAX_BOX):
        return tile.rows
    return dim.extent if dim.start.is_constant and same(dim.start.constant, 0) else tile.rows


def edge_rows(source: Box, tile: SharedTile) -> int:
    """How many rows the last of several tiles has, where it has fewer than the others; else 0. On
    the same condition as `filled_rows`: blocks at the edge would take longest of all."""
    dim, rows = source.dims[1], tile.rows
    if is_symbolic(dim.extent) or dim.extent <= rows or rows > MAX_BOX or dim.extent % rows == 0:
        return 0
    steps = (dim.start.constant, *(factor for _, factor in dim.start.terms))
    return dim.extent % rows if all(divides(rows, step) for step in steps) else 0


def add_map(
    low: Builder, op: ops.Load, source: Source, tile: SharedTile, *, edge: bool = False
) -> str:
    """Describe the source to the launcher; the name of the kernel parameter. edge: the box of the
    last tile."""
    columns = tile.span // tile.dtype.bytes
    piece = low.multicast.slice_of(op, tile)
    rows = tile.rows // piece.down if piece else tile.rows
    if isinstance(source, Im2colWalk):
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
        lines = source.edge if edge else source.rows or rows
        shape = (columns, min(lines, MAX_BOX)) + (1,) * (len(source.dims) - 2)
        record = TensorMap(
            argument=low.kernel.buffers.index(op.view.buffer),
            dtype=tile.dtype.name,
            shape=tuple(dim.extent for dim in source.dims),
            strides=tuple(dim.stride for dim in source.dims[1:]),
            box=shape,
            swizzle=0 if tile.flat else tile.span,
            offset=op.view.offset,
        )
    known = list(map(str, low.needs.tensor_maps))  # by form: sizes that are equal at times are not
    if str(record) in known:
        return f"%map{known.index(str(record))}"
    low.needs.tensor_maps.append(record)
    name = f"map{len(low.needs.tensor_maps) - 1}"
    return f"%{name}"


def fetch(
    low: Recording,
    source: Source,
    tile: SharedTile,
    name: str,
    barrier: str,
    piece: MulticastSlice | None = None,
    edge: str = "",
    beyond: Operand = 0,
) -> None:
    """Issue the copies of a source into a shared tile, for one thread; they complete on `barrier`.
    piece: the block's slice of it, which goes to several blocks, at the same place in each. edge:
    the map of the last tile, where `beyond` holds."""
    e = low.scalars
    columns = tile.span // tile.dtype.bytes
    blocks, rows, stage = tile.blocks, tile.rows, tile.stage
    across: Operand = 0
    down: Operand = 0
    to: Operand | None = None
    if piece:
        blocks, rows = blocks // piece.across, rows // piece.down
        across = e.times(e.bitwise("and", piece.number, piece.across - 1), blocks)
        down = e.shift("lshr", piece.number, piece.across.bit_length() - 1)
        stage = e.plus(stage, e.times(across, tile.block_bytes))
        stage = e.plus(stage, e.times(e.times(down, rows), tile.span))
        to = piece.mask
    offsets: list[Operand] = []
    if isinstance(source, Im2colWalk):
        first = low.evaluate(source.columns[1])
        starts = start_of(low, source, down, piece.down if piece else 1, rows)
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
        im2col=isinstance(source, Im2colWalk), to=to, edge=edge, beyond=beyond,
    ))  # fmt: skip
