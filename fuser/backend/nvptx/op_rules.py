"""The code of each op, on tiles that already have layouts: `RULES` has one rule an op.

A rule reads its operands with `Lowering.tile` in the layout that it wants, and binds its result
with `Lowering.set`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fuser.backend.nvptx import consumer, loops, scan
from fuser.backend.nvptx import dot as dots
from fuser.backend.nvptx.access import Access
from fuser.backend.nvptx.access_layout import access_layout, operand_layout
from fuser.backend.nvptx.assignment import is_tile
from fuser.backend.nvptx.atomics import lower_atomic, shown_to_all
from fuser.backend.nvptx.convert import reshape
from fuser.backend.nvptx.elementwise import cast_registers
from fuser.backend.nvptx.gather import lower_gather
from fuser.backend.nvptx.layout import Layout
from fuser.backend.nvptx.masks import mapped, spread
from fuser.backend.nvptx.memory import atomic_add_tile, load_tile, only_once, store_tile
from fuser.backend.nvptx.reduce import reduce_tile
from fuser.backend.nvptx.short_forms import fused_exponential, short_form, unscaled
from fuser.backend.nvptx.slices import rows_in_warps
from fuser.backend.nvptx.stage import SharedTile, stage_once
from fuser.backend.nvptx.strips import load_strips, store_strips, strips_of
from fuser.backend.nvptx.turning import lower_while
from fuser.backend.nvptx.values import Tile, literal
from fuser.tilegen import ops
from fuser.tilegen.ir import Op

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def _program_id(low: Lowering, op: ops.ProgramId) -> None:
    low.env[op.result] = low.order.coordinate(low.emitter, op.axis)


def _index_tile(low: Lowering, op: ops.IndexTile) -> None:
    if is_tile(op.result):
        low.env[op.result] = op
    elif low.caller and not low.ends_short(op.expression):
        low.env[op.result] = low.materialise(op, low.scalar_layout)
    else:
        low.env[op.result] = low.evaluate(op.expression)


def _full(low: Lowering, op: ops.Full) -> None:
    low.env[op.result] = op if is_tile(op.result) else int(op.value)


def _load(low: Lowering, op: ops.Load) -> None:
    access = low.assignment.accesses[op]
    if op in low.resident:
        low.env[op.result] = consumer.receive(low, low.resident[op])
        return
    if op in low.assignment.staged:
        if op not in low.piped:
            stage_once(low, op)
        return
    layout = low.layout(op.result)
    strips = None if op in low.direct else strips_of(low, access, layout)
    if strips is not None:
        low.before_load(op, strips.lines)
        low.env[op.result] = load_strips(low, access, layout, op.pad, strips)
        return
    moved = layout if op in low.direct else moved_in(low, access, layout)
    low.before_load(op, moved)
    single = only_once(low, moved) if low.hazards.may_change(op.view.buffer) else None
    tile = load_tile(low, access, moved, op.pad, single)
    if single is not None:
        # who finds a flag set finds what was stored before it
        low.emitter.do('call void asm sideeffect "fence.acq_rel.gpu;", "~{memory}"()')
        tile = shown_to_all(low, tile, single)
    low.set(op.result, tile)


def _store(low: Lowering, op: ops.Store) -> None:
    access = low.assignment.accesses[op]
    layout = low.assignment.layouts.get(op.value) or low.plain_layout(access.shape, [access])
    tile = low.tile(op.value, layout)
    strips = strips_of(low, access, layout)
    if strips is not None:
        low.before_store(op, strips.lines)
        store_strips(low, access, tile, strips)
        return
    moved = low.tile(op.value, moved_in(low, access, tile.layout))
    low.before_store(op, moved.layout)
    store_tile(low, access, moved)


def moved_in(low: Lowering, access: Access, layout: Layout) -> Layout:
    """The layout in which a value of the given layout is loaded or stored."""
    if low.cluster.blocks > 1:  # a conversion would have to go from block to block
        return layout
    return access_layout(access, layout, low.warps)


def _atomic_add(low: Lowering, op: ops.AtomicAdd) -> None:
    access = low.assignment.accesses[op]
    layout = low.assignment.layouts.get(op.value) or low.plain_layout(access.shape, [access])
    tile = low.tile(op.value, layout)
    low.before_store(op, layout)
    atomic_add_tile(low, access, tile)


def _map(low: Lowering, op: ops.Map) -> None:
    layout = low.layout(op.result)
    tiles = [low.tile(arg, layout) for arg in op.args]
    regs = fused_exponential(low, op, layout) or short_form(low, op, layout)
    if regs is None:
        regs = mapped(low, op, tiles, layout)
    low.set(op.result, Tile(op.result.dtype, op.result.shape, layout, regs))


def _cast(low: Lowering, op: ops.Cast) -> None:
    layout = low.layout(op.result)
    tile = low.tile(op.x, layout)
    regs = cast_registers(low.emitter, tile.regs, op.x.dtype, op.dtype)
    low.set(op.result, Tile(op.dtype, op.result.shape, layout, regs))


def _broadcast(low: Lowering, op: ops.Broadcast) -> None:
    layout = low.layout(op.result)
    tile = low.tile(op.x, operand_layout(layout, op.axes, op.x.shape))
    low.set(op.result, spread(tile, op.axes, op.shape, layout))


def _bitcast(low: Lowering, op: ops.Bitcast) -> None:
    layout = low.layout(op.result)
    low.set(op.result, low.bits_as(low.tile(op.x, layout), op.dtype))


def _gather(low: Lowering, op: ops.Gather) -> None:
    low.set(op.result, lower_gather(low, op))


def _reshape(low: Lowering, op: ops.Reshape) -> None:
    layout = low.layout(op.result)
    tile = low.as_it_is(op.x)
    low.set(op.result, reshape(low, tile, op.shape, layout))


def _permute(low: Lowering, op: ops.Permute) -> None:
    entry = low.env[op.x]
    if isinstance(entry, SharedTile):
        low.env[op.result] = entry.permuted(op.axes)
        return
    tile = low.as_it_is(op.x)
    moved = Tile(tile.dtype, op.result.shape, tile.layout.permuted(op.axes), tile.regs)
    low.set(op.result, moved)


def _reduce(low: Lowering, op: ops.Reduce) -> None:
    tile = low.as_it_is(op.x)
    if low.frugal:
        tile = rows_in_warps(low, tile, op.axis)
    low.cluster.enter_reduction(op, tile.layout)
    if op.fn in ("max", "fmax") and isinstance(low.env[op.x], Tile):
        found = unscaled(low, op.x, tile.layout)
        if found is not None:  # rounding is monotone: max(x * c) is max(x) * c to the last bit
            regs, scale = found
            bare = Tile(tile.dtype, tile.shape, tile.layout, regs)
            most = reduce_tile(low, op.fn, bare, op.axis)
            by = literal(scale, tile.dtype)
            scaled = [low.emitter.value(f"fmul float {reg}, {by}") for reg in most.regs]
            low.set(op.result, Tile(most.dtype, most.shape, most.layout, scaled))
            return
    low.set(op.result, reduce_tile(low, op.fn, tile, op.axis))


def _scan(low: Lowering, op: ops.Scan) -> None:
    low.cluster.stay_in_block("a scan", low.layout(op.result))
    low.set(op.result, scan.scan_tile(low, op, low.tile(op.x, low.layout(op.result))))


def _dot(low: Lowering, op: ops.Dot) -> None:
    tile = dots.lower_dot(low, op)
    if low.assignment.dots[op].partial:
        low.env[op.result] = tile  # partial sums, which the end of the loop adds up
    else:
        low.set(op.result, tile)


RULES: dict[type[Op], Callable[..., None]] = {
    ops.ProgramId: _program_id,
    ops.IndexTile: _index_tile,
    ops.Full: _full,
    ops.Load: _load,
    ops.Store: _store,
    ops.AtomicAdd: _atomic_add,
    ops.Atomic: lower_atomic,
    ops.Bitcast: _bitcast,
    ops.Gather: _gather,
    ops.While: lower_while,
    ops.Map: _map,
    ops.Cast: _cast,
    ops.Broadcast: _broadcast,
    ops.Reshape: _reshape,
    ops.Permute: _permute,
    ops.Reduce: _reduce,
    ops.Scan: _scan,
    ops.Dot: _dot,
    ops.For: loops.lower_for,
    ops.If: loops.lower_if,
}
