"""Passes over a recorded program, in their order. Each changes the program in place."""

from __future__ import annotations

from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.passes.launch_overlap import overlap_launches
from fuser.backend.nvptx.passes.shared_allocation import place_slots
from fuser.backend.nvptx.passes.unused_integers import drop_unused


def run(program: Program, *, overlap: bool) -> None:
    """Run the passes. overlap: whether the kernel may begin under the end of the one before it."""
    if overlap:
        overlap_launches(program)
    drop_unused(program)
    place_slots(program)  # last: what is live is told by the ops that are left


__all__ = ["run"]
