"""The passes over a recorded GPU program, in the order in which they run.

A pass changes the program in place; the docstring of its file shows one before and after. The
predicate beside it says for which kernels and targets it runs. `fuser dump --stage gpu-passes`
prints the program after each pass that changed it. docs/gpu-level.md names Triton's pass for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.ir.cse import merge_common
from fuser.backend.nvptx.ir.orders import kept_orders
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.unused_integers import drop_unused
from fuser.backend.nvptx.layouts.expand_conversions import expand_conversions
from fuser.backend.nvptx.memory.block_barriers import insert_barriers
from fuser.backend.nvptx.memory.proxy_fences import fence_proxies
from fuser.backend.nvptx.memory.shared_allocation import place_slots
from fuser.backend.nvptx.memory.tensor_memory import move_sums
from fuser.backend.nvptx.prefetch.early_constants import request_constants
from fuser.backend.nvptx.prefetch.early_operands import request_operands
from fuser.backend.nvptx.prefetch.early_state import forget_state, request_state
from fuser.backend.nvptx.prefetch.first_copies import issue_copies_first
from fuser.backend.nvptx.prefetch.launch_overlap import overlap_launches
from fuser.backend.nvptx.prefetch.prefetch_loads import prefetch_loads
from fuser.backend.nvptx.prefetch.register_staging import stage_through_registers
from fuser.backend.nvptx.schedule.expand_loops import expand_loops
from fuser.backend.nvptx.schedule.group_reductions import group_reductions
from fuser.backend.nvptx.schedule.wgmma_groups import close_groups
from fuser.backend.nvptx.schedule.wgmma_waits import leave_in_flight


@dataclass(frozen=True)
class Facts:
    """What passes are told of a kernel and its target.

    units: multiprocessors of the target. overlap: whether the kernel may start before the previous
    one has ended. early_bytes: constants that a block may request while it waits for that.
    shared_bytes: that a block can have. async_copies: whether the target copies to shared memory
    asynchronously (cp.async). window: bytes of a tile that go through shared memory at a time,
    where not all of it fits; 0: all.
    """

    units: int
    overlap: bool = False
    early_bytes: int = 0
    shared_bytes: int = 0
    async_copies: bool = True
    window: int = 0


def always(facts: Facts) -> bool:
    return True


def overlaps(facts: Facts) -> bool:
    return facts.overlap


def requests_early(facts: Facts) -> bool:
    return facts.overlap and facts.early_bytes > 0


def without_async_copies(facts: Facts) -> bool:
    return not facts.async_copies


Run = Callable[[Program, Facts], Decision | None]


@dataclass(frozen=True)
class Pass:
    """A named pass; `run` says what it decided, if that is more than a rewrite."""

    name: str
    run: Run
    wanted: Callable[[Facts], bool] = always


def _plain(run: Callable[[Program], Decision | None]) -> Run:
    """A pass that needs no facts."""
    return lambda program, facts: run(program)


PASSES = (
    Pass("cse", _plain(merge_common)),
    Pass("layout conversions", lambda p, facts: expand_conversions(p, facts.window)),
    # Who schedules, then what expands: copies have their stages from recording.
    Pass("prefetch loads", lambda p, facts: prefetch_loads(
        p, facts.shared_bytes if facts.async_copies else 0)),
    Pass("wgmma waits", _plain(leave_in_flight)),
    Pass("expand loops", _plain(expand_loops)),
    Pass("first copies", _plain(issue_copies_first)),
    Pass("group reductions", _plain(group_reductions)),
    Pass("wgmma groups", _plain(close_groups)),
    Pass("proxy fences", _plain(fence_proxies)),
    Pass("tensor memory", _plain(move_sums)),
    Pass("register staging", _plain(stage_through_registers), without_async_copies),
    Pass("launch overlap", _plain(overlap_launches), overlaps),
    Pass("early constants", lambda p, facts: request_constants(p, facts.early_bytes),
         requests_early),
    Pass("early state", _plain(request_state), requests_early),
    Pass("early operands", lambda p, facts: request_operands(p, facts.units)),
    Pass("forget state", _plain(forget_state)),
    Pass("unused integers", _plain(drop_unused)),
    # What is live follows from the ops that are left.
    Pass("shared allocation", _plain(place_slots)),
    # Last: slots that follow each other at one place need a barrier between them.
    Pass("block barriers", _plain(insert_barriers)),
)  # fmt: skip


def run_passes(program: Program, facts: Facts) -> Iterator[tuple[Pass, Decision | None]]:
    """Run the passes that are wanted: each with its decision, when it has changed the program."""
    for item in PASSES:
        if item.wanted(facts):
            with kept_orders(program):
                decision = item.run(program, facts)
            yield item, decision
