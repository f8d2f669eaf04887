"""What follows the matmuls of a kernel, strip by strip instead of op by op.

Of a tile of 128 sums a thread, a bias, a GELU and a rounding would otherwise each be done for all
before the first is stored: two or three tiles alive at once, more than there are registers. Here
the ops after the last loop are emitted once for every strip of 16 rows and 64 columns that a warp
stores (memory/warp_transpose.py), on layouts with the registers of that strip alone. What a strip
reads is loaded while the one before it is computed; tiles of the full shape further ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.ir.warp_transpose import WarpTranspose
from fuser.backend.nvptx.layouts.access_layout import access_layout, operand_layout
from fuser.backend.nvptx.layouts.assignment import is_tile, lookups_of
from fuser.backend.nvptx.layouts.convert import convert
from fuser.backend.nvptx.layouts.layout import ROW_LANES, Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Entry
from fuser.backend.nvptx.memory.warp_transpose import (
    issue_row_loads,
    own_buffers,
    transpose_row_loads,
    warp_transpose_of,
)
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

MIN_REGISTERS = 64
"""Registers of a tile from which on its strips are worth the trouble (half of it for elements of 32
bits)."""
PREFETCH_REGISTERS = 48
"""Registers for tiles on their way from memory."""


@dataclass(eq=False)
class Epilogue:
    """The ops after the last loop, the layout of the tiles they end in, and its strips. transposed:
    these pass through the buffers of warps. once: ops that come before all strips. seams: whether
    no code may be moved from one strip to another."""

    ops: list[Op]
    whole: Layout
    strips: list[Layout]
    transposed: bool
    once: list[Op] = field(default_factory=list)
    seams: bool = True


def find_epilogue(low: Builder) -> Epilogue | None:
    """The epilogue of a kernel; None where it is no chain of elementwise ops to strips."""
    body = low.kernel.body.ops
    loops = [at for at, op in enumerate(body) if op.blocks() or isinstance(op, ops.Dot)]
    if not loops:
        return None
    tail = [op for op in body[loops[-1] + 1 :] if not isinstance(op, ops.Yield)]
    allowed = ops.IndexTile | ops.Full | ops.Load | ops.Map | ops.Cast | ops.Broadcast | ops.Store
    if not all(isinstance(op, allowed) and not lookups_of(op) for op in tail):
        return None
    if any(op in low.assignment.staged for op in tail):
        return None
    stores = [op for op in tail if isinstance(op, ops.Store)]
    layouts = [low.assignment.layouts.get(op.value) for op in stores]
    if not layouts or layouts[0] is None or any(item != layouts[0] for item in layouts):
        return None
    whole = layouts[0]
    found = warp_transpose_of(low, low.assignment.accesses[stores[0]], whole)
    if found is not None and len(whole.regs) >= MIN_REGISTERS:
        width, bands = found.width, found.bands
    elif _is_direct(low, stores, whole):
        width, bands = 32, tuple(sorted({row for row, _ in whole.regs if row % 16 == 0}))
    else:
        return None
    strips = []
    for band in bands:
        for first in range(0, max(column for _, column in whole.regs) + 1, width):
            regs = tuple(
                (row, column)
                for row, column in whole.regs
                if row in (band, band + 8) and first <= column < first + width
            )
            strips.append(Layout(whole.shape, regs, whole.lanes, whole.warps))
    epilogue = Epilogue(tail, whole, strips, found is not None)
    return epilogue if layouts_of(low, epilogue, strips[0]) is not None else None


def _is_direct(low: Builder, stores: list[ops.Store], whole: Layout) -> bool:
    """Whether tiles of 32-bit elements leave their accumulator layout for memory as they are."""
    if low.cluster.blocks > 1 or whole.lanes != ROW_LANES or len(whole.regs) < MIN_REGISTERS // 2:
        return False
    for op in stores:
        access = low.assignment.accesses[op]
        if access.view.dtype.bits != 32 or access_layout(access, whole, low.warps) != whole:
            return False
    return True


def layouts_of(low: Builder, epilogue: Epilogue, strip: Layout) -> dict[Value, Layout] | None:
    """The layouts of one strip's values; None where a value would need two, or another form."""
    found: dict[Value, Layout] = {}
    plan = low.assignment

    def want(value: Value, layout: Layout) -> bool:
        if not is_tile(value) or value in plan.flexible:
            return True
        return found.setdefault(value, layout) == layout

    for op in reversed(epilogue.ops):
        fits = True
        match op:
            case ops.Store():
                fits = want(op.value, strip)
            case ops.Map() | ops.Cast() | ops.Broadcast() if op.result in found:
                layout = found[op.result]
                for value in op.operands():
                    wanted = layout
                    if isinstance(op, ops.Broadcast):
                        wanted = operand_layout(layout, op.axes, op.x.shape)
                    fits = fits and want(value, wanted)
            case _:
                pass
        if not fits:
            return None
    for value, layout in found.items():
        own = plan.layouts.get(value)
        if own is None or own.bits != layout.bits:
            return None
        if not set(layout.regs) <= set(own.regs):
            return None
    return found


def emit_epilogue(low: Builder, epilogue: Epilogue) -> None:
    """Emit the ops once a strip. The tiles they start from are in the environment."""
    if not epilogue.transposed:
        _emit(low, epilogue)
        return
    with own_buffers(low):
        _emit(low, epilogue)


def _emit(low: Builder, epilogue: Epilogue) -> None:
    plan = low.assignment
    for op in epilogue.once:
        low.op(op)
    with low.bindings.strips() as strips:
        scalars = [op for op in epilogue.ops if isinstance(op, ops.IndexTile | ops.Full)]
        for op in scalars:
            low.op(op)
        tables = []
        for strip in epilogue.strips:
            table = layouts_of(low, epilogue, strip)
            assert table is not None
            tables.append(table)
        loads = [op for op in epilogue.ops if isinstance(op, ops.Load) and op.result in tables[0]]
        row_loads: dict[tuple[ops.Load, int], tuple[Tile, WarpTranspose]] = {}
        tiles: dict[tuple[ops.Load, int], Entry] = {}
        transposing = [op for op in loads if _warp_transpose_of(low, op, tables[0]) is not None]
        ahead = max(1, PREFETCH_REGISTERS // (16 * max(1, len(transposing))))

        def fetch(op: ops.Load, number: int) -> None:
            if number >= len(tables) or (op, number) in row_loads or (op, number) in tiles:
                return
            found = _warp_transpose_of(low, op, tables[number]) if op in transposing else None
            if found is not None:
                row_loads[op, number] = (
                    issue_row_loads(low, plan.accesses[op], op.pad, found),
                    found,
                )
                return
            low.bindings.lay_out(tables[number])
            low.op(op)
            tiles[op, number] = low.env[op.result]

        computed = [op for op in epilogue.ops if op not in loads and op not in scalars]
        for number, table in enumerate(tables):
            for load in loads:
                for later in range(number, number + (ahead if load in transposing else 1) + 1):
                    fetch(load, later)
            if number and epilogue.seams:
                low.do(gpu.Seam())
            strips.begin()
            for op in scalars:
                low.op(op)
            low.bindings.lay_out(table)
            for value, layout in table.items():
                entry = low.env.get(value)
                if isinstance(entry, Tile):
                    low.env[value] = convert(low, entry, layout)
            for load in loads:
                if (load, number) in row_loads:
                    arrived = row_loads.pop((load, number))
                    low.env[load.result] = transpose_row_loads(low, table[load.result], *arrived)
                else:
                    low.env[load.result] = tiles.pop((load, number))
            for item in computed:
                low.op(item)


def _warp_transpose_of(
    low: Builder, op: ops.Load, table: dict[Value, Layout]
) -> WarpTranspose | None:
    return warp_transpose_of(low, low.assignment.accesses[op], table[op.result])
