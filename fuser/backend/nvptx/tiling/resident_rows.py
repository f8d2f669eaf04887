"""Which kernels keep long rows in shared memory and pass them through registers strip by strip.

A row that is reduced, and then read again by what follows its sums, fills the registers of many
threads; few blocks fit a multiprocessor then, and while they exchange sums too few bytes are under
way. Here the values that are loaded as long as a row are copied to shared memory, every vector by
the thread that uses it: no barrier is needed, shared memory is more registers that fill by
themselves. What is computed from them is computed anew for each reduction and store, for a few
vectors a thread at a time, so that many small blocks share a multiprocessor.
"""

from __future__ import annotations

import dataclasses

from fuser.backend.nvptx.layouts.assignment import Assignment, lookups_of
from fuser.backend.nvptx.layouts.layout import Layout, strips_along
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.tiling.online_reductions import plan_online_reductions
from fuser.backend.nvptx.tiling.strip_mining import Sink, StripMining, backward_slice, strip_mine
from fuser.tilegen import ops

MECHANISM = "shared-memory-resident rows"
MIN_REGISTERS = 64
"""Registers of a thread."""
BLOCK_OVERHEAD = 1280
"""Bytes of shared memory that a block takes beside its rows."""
CACHE_BYTES = 256 << 10
"""Shared memory and first-level cache of a multiprocessor."""
MAX_PASSES = 6
"""How often the ops of a row may be computed, on average: rows that are normalised over and over
would be code of the square of their length."""
STRIP = 16
"""Elements that a thread has in registers at a time, of all rows that are read together."""


def plan_resident_rows(low: Builder) -> StripMining | None:
    """The plan of a kernel whose schedule asks for it and that is a straight line of maps and
    reductions of one shape; else None."""
    if not low.kernel.schedule.resident_rows:
        return None
    found = _planned(low)
    if isinstance(found, str):
        low.decisions.refuse(MECHANISM, found)
        return None
    resident = len(found.resident)
    low.decisions.apply(MECHANISM, f"loads that are resident and not repeated: {resident}")
    return found


def _planned(low: Recording) -> StripMining | str:
    """The plan, or why there is none."""
    body, plan = low.kernel.body.ops, low.assignment
    if plan.dots:
        return "it multiplies matrices"
    if not low.target.async_copies:
        return f"{low.target.arch} has no copies under way"
    if any(op.blocks() or lookups_of(op) or isinstance(op, ops.Scan) for op in body):
        return "it is no straight line of maps and reductions"
    reductions = [op for op in body if isinstance(op, ops.Reduce)]
    if not reductions:
        return "it reduces nothing"
    longest = max(reductions, key=lambda op: op.x.type.size)
    axis, whole = longest.axis, plan.layouts.get(longest.x)
    if whole is None:
        return "what it reduces is in no layout"
    sinks: list[Sink] = []
    for op in body:
        match op:
            case ops.Reduce() if plan.layouts.get(op.x) == whole and op.axis == axis:
                sinks.append(op)
            case ops.Store() if plan.layouts.get(op.value) == whole:
                sinks.append(op)
    loads = [op for op in body if isinstance(op, ops.Load)]
    beside = sum(plan.layouts[op.result] == whole for op in loads if op.operands())
    strips = strips_along(whole, axis, STRIP // max(1, beside))
    if len(strips) < 2:
        return "a row is one strip"
    found = strip_mine(low, body, sinks, strips)
    if isinstance(found, str):
        return found
    folds = [op for op in sinks if isinstance(op, ops.Reduce)]
    found.online.extend(plan_online_reductions(low, folds, whole))
    passes = [backward_slice(low.assignment, found, [sink])[0] for sink in sinks]
    if sum(map(len, passes)) > MAX_PASSES * len(set().union(*passes)):
        return "too much would be computed again for each reduction"
    again = [
        op
        for op in loads
        if sum(op in made for made in passes) > 1
        and _can_be_resident(low.assignment, op, whole, strips[0])
    ]
    sizes = [len(whole.regs) * op.view.dtype.bytes * plan.threads for op in again]
    if not again or sum(sizes) + BLOCK_OVERHEAD > low.target.shared_bytes:
        return "no load is read twice" if not again else "the rows do not fit shared memory"
    for op, size in zip(again, sizes, strict=True):
        found.resident[op] = low.shared.allocate(size)
    return dataclasses.replace(found, blocks=_blocks(low, found))


def _can_be_resident(assignment: Assignment, op: ops.Load, whole: Layout, strip: Layout) -> bool:
    """Whether a load is as long as the rows and can be copied in vectors of 4 bytes or more."""
    access = assignment.accesses[op]
    if assignment.layouts[op.result] != whole or not access.order:
        return False
    fits = strip.vector(access.axis) % access.width == 0
    return fits and access.width * op.view.dtype.bytes >= 4


def _blocks(low: Recording, found: StripMining) -> int:
    """Blocks that a multiprocessor has shared memory and registers for; where one block has a whole
    row, so many that what all rows are multiplied by, and the like, stays in its cache."""
    plan = low.assignment
    rows = max(1, sum(slot.bytes for slot in found.resident.values()))
    blocks = min(
        low.target.shared_bytes // (rows + BLOCK_OVERHEAD),
        low.target.registers // (MIN_REGISTERS * plan.threads),
    )
    broadcasts = sum(
        len(plan.layouts[op.result].regs) * op.view.dtype.bytes * plan.threads
        for op in found.inside
        if isinstance(op, ops.Load) and op not in found.resident
    )
    if plan.cluster == 1 and broadcasts + rows < CACHE_BYTES:
        blocks = min(blocks, (CACHE_BYTES - broadcasts) // rows)
    return max(1, blocks)
