"""Stores: those of one shape that follow each other share a loop nest."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu.analysis import costs, kernel_facts
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.dots import amx
from fuser.backend.cpu.loops import register_transpose
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.bounds import clippable, clips, proved_over, store_bounds
from fuser.backend.cpu.memory.memory_order import reads_changing, reads_memory_of
from fuser.backend.cpu.memory.storage import Point
from fuser.tilegen import ops
from fuser.tilegen.ir import Block


def lower_store(low: Lowering, first: ops.Store, block: Block) -> Sequence[ops.Store]:
    """Emit a store with the following stores of the same shape that are ready, in one nest. These
    are given."""
    if stores := amx.store_by_blocks(low, first, block):
        return stores
    group = [first]
    wanted = store_bounds(first)
    unrolled = kernel_facts.reads_registers(low.known, first.value)
    clipped = clippable(wanted, first.value.shape)
    _require_store(low, first)
    position = block.ops.index(first)
    for op in block.ops[position + 1 :]:
        if op.has_effect and not isinstance(op, ops.Store):
            break
        if low.known.changing and reads_changing(low.known, op):
            break
        if not isinstance(op, ops.Store):
            continue
        bounds = store_bounds(op)
        same = bounds == wanted or (not unrolled and clippable(bounds, op.value.shape) == clipped)
        if not same or op.value.shape != first.value.shape or not low.ready(op.value):
            break
        if op.mask is not None and not low.ready(op.mask):
            break
        if not all(kernel_facts.apart(op, other) for other in group):
            break
        if any(reads_memory_of(low.known, other, op) for other in group):
            break
        low.require_indices(op)
        group.append(op)
    shape = first.value.shape
    values = [op.value for op in group]
    width = low.width_for(values)
    values += dict.fromkeys(op.mask for op in group if op.mask is not None)
    axis, _ = costs.choose_axis(low.known, shape, values, width, group)
    conditions = [(e, extent) for e, extent in wanted if not proved_over(low, e, extent, shape)]
    if len(group) == 1 and _transposed_store(low, first, width):
        return group
    limits, established = clips(low, conditions, shape)

    def body(coords: Point, lanes: int) -> None:
        for op in group:
            low.store_at(op, coords, lanes)

    record = Nest("store", tuple(op.value for op in group), shape, axis, width)
    low.nest(
        shape, axis, width, body, record, values=values,
        hoist=lambda coords: [(value, coords) for value in values],
        clips=limits, established=established, conditions=conditions,
    )  # fmt: skip
    return group


def _transposed_store(low: Lowering, op: ops.Store, width: int) -> bool:
    """Emit a store that runs along another axis than its value, if it is one."""
    shape = op.value.shape
    if kernel_facts.reads_registers(low.known, op.value) or op.mask is not None:
        return False
    for across in reversed(range(len(shape))):
        address = kernel_facts.address_of(low.known, op, costs.probe(shape, across, width))
        written = costs.access_cost(address, width)
        along = register_transpose.source_axis(low, op.value, shape, across, width, written)
        if written == 1 and along >= 0:
            low.begin(Nest("store", (op.value,), shape, across, width, "squares"))
            register_transpose.transposed_nest(
                low, shape, along, across, width,
                lambda coords: low.at(op.value, coords),
                lambda coords, reg, lanes: low.put(op, coords, reg, lanes),
            )  # fmt: skip
            return True
    return False


def _require_store(low: Lowering, op: ops.Store) -> None:
    low.require(op.value)
    if op.mask is not None:
        low.require(op.mask)
    low.require_indices(op)
