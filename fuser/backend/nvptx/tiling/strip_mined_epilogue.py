"""Which kernels compute what follows their matmuls, or their last reduction, in strips.

Of a tile of 128 sums a thread, a bias, a GELU and a rounding would otherwise each be done for all
before the first is stored: two or three tiles alive at once, more than there are registers. A strip
is of the 16 rows and 64 columns that a warp stores (memory/warp_transpose.py).

    sum = reduce.sum(...)
    w = load(...)  b = load(...)  store(x * (1 / sum) * w + b)

After a reduction, all that a thread needs of w and of b would be in registers beside x: three tiles
where one was, for the time of a few operations. In strips it is a vector or two of each, and more
blocks fit a multiprocessor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fuser.backend.nvptx.layouts.access_layout import access_layout
from fuser.backend.nvptx.layouts.assignment import lookups_of
from fuser.backend.nvptx.layouts.layout import ROW_LANES, Layout, strips_along
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.memory.warp_transpose import warp_transpose_of
from fuser.backend.nvptx.tiling.strip_mining import StripMining, strip_mine
from fuser.tilegen import ops

MIN_REGISTERS = 64
"""Registers of a tile of sums from which on its strips are worth the trouble (half of it for
elements of 32 bits)."""
STRIP = 8
"""Elements of a tile of rows that a thread has in registers at a time, or one vector of them."""
_ALLOWED = ops.IndexTile | ops.Full | ops.Load | ops.Map | ops.Cast | ops.Broadcast | ops.Store


def plan_epilogue(low: Builder) -> StripMining | None:
    """The plan of a kernel that ends in a chain of elementwise ops; None where that has no form by
    strips, or would be one strip, or where nothing is loaded beside rows."""
    body, plan = low.kernel.body.ops, low.assignment
    ends = [at for at, op in enumerate(body) if op.blocks() or isinstance(op, ops.Dot | ops.Reduce)]
    if not ends or (plan.dots and isinstance(body[ends[-1]], ops.Reduce)):
        return None
    line = [op for op in body[ends[-1] + 1 :] if not isinstance(op, ops.Yield)]
    if not all(isinstance(op, _ALLOWED) and not lookups_of(op) for op in line):
        return None
    stores = [op for op in line if isinstance(op, ops.Store) and op.value.shape]
    layouts = {plan.layouts.get(op.value) for op in stores}
    whole = layouts.pop() if len(layouts) == 1 else None
    if whole is None or not plan.staged.isdisjoint(line):
        return None
    transpose = warp_transpose_of(low, plan.accesses[stores[0]], whole) if plan.dots else None
    if not plan.dots:
        strips = strips_along(whole, plan.accesses[stores[0]].axis, STRIP)
    elif transpose is not None and len(whole.regs) >= MIN_REGISTERS:
        strips = _bands(whole, transpose.bands, transpose.width)
    elif _is_direct(low, stores, whole):
        strips = _bands(whole, sorted({row for row, _ in whole.regs if row % 16 == 0}), 32)
    else:
        return None
    found = strip_mine(low, line, stores, strips) if len(strips) > 1 else ""
    if isinstance(found, str):
        return None
    if not plan.dots and not any(isinstance(op, ops.Load) for op in found.inside):
        return None
    return dataclasses.replace(
        found, order=sorted(body, key=lambda op: op in found.inside or op in stores),
        ahead=True, transposed=transpose is not None, seams=1 if plan.dots else 0,
    )  # fmt: skip


def _bands(whole: Layout, bands: Iterable[int], width: int) -> list[Layout]:
    """Parts of an accumulator layout: 16 rows from each of `bands` on, and `width` columns."""
    columns = range(0, max(column for _, column in whole.regs) + 1, width)
    return [
        dataclasses.replace(
            whole, regs=tuple(
                (row, column)
                for row, column in whole.regs
                if row in (band, band + 8) and first <= column < first + width
            ),
        )
        for band in bands
        for first in columns
    ]  # fmt: skip


def _is_direct(low: Builder, stores: list[ops.Store], whole: Layout) -> bool:
    """Whether tiles of 32-bit elements leave their accumulator layout for memory as they are."""
    if low.cluster.blocks > 1 or whole.lanes != ROW_LANES or len(whole.regs) < MIN_REGISTERS // 2:
        return False
    for op in stores:
        access = low.assignment.accesses[op]
        if access.view.dtype.bits != 32 or access_layout(access, whole, low.warps) != whole:
            return False
    return True
