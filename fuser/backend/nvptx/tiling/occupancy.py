"""How many blocks of a kernel a multiprocessor should hold at once."""

from __future__ import annotations

import math

from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.tiling.strip_mining import StripMining
from fuser.graph.sizes import size_hint
from fuser.tilegen import ops


def resident_blocks(low: Builder, strips: StripMining | None) -> int:
    """Blocks that a multiprocessor should hold at once, which bounds the registers of a thread.

    Long rows: one block of 16 warps has too few bytes under way, and its values fit half of the
    registers, unless three tiles or more of longer elements meet, which would be spilled. Rows that
    are read several times must stay in the L2 meanwhile. Where such rows are spread over a cluster,
    blocks are half as large, and three of them fit.
    """
    if low.kernel.schedule.blocks_per_sm:
        return low.kernel.schedule.blocks_per_sm
    if strips is not None and strips.blocks:
        return strips.blocks
    if low.scheduler.blocks_per_sm:
        return low.scheduler.blocks_per_sm
    if low.assignment.dots:
        # one splits its operands while the other multiplies
        return 2 if any(plan.kind == "wide" for plan in low.assignment.dots.values()) else 1
    views = {op: access.view for op, access in low.assignment.accesses.items()}
    widest = max((view.dtype.bytes for view in views.values()), default=4)
    if low.threads == 256 and low.cluster.blocks > 1 and widest <= 4:
        return 3
    if low.threads != 512:
        return 1
    tiles = [op for op in views if op.results and len(low.layout(op.result).regs) >= 16]
    if low.cluster.blocks > 1 and len(tiles) > 2:
        return 1
    if any(len(low.layout(op.result).regs) > 32 for op in tiles):
        return 1
    if widest > 2:
        small = all(view.dtype.is_float and view.dtype.bytes <= 4 for view in views.values())
        straight = not any(isinstance(op, ops.For) for op in low.kernel.walk())
        return 2 if small and straight and len(tiles) <= 2 else 1
    known = not any(buffer.open for buffer in low.kernel.buffers)
    if known and any(isinstance(op, ops.For) for op in low.kernel.walk()):
        read = {view.buffer: view.dtype.bytes for op, view in views.items() if op.results}
        total = sum(size_hint(buffer.size) * size for buffer, size in read.items())
        rows = 2 * low.target.units * total / math.prod(map(size_hint, low.kernel.grid))
        if rows > 0.75 * low.target.l2_cache_bytes:
            return 1
    return 2
