"""Whether a kernel may be launched while the one before it still runs (programmatic launch), and
ask for its constants meanwhile."""

from __future__ import annotations

from fuser.backend.nvptx.assignment import Assignment
from fuser.backend.nvptx.decisions import Decision
from fuser.backend.nvptx.ir.program import bytes_of, reads_constants
from fuser.target import Target
from fuser.tilegen.ir import Kernel

SMALL = 16 << 20
"""Bytes that a kernel touches in a few microseconds, of which its start and end are a part."""
SUMS, WARPS = 96, 16
"""Registers of sums beyond which, and warps of a block without dots from which on, pointers that go
through the wait have no room."""
OVERLAP = True
"""Whether kernels start under the end of the one before; `schedule.extra["overlap"]` overrides."""
EARLY = True
"""Whether they ask for constants meanwhile; `schedule.extra["early"]` overrides."""


def overlap(kernel: Kernel, target: Target, assignment: Assignment, caller: bool) -> Decision:
    """Whether a kernel starts under the end of the one before it, and why."""

    def decided(applied: bool, reason: str) -> Decision:
        return Decision("launch overlap", applied, reason)

    if not target.clusters:
        return decided(False, f"{target.arch} has no programmatic launch")
    if caller:
        return decided(False, "what ran before a caller's kernel wrote where nobody knows")
    if "overlap" in kernel.schedule.extra:
        return decided(bool(kernel.schedule.extra["overlap"]), "the schedule says so")
    plans = assignment.dots.values()
    moved = sum(map(bytes_of, kernel.buffers))
    sums = sum(len(plan.accumulator.regs) for plan in plans)
    if moved > SMALL and not reads_constants(kernel.buffers):
        return decided(False, f"it touches {moved >> 20} MiB, beside which a launch is short")
    if sums > SUMS or any(plan.kind == "wide" for plan in plans):
        return decided(False, f"{sums} registers of sums leave none for pointers past the wait")
    if assignment.warps >= WARPS and not plans:
        return decided(False, f"{assignment.warps} warps leave no registers for pointers")
    return decided(OVERLAP, "its start is a part of its time")


def early(kernel: Kernel) -> bool:
    """Whether constants are asked for before the wait for the kernel in front."""
    return bool(kernel.schedule.extra.get("early", EARLY))
