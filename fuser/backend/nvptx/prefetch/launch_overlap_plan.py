"""Whether a kernel may be launched while the one before it still runs (programmatic launch), and
ask for its constants meanwhile."""

from __future__ import annotations

import math

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.layouts.assignment import Assignment
from fuser.base.target import Target
from fuser.graph.sizes import size_hint
from fuser.tilegen.ir import Buffer, Kernel

SMALL = 16 << 20
"""Bytes that a kernel touches in a few microseconds, of which its start and end are a part."""
SUMS, WARPS = 96, 16
"""Registers of sums beyond which, and warps of a block without dots from which on, pointers that go
through the wait have no room."""
OVERLAP = True
"""Whether kernels start under the end of the one before; `schedule.launch_overlap` overrides."""
EARLY = True
"""Whether they ask for constants meanwhile; `schedule.early_constants` overrides."""
FIRST, RING = 32 << 10, 256 << 10
"""Bytes of them that a block asks for, and more than its stages, for where there is hardly any
data. Where its room was taken until the previous kernel ended, constants only stand in the way of
the first data: copies arrive in the order of their issue."""
CONSTANT = 16
"""All bytes of a kernel over those that are no constants, from which on these are hardly any."""


def overlap(kernel: Kernel, target: Target, assignment: Assignment, caller: bool) -> Decision:
    """Whether a kernel starts under the end of the one before it, and why."""

    def decided(applied: bool, reason: str) -> Decision:
        return Decision("launch overlap", applied, reason)

    if not target.clusters:
        return decided(False, f"{target.arch} has no programmatic launch")
    if caller and not kernel.schedule.launch_overlap:
        return decided(False, "what ran before a caller's kernel wrote where nobody knows")
    if kernel.schedule.launch_overlap is not None:
        return decided(kernel.schedule.launch_overlap, "the schedule says so")
    plans = assignment.dots.values()
    moved = sum(_touched(kernel).values())
    sums = sum(len(plan.accumulator.regs) for plan in plans)
    if moved > SMALL and not _reads_constants(kernel):
        return decided(False, f"it touches {moved >> 20} MiB, beside which a launch is short")
    if sums > SUMS or any(plan.kind == "wide" for plan in plans):
        return decided(False, f"{sums} registers of sums leave none for pointers past the wait")
    if assignment.warps >= WARPS and not plans:
        return decided(False, f"{assignment.warps} warps leave no registers for pointers")
    return decided(OVERLAP, "its start is a part of its time")


def early(kernel: Kernel) -> int:
    """Bytes of constants that a block asks for before the wait for the previous kernel; 0: none."""
    asked = kernel.schedule.early_constants
    if not (EARLY if asked is None else asked):
        return 0
    return RING if _reads_constants(kernel) else FIRST


def _reads_constants(kernel: Kernel) -> bool:
    """Whether a kernel reads hardly anything but constants, as where few rows meet a matrix of
    weights: requests for them stand in the way of nothing else."""
    touched = _touched(kernel)
    data = sum(count for buffer, count in touched.items() if buffer.role != "constant")
    return data * CONSTANT <= sum(touched.values())


def _touched(kernel: Kernel) -> dict[Buffer, int]:
    """Bytes of each buffer that a kernel reads or writes at most: of a cache that may be the rows
    of one step."""
    seen: dict[Buffer, int] = {}
    for view in kernel.views:
        seen[view.buffer] = seen.get(view.buffer, 0) + math.prod(map(size_hint, view.shape))
    sizes = {buffer: size_hint(buffer.size) for buffer in kernel.buffers}
    return {b: min(size, seen.get(b, size)) * b.dtype.bytes for b, size in sizes.items()}
