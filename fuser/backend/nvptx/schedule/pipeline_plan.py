"""Which loads of a loop are copied to shared memory ahead of their use, and how far ahead: what
`schedule/expand_loops.py` goes by."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import SharedTile
from fuser.backend.nvptx.layouts.assignment import Assignment, is_tile, lone_dot
from fuser.backend.nvptx.layouts.dot_plan import runs_on
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.masks import can_remake
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.memory.operand_staging import shared_tile_for
from fuser.graph.units import byte_size
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

MECHANISM = "multistage pipeline"


@dataclass
class Pipeline:
    """The staged loads of one loop. scalars: what says where they load; tiles: the first stages."""

    loads: list[ops.Load]
    scalars: list[Op]
    tiles: list[SharedTile]
    stages: int
    ahead: int
    in_flight: int = 0


def plan_pipeline(low: Builder, op: ops.For) -> Pipeline | None:
    """Which loads of the body can be issued ahead, and how many stages fit."""
    found = _planned(low, op)
    if isinstance(found, str):
        low.decisions.refuse(MECHANISM, found)
        return None
    how = "cp.async" if low.target.async_copies else "registers"
    loads, ahead = len(found.loads), found.ahead
    what = f"{loads} load{'s' * (loads != 1)} of {found.stages} stages"
    low.decisions.apply(
        MECHANISM, f"{what} go {ahead} iteration{'s' * (ahead != 1)} ahead by {how}"
    )
    return found


def schedule_copies(loop: gpu.For, plan: Pipeline) -> None:
    """Let the copies that a body begins with, and waits for, go ahead, after its own wait."""
    for op in loop.body.ops:
        if isinstance(op, gpu.CopyAsync | gpu.CommitCopies):
            op.schedule(-plan.ahead, len(loop.body.ops))


def _planned(low: Builder, op: ops.For) -> Pipeline | str:
    """The pipeline of a loop, or why there is none."""
    # through registers one tile is on its way while another is multiplied
    wanted = low.attempt.stages if low.target.async_copies else min(low.attempt.stages, 2)
    makers = low.assignment.makers
    if wanted < 2:
        return f"{wanted} stages let nothing run ahead"
    looked_up = _tiles_of_addresses(low.assignment, op)
    ahead: set[Value] = {op.body.params[0]}
    usable: list[Op] = []
    local = {value for item in op.body.ops for value in item.results} | set(op.body.params[1:])
    for item in op.body.ops:
        cheap = _is_scalar(low, item) or any(value in looked_up for value in item.results)
        if cheap and not set(item.operands()) & (local - ahead):
            ahead.add(item.result)
            usable.append(item)
    loads = [
        item
        for item in op.body.ops
        if isinstance(item, ops.Load)
        and item in low.assignment.staged
        and not set(item.operands()) & (local - ahead) - {item.mask}
        and (item.mask is None or can_remake(item.mask, makers, lambda v: v not in local - ahead))
    ]
    if not loads:
        return "no load of its loop goes straight to shared memory from a place known ahead"
    tiles = [shared_tile_for(low, item, wanted) for item in loads]
    stage_bytes = sum(tile.bytes for tile in tiles)
    fixed = sum(
        slot.bytes for slot in low.shared.live if all(slot is not tile.slot for tile in tiles)
    )
    room = low.target.shared_bytes - fixed - 1024
    lone = lone_dot(op, low.assignment)
    flies = lone is not None and runs_on(lone, low.assignment.dots[lone])
    sums = len(low.assignment.dots[lone].accumulator.regs) if lone else 0
    if (
        flies
        and low.caller
        and _as_many_blocks(low, fixed + wanted * stage_bytes, stage_bytes, sums)
    ):
        wanted += 1
    stages = min(wanted, room // stage_bytes)
    if stages < 2:
        for tile in tiles:
            low.shared.cancel(tile.slot)
        return f"two stages of {byte_size(stage_bytes)} do not fit shared memory"
    for tile in tiles:
        tile.slot.resize(tile.bytes * stages)
    if flies and stages > 2:
        # the matmuls of an iteration may run on into the next one, so one more stage is in use
        return Pipeline(loads, usable, tiles, stages, stages - 2, in_flight=1)
    return Pipeline(loads, usable, tiles, stages, stages - 1)


REGISTERS_BESIDE_SUMS = 40
"""Minimum registers per thread that a matmul takes beside its sums."""


def _as_many_blocks(low: Builder, bytes: int, more: int, sums: int) -> bool:
    """Whether a multiprocessor has shared memory for as many blocks with more bytes of each.
    sums: registers per thread, which bound the blocks too."""
    registers = low.threads * (sums + REGISTERS_BESIDE_SUMS)
    most = max(1, low.target.registers // registers)
    before, after = (
        min(most, low.target.shared_bytes // (size + 1024)) for size in (bytes, bytes + more)
    )
    return before == after > 0


def _is_scalar(low: Recording, op: Op) -> bool:
    """Whether an op is arithmetic of scalars, which a later iteration's can be done ahead of."""
    if isinstance(op, ops.IndexTile) and not is_tile(op.result):
        return True
    pure = ops.IndexTile | ops.Full | ops.Map | ops.Cast | ops.Bitcast
    return low.caller and isinstance(op, pure) and not op.result.shape


def _tiles_of_addresses(assignment: Assignment, loop: ops.For) -> set[Value]:
    """The tiles of a body that staged loads find their addresses in, and what those are made of:
    integers that are cheap to compute for a later iteration, such as rows times a stride."""
    inside = {value: item for item in loop.body.ops for value in item.results}
    found: set[Value] = set()
    pending = [
        value
        for load in loop.body.ops
        if isinstance(load, ops.Load) and load in assignment.staged
        for value in load.operands()
        if value.shape and value is not load.mask
    ]
    while pending:
        value = pending.pop()
        if value in inside and can_remake(value, assignment.makers, lambda other: True):
            found.add(value)
            pending += inside[value].operands()
    return found
