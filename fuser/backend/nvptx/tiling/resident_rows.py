"""Long rows that stay in shared memory and pass through registers strip by strip.

A row that is reduced, and then read again by what follows its sums, fills the registers of many
threads; few blocks fit a multiprocessor then, and while they exchange sums too few bytes are under
way. Here the values that are loaded as long as a row are copied to shared memory, every vector by
the thread that uses it: no barrier is needed, shared memory is more registers that fill by
themselves. What is computed from them is computed anew for each reduction and store, for a few
vectors a thread at a time, so that many small blocks share a multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layouts.access_layout import operand_layout
from fuser.backend.nvptx.layouts.assignment import is_tile, lookups_of
from fuser.backend.nvptx.layouts.layout import Layout, strips_along
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.reduce import Partial, fold_registers, fold_threads
from fuser.backend.nvptx.prefetch.prefetched_broadcasts import PrefetchedBroadcasts
from fuser.backend.nvptx.tiling.online_reductions import (
    OnlineReduction,
    Running,
    add_strip,
    merge_threads,
    plan_online_reductions,
)
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

Sink = ops.Reduce | ops.Store
MIN_REGISTERS = 64
"""Registers of a thread."""
BLOCK_OVERHEAD = 1280
"""Bytes of shared memory that a block takes beside its rows."""
CACHE_BYTES = 256 << 10
"""Shared memory and first-level cache of a multiprocessor."""
CODE_MOTION_BYTES = 256
"""Bytes of strips that code may be moved across, where several rows or what all rows share meet."""
MAX_PASSES = 6
"""How often the ops of a row may be computed, on average: rows that are normalised over and over
would be code of the square of their length."""
STRIP = 16
"""Elements that a thread has in registers at a time, of all rows that are read together."""


@dataclass(eq=False)
class ResidentRows:
    """How a kernel runs strip by strip.

    whole: the layout of the rows; strips: its parts; loads: the resident ones, with their slots.
    sinks: reductions and stores of rows. tables: for each strip, the layouts of what is computed
    once a strip. online_reductions: those that one pass makes. blocks: that a multiprocessor is to
    run at once. broadcasts: what the next pass loads, under way.
    """

    whole: Layout
    strips: list[Layout]
    sinks: list[Sink]
    tables: list[dict[Value, Layout]]
    loads: dict[ops.Load, Slot]
    online_reductions: list[OnlineReduction] = field(default_factory=list)
    blocks: int = 1
    broadcasts: PrefetchedBroadcasts | None = None

    def __contains__(self, value: Value) -> bool:
        return value in self.tables[0]


def plan_resident_rows(low: Builder) -> ResidentRows | None:
    """The plan of a kernel whose schedule asks for it and that is a straight line of maps and
    reductions of one shape; else None."""
    if not low.kernel.schedule.resident_rows:
        return None
    found = _planned(low)
    if isinstance(found, str):
        low.decisions.refuse(MECHANISM, found)
        return None
    low.decisions.apply(MECHANISM, f"loads that are resident and not repeated: {len(found.loads)}")
    return found


MECHANISM = "shared-memory-resident rows"


def _planned(low: Builder) -> ResidentRows | str:
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
    moving = [op for op in body if isinstance(op, ops.Load) and op.operands()]
    beside = sum(plan.layouts[op.result] == whole for op in moving)
    strips = strips_along(whole, axis, STRIP // max(1, beside))
    if len(strips) < 2:
        return "a row is one strip"
    tables = [_layouts(low, sinks, strip) for strip in strips]
    found = [table for table in tables if table is not None]
    if len(found) < len(tables):
        return "strips do not fit the layouts of what they are made of"
    resident = ResidentRows(whole, strips, sinks, found, {})
    uses = {use for value in resident.tables[0] for use in plan.uses.get(value, ())}
    if any(use not in sinks and not any(made in resident for made in use.results) for use in uses):
        return "something needs the row as a whole"
    folds = [op for op in sinks if isinstance(op, ops.Reduce)]
    resident.online_reductions = plan_online_reductions(low, folds, whole)
    passes = [_slice(low, resident, [sink])[0] for sink in sinks]
    if sum(map(len, passes)) > MAX_PASSES * len(set().union(*passes)):
        return "too much would be computed again for each reduction"
    again = [
        op
        for op in body
        if isinstance(op, ops.Load) and sum(op in made for made in passes) > 1
        if _can_be_resident(low, op, resident)
    ]
    sizes = [len(whole.regs) * op.view.dtype.bytes * plan.threads for op in again]
    if not again or sum(sizes) + BLOCK_OVERHEAD > low.target.shared_bytes:
        return "no load is read twice" if not again else "the rows do not fit shared memory"
    for op, size in zip(again, sizes, strict=True):
        resident.loads[op] = low.shared.allocate(size)
    resident.blocks = _resident(low, resident)
    return resident


def _resident(low: Builder, resident: ResidentRows) -> int:
    """Blocks that a multiprocessor has shared memory and registers for; where one block has a whole
    row, so many that what all rows are multiplied by, and the like, stays in its cache."""
    plan = low.assignment
    rows = max(1, sum(slot.bytes for slot in resident.loads.values()))
    found = min(
        low.target.shared_bytes // (rows + BLOCK_OVERHEAD),
        low.target.registers // (MIN_REGISTERS * plan.threads),
    )
    broadcasts = sum(
        len(plan.layouts[op.result].regs) * op.view.dtype.bytes * plan.threads
        for op in low.kernel.body.ops
        if isinstance(op, ops.Load) and op.result in resident and op not in resident.loads
    )
    if plan.cluster == 1 and broadcasts + rows < CACHE_BYTES:
        found = min(found, (CACHE_BYTES - broadcasts) // rows)
    return max(1, found)


def _layouts(low: Builder, sinks: list[Sink], strip: Layout) -> dict[Value, Layout] | None:
    """The layouts of what is computed once a strip; None where something has no form by strips."""
    plan = low.assignment
    found: dict[Value, Layout] = {}
    pending: list[tuple[Value, Layout]] = [
        (op.x if isinstance(op, ops.Reduce) else op.value, strip) for op in sinks
    ]
    while pending:
        value, layout = pending.pop()
        if not is_tile(value) or value in plan.flexible:
            continue
        own = plan.layouts.get(value)
        if value in found:
            if found[value] != layout:
                return None
            continue
        if own is None or own.bits != layout.bits or not set(layout.regs) <= set(own.regs):
            return None
        if own == layout:  # as long as a strip: computed once, where it stands
            continue
        found[value] = layout
        match plan.makers[value]:
            case ops.Map() | ops.Cast() as op:
                pending += [(operand, layout) for operand in op.operands()]
            case ops.Broadcast() as op:
                pending.append((op.x, operand_layout(layout, op.axes, op.x.shape)))
            case ops.Load():
                pass
            case _:
                return None
    return found


def _can_be_resident(low: Builder, op: ops.Load, resident: ResidentRows) -> bool:
    """Whether a load is as long as the rows and can be copied in vectors of 4 bytes or more."""
    access = low.assignment.accesses[op]
    if low.assignment.layouts[op.result] != resident.whole or not access.order:
        return False
    fits = resident.strips[0].vector(access.axis) % access.width == 0
    return fits and access.width * op.view.dtype.bytes >= 4


# emission -----------------------------------------------------------------------------------------


def emit_resident_rows(low: Builder, resident: ResidentRows) -> None:
    """Emit the ops of a kernel in order: copies where loads stand, a pass over the strips where the
    first of some reductions or stores stands that can be made together."""
    done: set[Op] = set()
    for op in low.kernel.body.ops:
        if isinstance(op, ops.Yield) or op in done:
            continue
        if isinstance(op, ops.Load) and op in resident.loads:
            started = all(value in low.env for load in resident.loads for value in load.operands())
            loads = [load for load in resident.loads if load not in done] if started else [op]
            _copy(low, resident, loads)
            done.update(loads)
        elif op in resident.sinks:
            together = [
                sink for sink in resident.sinks if sink not in done and _ready(low, resident, sink)
            ]
            done.update(together)
            done.update(
                reduction.second
                for reduction in resident.online_reductions
                if reduction.first in together
            )
            _pass(low, resident, together, [sink for sink in resident.sinks if sink not in done])
        elif not any(result in resident for result in op.results):
            low.op(op)


def _slice(low: Builder, resident: ResidentRows, sinks: list[Sink]) -> tuple[set[Op], set[Value]]:
    """(ops to emit once a strip, values that they take from outside) for some sinks."""
    inside: set[Op] = set()
    outside: set[Value] = set()
    pending = [op.x if isinstance(op, ops.Reduce) else op.value for op in sinks]
    for sink in sinks:
        if isinstance(sink, ops.Store):
            pending += [v for v in sink.operands() if v is not sink.value]
    while pending:
        value = pending.pop()
        if value not in resident:
            outside.add(value)
            continue
        maker = low.assignment.makers[value]
        if maker not in inside:
            inside.add(maker)
            pending += maker.operands()
    return inside, outside


def _ready(low: Builder, resident: ResidentRows, sink: Sink) -> bool:
    """Whether all that a pass takes from outside is there."""
    inside, outside = _slice(low, resident, [sink])
    loads = [op for op in inside if isinstance(op, ops.Load) and op in resident.loads]
    return all(value in low.env for value in outside) and all(op.result in low.env for op in loads)


def _broadcasts(
    low: Builder, resident: ResidentRows, sinks: list[Sink]
) -> PrefetchedBroadcasts | None:
    """What a pass loads that depends on no row."""
    inside, _ = _slice(low, resident, sinks)
    loads = [
        op
        for op in low.kernel.body.ops
        if isinstance(op, ops.Load) and op in inside and op not in resident.loads
        if not op.operands() and low.assignment.accesses[op].order
        if op.view.buffer not in low.written
    ]
    return PrefetchedBroadcasts(low, loads, resident.tables) if loads else None


def _pass(low: Builder, resident: ResidentRows, sinks: list[Sink], rest: list[Sink]) -> None:
    """Go over the strips once for all the sinks. rest: those of passes that follow."""
    inside, _ = _slice(low, resident, sinks)
    broadcasts, resident.broadcasts = resident.broadcasts or _broadcasts(low, resident, sinks), None
    steps = [
        op
        for op in low.kernel.body.ops
        if op in inside and (broadcasts is None or op not in broadcasts.loads)
    ]
    with low.bindings.strips() as strips:
        partial: dict[ops.Reduce, Partial] = {}
        online = {
            reduction.first: reduction
            for reduction in resident.online_reductions
            if reduction.first in sinks
        }
        running: dict[OnlineReduction, Running] = {}
        low.do(gpu.Reread())  # read again what was read before
        arriving, low.copies_pending = low.copies_pending, False
        meeting = [op for op in steps if isinstance(op, ops.Load)]
        size = sum(len(resident.tables[0][op.result].regs) * op.view.dtype.bytes for op in meeting)
        size += broadcasts.bytes if broadcasts else 0
        ahead = max(1, CODE_MOTION_BYTES // size) if len(meeting) > 1 or broadcasts else 0
        for number, table in enumerate(resident.tables):
            if arriving:
                later = len(resident.tables) - 1 - number
                low.do(gpu.WaitCopies(pending=later))
            if ahead and number and number % ahead == 0:
                low.do(gpu.Seam())
            strips.begin()
            if broadcasts:
                low.env.update(broadcasts.of(number))
            low.bindings.lay_out(table)

            def fold(op: ops.Reduce, table: dict[Value, Layout] = table) -> Partial:
                return fold_registers(low, op.fn, low.tile(op.x, table[op.x]), op.axis)

            for op in steps:
                if isinstance(op, ops.Load) and op in resident.loads:
                    low.env[op.result] = _read(low, resident, op, table[op.result])
                else:
                    low.op(op)
            for sink in sinks:
                if sink in online:
                    reduction = online[sink]
                    running[reduction] = add_strip(
                        low, reduction, running.get(reduction), fold, low.op
                    )
                elif isinstance(sink, ops.Reduce):
                    tile = low.tile(sink.x, table[sink.x])
                    partial[sink] = fold_registers(low, sink.fn, tile, sink.axis, partial.get(sink))
                else:
                    low.op(sink)
    if rest and not any(isinstance(sink, ops.Reduce) for sink in rest):
        resident.broadcasts = _broadcasts(low, resident, rest)
    if resident.broadcasts:
        resident.broadcasts.start()
    for sink, partial_fold in partial.items():
        low.set(sink.result, fold_threads(low, partial_fold))
    for reduction, both in running.items():
        first, second = merge_threads(low, both)
        low.set(reduction.first.result, first)
        low.set(reduction.second.result, second)


def _copy(low: Builder, resident: ResidentRows, loads: list[ops.Load]) -> None:
    """Issue the copies of some loads, zeros where they are out of bounds: a group of copies for
    each strip."""
    places = [low.place(low.assignment.accesses[op], resident.whole) for op in loads]
    for strip in resident.strips:
        for op, at in zip(loads, places, strict=True):
            slot = resident.loads[op]
            low.do(gpu.CopyOwn(
                slot=slot, at=at, strip=strip, whole=resident.whole, threads=low.threads
            ))  # fmt: skip
        low.do(gpu.CommitCopies())
    for op in loads:
        low.env[op.result] = 0  # that it is there: its place is in resident.loads
    low.copies_pending = True


def _read(low: Builder, resident: ResidentRows, op: ops.Load, strip: Layout) -> Tile:
    """A strip of a resident load."""
    made = low.new(op.view.dtype, op.shape, strip, op.result.name)
    at = low.place(low.assignment.accesses[op], strip)
    return low.add(gpu.ReadOwn(
        slot=resident.loads[op], at=at, whole=resident.whole, threads=low.threads, pad=op.pad,
        results=(made,),
    ))  # fmt: skip
