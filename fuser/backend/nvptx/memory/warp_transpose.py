"""16-bit tiles in accumulator layout, to and from memory in whole lines, without other warps.

An accumulator gives a thread two neighbours of a row, and four lanes 16 bytes: half of what memory
moves at a time. Here a warp transposes strips of 16 rows and up to 64 columns in a buffer of its
own, so a warp group's epilogue waits for no other group.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager

from fuser.backend.nvptx.analysis.access import Access, step_of
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.ir.warp_transpose import BUFFER, WarpTranspose, warp_transpose_in
from fuser.backend.nvptx.layouts.layout import ROW_LANES, Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.masks import can_remake
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.graph.sizes import same


def warp_transpose_of(low: Builder, access: Access, layout: Layout) -> WarpTranspose | None:
    """How warps transpose a tile of this layout; None where it is not in accumulator layout or
    memory does not run along its rows."""
    if not low.target.clusters or access.view.dtype.bits != 16 or len(access.shape) != 2:
        return None
    if low.cluster.blocks > 1:
        return None
    mask = access.mask
    if mask is not None and not can_remake(mask, low.assignment.makers, low.env.__contains__):
        return None
    if access.axis != 1 or not same(step_of(access.linear, 1, 1), 1) or layout.lanes != ROW_LANES:
        return None
    found = warp_transpose_in(layout, 64, min(access.width, 8))
    if found is None or found.columns < 32:
        return None
    if any(basis[1] for basis in layout.warps) and found.columns % 64:
        return dataclasses.replace(found, width=32) if found.columns % 32 == 0 else None
    return found if found.columns >= 64 else dataclasses.replace(found, width=32)


def own_buffers(low: Recording) -> AbstractContextManager[Slot]:
    """Let the warps keep their buffers for a while."""
    return low.shared.warp_buffers(BUFFER * low.warps)


def store_transposed(low: Recording, access: Access, tile: Tile, transpose: WarpTranspose) -> None:
    """Write a tile; elements out of bounds are dropped."""
    at = low.place(access, transpose.memory_layout)
    with own_buffers(low) as slot:
        low.do(gpu.StoreLines(
            at=at, value=tile, slot=slot, width=transpose.width, vector=transpose.vector
        ))  # fmt: skip


def load_transposed(
    low: Builder, access: Access, layout: Layout, pad: float | int | None, transpose: WarpTranspose
) -> Tile:
    """Read a tile into an accumulator layout, `pad` where out of bounds."""
    return transpose_row_loads(low, layout, issue_row_loads(low, access, pad, transpose), transpose)


def issue_row_loads(
    low: Builder, access: Access, pad: float | int | None, transpose: WarpTranspose
) -> Tile:
    """Read the vectors of a tile, `pad` where out of bounds: the tile in the layout of memory
    accesses."""
    made = low.new(access.view.dtype, access.shape, transpose.memory_layout, "lines")
    return low.add(gpu.LoadLines(
        at=low.place(access, transpose.memory_layout), pad=pad, vector=transpose.vector,
        constant=low.is_constant(access.view.buffer), results=(made,),
    ))  # fmt: skip


def transpose_row_loads(
    low: Recording, layout: Layout, rows: Tile, transpose: WarpTranspose
) -> Tile:
    """The tile in its accumulator layout."""
    made = low.new(rows.dtype, rows.shape, layout)
    with own_buffers(low) as slot:
        return low.add(gpu.TurnLines(
            x=rows, slot=slot, width=transpose.width, vector=transpose.vector, results=(made,)
        ))  # fmt: skip
