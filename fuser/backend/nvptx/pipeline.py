"""Passes over a recorded program, in their order. Each changes the program in place."""

from __future__ import annotations

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.unused_integers import drop_unused
from fuser.backend.nvptx.memory.block_barriers import insert_barriers
from fuser.backend.nvptx.memory.proxy_fences import fence_proxies
from fuser.backend.nvptx.memory.shared_allocation import place_slots
from fuser.backend.nvptx.prefetch.early_constants import request_constants
from fuser.backend.nvptx.prefetch.early_operands import request_operands
from fuser.backend.nvptx.prefetch.early_state import forget_state, request_state
from fuser.backend.nvptx.prefetch.first_copies import issue_copies_first
from fuser.backend.nvptx.prefetch.launch_overlap import overlap_launches
from fuser.backend.nvptx.prefetch.prefetch_loads import prefetch_loads
from fuser.backend.nvptx.prefetch.register_staging import stage_through_registers
from fuser.backend.nvptx.schedule.multistage_pipeline import pipeline_loops
from fuser.backend.nvptx.schedule.wgmma_groups import close_groups
from fuser.backend.nvptx.schedule.wgmma_waits import leave_in_flight


def run(
    program: Program, *, overlap: bool, units: int, early: int = 0, async_copies: bool = True
) -> list[Decision]:
    """Run the passes, and say what they decided. overlap: whether the kernel may begin under the
    end of the one before it; early: bytes of constants that each block asks for meanwhile.
    units: multiprocessors.
    async_copies: whether the target has copies of threads under way."""
    decisions: list[Decision] = []
    pipeline_loops(program)
    issue_copies_first(program)
    prefetched = prefetch_loads(program)
    decisions += [prefetched] if prefetched else []
    leave_in_flight(program)
    close_groups(program)
    fence_proxies(program)
    if not async_copies:
        stage_through_registers(program)
    if overlap:
        overlap_launches(program)
        if early:
            decisions.append(request_constants(program, early))
            state = request_state(program)
            decisions += [state] if state else []
    operands = request_operands(program, units)
    decisions += [operands] if operands else []
    forget_state(program)
    drop_unused(program)
    place_slots(program)  # what is live is told by the ops that are left
    insert_barriers(program)  # last: slots that follow each other at one place meet
    return decisions


__all__ = ["run"]
