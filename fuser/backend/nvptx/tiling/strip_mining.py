"""Strip mining: a straight line of tile ops, computed strip by strip instead of op by op.

    s = load(...)                          s0 = load(... part 0)
    y = map(mul, x, s)      becomes        y0 = map(mul, x0, s0)
    store(y)                               store(y0)
                                           s1 = load(... part 1)    ...

Op by op, a thread has all its elements of every tile in registers at once. Strip by strip it has a
few of each. The loop over the strips is unrolled, as registers have no index.

A plan (`StripMining`) is made of the Tile IR, before anything is recorded. `strip_mine` makes it of
three things: the ops that may be computed in strips, the stores and reductions that end them
(sinks), and the layouts of the strips. Who chooses these:

    strip_mined_epilogue.py   what follows the matmuls, or the last reduction, of a kernel
    resident_rows.py          rows that are reduced and read again, from shared memory each time

`record_strips` records a kernel by its plan. An op that is the same for all strips is recorded
once, where it stands. A pass over the strips stands at the first of the sinks that can be made
together. A sink that waits for a reduction is for a later pass, which computes anew what it needs.
What a strip loads comes from memory, some strips ahead, or from shared memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.ir.warp_transpose import WarpTranspose
from fuser.backend.nvptx.layouts.access_layout import operand_layout
from fuser.backend.nvptx.layouts.assignment import Assignment, is_tile
from fuser.backend.nvptx.layouts.convert import convert
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Entry, Recording
from fuser.backend.nvptx.lowering.reduce import Partial, fold_threads
from fuser.backend.nvptx.memory.warp_transpose import (
    issue_row_loads,
    own_buffers,
    transpose_row_loads,
    warp_transpose_of,
)
from fuser.backend.nvptx.tiling.online_reductions import (
    OnlineReduction,
    Running,
    add_strip,
    fold_strip,
    merge_threads,
)
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

Sink = ops.Reduce | ops.Store
PREFETCH_REGISTERS = 48
"""Registers for tiles on their way from memory to a warp's buffer."""
CODE_MOTION_BYTES = 256
"""Bytes of resident strips that code may be moved across, where several loads meet."""
BROADCAST_BYTES = 160
"""Bytes of broadcasts that a thread has registers for: those requested before their pass, and a
strip of it."""


@dataclass(eq=False)
class StripMining:
    """How a kernel runs strip by strip.

    order: the ops of the kernel, as they are recorded. inside: those that are recorded once a
    strip; sinks: what ends them, in order. tables: for each strip, the layouts of the values that
    it has a part of; those that are not made inside come as a whole.

    ahead: whether what a strip loads is under way while the strip before it is computed.
    transposed: whether tiles pass through the buffers of warps. seams: of how many strips each no
    code may be moved to the next ones; 0: there is no such limit, None: those of CODE_MOTION_BYTES.

    resident: loads that are copied to shared memory first, with their slots. online: reductions
    that one pass makes. blocks: that a multiprocessor is to run at once; 0 where that is left to
    others.
    """

    order: Sequence[Op]
    inside: set[Op]
    sinks: Sequence[Sink]
    tables: list[dict[Value, Layout]]
    ahead: bool = False
    transposed: bool = False
    seams: int | None = None
    resident: dict[ops.Load, Slot] = field(default_factory=dict)
    online: list[OnlineReduction] = field(default_factory=list)
    blocks: int = 0


# the plan -----------------------------------------------------------------------------------------


def strip_mine(
    low: Recording, line: Collection[Op], sinks: Sequence[Sink], strips: Sequence[Layout]
) -> StripMining | str:
    """The plan of a kernel, or why there is none. line: ops of its body that may be computed in
    strips; sinks: stores and reductions of tiles that have the layout of all strips together."""
    found = [_layouts(low.assignment, line, sinks, strip) for strip in strips]
    tables = [table for table in found if table is not None]
    if len(tables) < len(found) or any(table.keys() != tables[0].keys() for table in tables):
        return "strips do not fit the layouts of what they are made of"
    inside = {op for op in line if any(value in tables[0] for value in op.results)}
    made = {value for op in inside for value in op.results}
    uses = {use for value in made for use in low.assignment.uses.get(value, ())}
    if any(isinstance(use, ops.Load) or use not in inside for use in uses.difference(sinks)):
        return "something needs the row as a whole"
    return StripMining(low.kernel.body.ops, inside, sinks, tables)


def _layouts(
    assignment: Assignment, line: Collection[Op], sinks: Sequence[Sink], strip: Layout
) -> dict[Value, Layout] | None:
    """The layouts of what a strip has a part of; None where something has no form by strips, or
    would need two."""
    found: dict[Value, Layout] = {}
    pending = [(op.x if isinstance(op, ops.Reduce) else op.value, strip) for op in sinks]
    while pending:
        value, layout = pending.pop()
        if not is_tile(value) or value in assignment.flexible:
            continue
        if value in found:
            if found[value] != layout:
                return None
            continue
        own = assignment.layouts.get(value)
        if own is None or own.bits != layout.bits or not set(layout.regs) <= set(own.regs):
            return None
        found[value] = layout
        maker = assignment.makers.get(value)
        if own == layout or maker not in line:
            continue
        match maker:
            case ops.Map() | ops.Cast():
                pending += [(operand, layout) for operand in maker.operands()]
            case ops.Broadcast():
                pending.append((maker.x, operand_layout(layout, maker.axes, maker.x.shape)))
            case ops.Load():
                pass
            case _:
                return None
    return {value: layout for value, layout in found.items() if assignment.layouts[value] != layout}


def backward_slice(
    assignment: Assignment, plan: StripMining, sinks: Sequence[Sink]
) -> tuple[set[Op], set[Value]]:
    """(ops to record once a strip, values that they take from outside) for some sinks."""
    inside: set[Op] = set()
    outside: set[Value] = set()
    pending = [value for sink in sinks for value in sink.operands()]
    while pending:
        value = pending.pop()
        maker = assignment.makers.get(value)
        if maker not in plan.inside:
            outside.add(value)
        elif maker not in inside:
            inside.add(maker)
            pending += maker.operands()
    return inside, outside


# recording ----------------------------------------------------------------------------------------


def record_strips(low: Builder, plan: StripMining) -> None:
    """Record the ops of a kernel: copies where resident loads stand, passes where sinks stand."""
    passes = _Passes(low, plan)
    for op in plan.order:
        if isinstance(op, ops.Yield) or op in passes.done:
            continue
        if op in plan.resident:
            passes.copy(op)
        elif op in plan.sinks:
            passes.next_pass()
        elif op not in plan.inside:
            low.op(op)


class _Passes:
    """The passes over the strips. done: sinks and copies. _under_way: strips of loads that have
    been requested, some as the rows that a warp will transpose."""

    def __init__(self, low: Builder, plan: StripMining) -> None:
        self.low, self.plan = low, plan
        self.done: set[Op] = set()
        self._under_way: dict[tuple[ops.Load, int], Entry | tuple[Tile, WarpTranspose]] = {}

    def next_pass(self) -> None:
        """Go over the strips once for all sinks that have what they need."""
        low, plan = self.low, self.plan
        sinks = [op for op in plan.sinks if op not in self.done and self._ready(op)]
        online = {both.first: both for both in plan.online if both.first in sinks}
        self.done.update(sinks, (both.second for both in online.values()))
        inside, _ = backward_slice(low.assignment, plan, sinks)
        loads = self._loads(inside)
        steps = [op for op in plan.order if (op in inside and op not in loads) or op in sinks]
        partial: dict[ops.Reduce, Partial] = {}
        running: dict[OnlineReduction, Running] = {}
        arriving = False
        if plan.resident:
            low.do(gpu.Reread())  # read again what was read before
            arriving = low.copies.pending
            low.copies.await_later(False)
        ahead, seams = self._ahead(loads), self._seams(loads)
        buffers = own_buffers(low) if plan.transposed else nullcontext()
        with buffers, low.env.strips() as strips:
            for number, table in enumerate(plan.tables):
                if arriving:
                    low.do(gpu.WaitCopies(pending=len(plan.tables) - 1 - number))
                for load, distance in ahead.items():
                    for later in range(number, number + distance + 1):
                        self._fetch(load, later)
                if seams and number and number % seams == 0:
                    low.do(gpu.Seam())
                strips.begin()
                low.env.lay_out(table)
                for value, layout in table.items():
                    entry = low.env.get(value)
                    if isinstance(entry, Tile):
                        low.env[value] = convert(low, entry, layout)
                for load in loads:
                    low.env[load.result] = self._arrived(load, number)
                for op in steps:
                    if not isinstance(op, ops.Reduce):
                        low.op(op)
                    elif op in online:
                        both = online[op]
                        running[both] = add_strip(low, both, running.get(both))
                    else:
                        partial[op] = fold_strip(low, op, partial.get(op))
        self._start_broadcasts()
        for op, folded in partial.items():
            low.set(op.result, fold_threads(low, folded))
        for both, sums in running.items():
            first, second = merge_threads(low, sums)
            low.set(both.first.result, first)
            low.set(both.second.result, second)

    def _ready(self, sink: Sink) -> bool:
        """Whether all that a pass takes from outside is there."""
        inside, outside = backward_slice(self.low.assignment, self.plan, [sink])
        copied = all(op in self.done for op in inside if op in self.plan.resident)
        return copied and all(value in self.low.env for value in outside)

    def _seams(self, loads: Sequence[ops.Load]) -> int:
        """Of how many strips each no code is moved to the next ones."""
        if self.plan.seams is not None or len(loads) < 2:
            return self.plan.seams or 0
        return max(1, CODE_MOTION_BYTES // self._bytes(loads))

    def _bytes(self, loads: Sequence[ops.Load]) -> int:
        """What a thread has of a strip of some loads."""
        first = self.plan.tables[0]
        return sum(len(first[op.result].regs) * op.view.dtype.bytes for op in loads)

    # loads --------------------------------------------------------------------------------------

    def _loads(self, inside: Collection[Op]) -> list[ops.Load]:
        """The loads of a pass: broadcasts first, as some of them are there before it."""
        loads = [op for op in self.plan.order if isinstance(op, ops.Load) and op in inside]
        return sorted(loads, key=lambda op: not self._is_broadcast(op))

    def _is_broadcast(self, op: ops.Load) -> bool:
        """Whether what a load reads beside resident rows depends on no row, such as the scale and
        the bias of a norm."""
        low, plan = self.low, self.plan
        if not plan.resident or op in plan.resident or op.operands():
            return False
        return bool(low.assignment.accesses[op].order) and not low.hazards.is_written(
            op.view.buffer
        )

    def _start_broadcasts(self) -> None:
        """Request broadcasts of the last pass. They come from the L2. The first strips are asked
        for before the exchange of sums that the pass has to wait for anyway: registers are free
        then, and so is the time."""
        rest = [op for op in self.plan.sinks if op not in self.done]
        if any(isinstance(op, ops.Reduce) for op in rest):
            return
        loads = self._loads(backward_slice(self.low.assignment, self.plan, rest)[0])
        loads = [op for op in loads if self._is_broadcast(op)]
        if loads:
            for number in range(max(1, BROADCAST_BYTES // self._bytes(loads)) - 1):
                for op in loads:
                    self._fetch(op, number)

    def _ahead(self, loads: Sequence[ops.Load]) -> dict[ops.Load, int]:
        """How many strips ahead each load is requested: one, and more where what comes is
        transposed, as many as there are registers for."""
        if not self.plan.ahead:
            return {}
        transposing = [op for op in loads if self._transpose(op, 0) is not None]
        most = max(1, PREFETCH_REGISTERS // (16 * max(1, len(transposing))))
        return {op: most if op in transposing else 1 for op in loads}

    def _transpose(self, op: ops.Load, number: int) -> WarpTranspose | None:
        layout = self.plan.tables[number][op.result]
        return warp_transpose_of(self.low, self.low.assignment.accesses[op], layout)

    def _fetch(self, op: ops.Load, number: int) -> None:
        """Request a strip of a load, where it is not under way."""
        low = self.low
        if (op, number) in self._under_way or number >= len(self.plan.tables):
            return
        found = self._transpose(op, number)
        if found is not None:
            rows = issue_row_loads(low, low.assignment.accesses[op], op.pad, found)
            self._under_way[op, number] = rows, found
            return
        with low.env.laid_out({op.result: self.plan.tables[number][op.result]}):
            low.op(op)
            entry = low.env.pop(op.result)
        if self._is_broadcast(op) and isinstance(entry, Tile):
            low.do(gpu.Keep(x=entry))
        self._under_way[op, number] = entry

    def _arrived(self, op: ops.Load, number: int) -> Entry:
        """A strip of a load, requested now if it is not under way."""
        if op in self.plan.resident:
            return self._read(op, self.plan.tables[number][op.result])
        self._fetch(op, number)
        arrived = self._under_way.pop((op, number))
        if isinstance(arrived, tuple):
            return transpose_row_loads(self.low, self.plan.tables[number][op.result], *arrived)
        return arrived

    # resident loads -----------------------------------------------------------------------------

    def copy(self, load: Op) -> None:
        """Issue the copies of all resident loads, or of this one where others have no operands yet:
        a group of copies for each strip, with zeros where they are out of bounds."""
        low, plan = self.low, self.plan
        started = all(value in low.env for op in plan.resident for value in op.operands())
        loads = [op for op in plan.resident if op not in self.done and (started or op is load)]
        whole = low.assignment.layouts[loads[0].result]
        places = [low.place(low.assignment.accesses[op], whole) for op in loads]
        for table in plan.tables:
            for op, at in zip(loads, places, strict=True):
                low.do(gpu.CopyOwn(
                    slot=plan.resident[op], at=at, strip=table[op.result], whole=whole,
                    threads=low.threads,
                ))  # fmt: skip
            low.do(gpu.CommitCopies())
        self.done.update(loads)
        low.copies.await_later()

    def _read(self, op: ops.Load, strip: Layout) -> Tile:
        """A strip of a resident load."""
        low = self.low
        made = low.new(op.view.dtype, op.shape, strip, op.result.name)
        at = low.place(low.assignment.accesses[op], strip)
        return low.add(gpu.ReadOwn(
            slot=self.plan.resident[op], at=at, whole=low.assignment.layouts[op.result],
            threads=low.threads, pad=op.pad, results=(made,),
        ))  # fmt: skip
