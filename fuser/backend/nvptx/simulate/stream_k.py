"""Sums that blocks leave for each other in the workspace, with a flag for each warp (stream-k)."""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.simulate.clocks import SimulationError
from fuser.backend.nvptx.simulate.warp import Rule, Steps, Warp


def _flag(warp: Warp, op: ops.LeaveSums | ops.AddSums) -> tuple[int, int, int]:
    """The flag of a warp: of a part of a program, a block of its cluster."""
    part = warp.number_of(op.program) * op.parts + warp.number_of(op.part)
    return part, warp.block if op.neighbours > 1 else 0, warp.number - warp.base


def leave_sums(warp: Warp, op: ops.LeaveSums) -> None:
    flag, workspace = _flag(warp, op), warp.machine.workspace
    if flag in workspace:
        raise SimulationError("sums are left where nobody has taken those from before")
    workspace[flag] = [warp.tiles[value].copy() for value in op.values]


def add_sums(warp: Warp, op: ops.AddSums) -> Steps:
    flag, machine = _flag(warp, op), warp.machine

    def raised() -> bool:
        machine.asked.add(flag)
        return flag in machine.workspace

    yield raised
    parts = machine.workspace.pop(flag)
    for made, own, part in zip(op.results, op.values, parts, strict=True):
        warp.tiles[made] = warp.tiles[own] + part


RULES: dict[type[Op], Rule] = {ops.LeaveSums: leave_sums, ops.AddSums: add_sums}
