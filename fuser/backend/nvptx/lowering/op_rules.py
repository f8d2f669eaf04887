"""The code of each op, on tiles that already have layouts: `RULES` has one rule an op.

A rule reads its operands with `Builder.tile` in the layout that it wants, and binds its result
with `Builder.set`.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import repeats
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layouts.access_layout import access_layout, inverse, operand_layout
from fuser.backend.nvptx.layouts.assignment import is_tile
from fuser.backend.nvptx.layouts.convert import reshape
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering import dot as dots
from fuser.backend.nvptx.lowering import scan
from fuser.backend.nvptx.lowering.atomics import lower_atomic, shown_to_all
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.fast_math import fast_form, fused_exponential, multiply, unscaled
from fuser.backend.nvptx.lowering.gather import lower_gather
from fuser.backend.nvptx.lowering.masks import cast, mapped, spread
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.reduce import reduce_tile
from fuser.backend.nvptx.memory.operand_staging import stage_once
from fuser.backend.nvptx.memory.warp_transpose import (
    load_transposed,
    store_transposed,
    warp_transpose_of,
)
from fuser.backend.nvptx.schedule import consumer_warps, loops
from fuser.backend.nvptx.schedule.while_loops import lower_while
from fuser.backend.nvptx.tiling.sliced_tiles import rows_in_warps
from fuser.tilegen import ops
from fuser.tilegen.ir import Op


def _program_id(low: Builder, op: ops.ProgramId) -> None:
    low.env[op.result] = low.order.coordinate(low.scalars, op.axis)


def _index_tile(low: Recording, op: ops.IndexTile) -> None:
    if is_tile(op.result):
        low.env[op.result] = op
    elif low.caller and not low.ends_short(op.expression):
        low.env[op.result] = low.materialise(op, low.assignment.scalar_layout)
    else:
        low.env[op.result] = low.evaluate(op.expression)


def _full(low: Recording, op: ops.Full) -> None:
    low.env[op.result] = op if is_tile(op.result) else int(op.value)


def _load(low: Builder, op: ops.Load) -> None:
    access = low.assignment.accesses[op]
    if op in low.producer.resident:
        low.env[op.result] = consumer_warps.receive(low, low.producer.resident[op])
        return
    if op in low.assignment.staged:
        if op not in low.copies.piped:
            stage_once(low, op)
        return
    layout = low.layout(op.result)
    transpose = None if op in low.copies.direct else warp_transpose_of(low, access, layout)
    if transpose is not None:
        low.env[op.result] = load_transposed(low, access, layout, op.pad, transpose)
        return
    moved = layout if op in low.copies.direct else moved_in(low, access, layout)
    low.set(op.result, load_tile(low, op, moved))


def load_tile(low: Builder, op: ops.Load, layout: Layout) -> Tile:
    """What a load reads, in a layout."""
    buffer = op.view.buffer
    changes = low.hazards.may_change(buffer)
    once = changes and repeats(layout)
    made = low.new(op.view.dtype, op.shape, layout, op.result.name)
    low.do(gpu.Load(
        at=low.place(low.assignment.accesses[op], layout), pad=op.pad,
        constant=low.is_constant(buffer), volatile=changes, once=once,
        words=bool(low.assignment.dots), results=(made,),
    ))  # fmt: skip
    if once:
        # who finds a flag set finds what was stored before it
        low.do(gpu.Fence())
        return shown_to_all(low, made)
    return made


def _store(low: Builder, op: ops.Store) -> None:
    access = low.assignment.accesses[op]
    layout = low.known_layout(op.value) or low.plain_layout(access.shape, [access])
    tile = low.tile(op.value, layout)
    transpose = warp_transpose_of(low, access, layout)
    if transpose is not None:
        store_transposed(low, access, tile, transpose)
        return
    moved = low.tile(op.value, moved_in(low, access, tile.layout))
    at = low.place(access, moved.layout)
    low.do(gpu.Store(at=at, value=moved, once=low.caller))


def moved_in(low: Builder, access: Access, layout: Layout) -> Layout:
    """The layout in which a value of the given layout is loaded or stored."""
    if low.cluster.blocks > 1:  # a conversion would have to go from block to block
        return layout
    return access_layout(access, layout, low.warps)


def _atomic_add(low: Builder, op: ops.AtomicAdd) -> None:
    access = low.assignment.accesses[op]
    layout = low.known_layout(op.value) or low.plain_layout(access.shape, [access])
    tile = low.tile(op.value, layout)
    cluster = low.cluster
    alike = cluster.blocks > 1 and len(layout.bits) <= cluster.first_bit
    low.do(gpu.AtomicAdd(at=low.place(access, layout), value=tile, first_block=alike))


def _map(low: Builder, op: ops.Map) -> None:
    layout = low.layout(op.result)
    tiles = [low.tile(arg, layout) for arg in op.args]
    short = fused_exponential(low, op, layout) or fast_form(low, op, layout)
    low.set(op.result, short if short is not None else mapped(low, op, tiles, layout))


def _assembly(low: Builder, op: ops.Assembly) -> None:
    layout = low.layout(op.result)
    made = low.new(op.result.dtype, op.result.shape, layout, op.result.name)
    low.set(op.result, low.add(gpu.Assembly(
        text=op.text, constraints=op.constraints, pack=op.pack, kinds=op.kinds, which=op.which,
        args=tuple(low.tile(arg, layout) for arg in op.args), results=(made,),
    )))  # fmt: skip


def _cast(low: Builder, op: ops.Cast) -> None:
    low.set(op.result, cast(low, low.tile(op.x, low.layout(op.result)), op.dtype))


def _broadcast(low: Builder, op: ops.Broadcast) -> None:
    layout = low.layout(op.result)
    tile = low.tile(op.x, operand_layout(layout, op.axes, op.x.shape))
    low.set(op.result, spread(low, tile, op.axes, op.shape, layout))


def _bitcast(low: Builder, op: ops.Bitcast) -> None:
    layout = low.layout(op.result)
    low.set(op.result, low.bits_as(low.tile(op.x, layout), op.dtype))


def _gather(low: Builder, op: ops.Gather) -> None:
    low.set(op.result, lower_gather(low, op))


def _reshape(low: Builder, op: ops.Reshape) -> None:
    layout = low.layout(op.result)
    tile = low.as_it_is(op.x)
    low.set(op.result, reshape(low, tile, op.shape, layout))


def _permute(low: Builder, op: ops.Permute) -> None:
    entry = low.env[op.x]
    if isinstance(entry, SharedTile):
        low.env[op.result] = entry.permuted(op.axes)
        return
    tile = low.as_it_is(op.x)
    made = low.new(tile.dtype, op.result.shape, tile.layout.permuted(op.axes))
    low.set(op.result, low.add(gpu.Relabel(x=tile, axes=inverse(op.axes), results=(made,))))


def _reduce(low: Builder, op: ops.Reduce) -> None:
    tile = low.as_it_is(op.x)
    if low.attempt.frugal:
        tile = rows_in_warps(low, tile, op.axis)
    low.cluster.enter_reduction(op, tile.layout)
    if op.fn in ("max", "fmax") and isinstance(low.env[op.x], Tile):
        found = unscaled(low, op.x, tile.layout)
        if found is not None:  # rounding is monotone: max(x * c) is max(x) * c to the last bit
            bare, scale = found
            most = reduce_tile(low, op.fn, bare, op.axis)
            low.set(op.result, multiply(low, most, scale, contract=False))
            return
    low.set(op.result, reduce_tile(low, op.fn, tile, op.axis))


def _scan(low: Builder, op: ops.Scan) -> None:
    low.cluster.stay_in_block("a scan", low.layout(op.result))
    low.set(op.result, scan.scan_tile(low, op, low.tile(op.x, low.layout(op.result))))


def _dot(low: Builder, op: ops.Dot) -> None:
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
    ops.Assembly: _assembly,
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
