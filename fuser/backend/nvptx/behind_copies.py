"""Ops in front of a pipelined loop that can wait until its first copies are under way, which
passes/multistage_pipeline.py then puts in front of them.

    %x = load &a, [#0]                         copy(0); ...; copy(ahead - 1)
    %s = reduce.sum %x                   =>    %x = load &a, [#0]
    for ... (a pipeline, without %s)           %s = reduce.sum %x
                                               for ...
What is loaded in front of a loop and only read behind it (statistics of rows that the epilogue
wants) takes as long as the copies take to come, and comes for nothing under them.
"""

from __future__ import annotations

from fuser.backend.nvptx.assignment import trips_of
from fuser.backend.nvptx.builder import Builder
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

PURE = (
    ops.Load | ops.Map | ops.Cast | ops.Broadcast | ops.Reduce | ops.Reshape | ops.Permute
)  # fmt: skip


def find_behind_copies(low: Builder) -> dict[Op, list[Op]]:
    """For the first loop of a kernel, if copies run ahead of it, the ops in front that wait."""
    front: list[Op] = []
    for op in low.kernel.body.ops:
        if isinstance(op, ops.For):
            waiting = [] if low.caller or not _runs_ahead(low, op) else _waiting(low, front, op)
            return {op: waiting} if waiting else {}
        front.append(op)
    return {}


def _runs_ahead(low: Builder, loop: ops.For) -> bool:
    """Whether threads issue copies for later iterations of a loop."""
    staged = any(op in low.assignment.staged for op in loop.body.ops if isinstance(op, ops.Load))
    return staged and loop not in low.streams and trips_of(loop) != 1 and low.stages > 1


def _waiting(low: Builder, front: list[Op], loop: ops.For) -> list[Op]:
    """The ops in front that a load leads to and the loop does not need; none where one of them, or
    one beside them, changes memory."""
    if any(not isinstance(op, PURE | ops.Full | ops.IndexTile | ops.ProgramId) for op in front):
        return []
    needed = {value for op in loop.body.walk() for value in op.operands()} | set(loop.operands())
    for op in reversed(front):
        if not needed.isdisjoint(op.results):
            needed.update(op.operands())
    found: list[Op] = []
    loaded: set[Value] = set()
    for op in front:
        if not isinstance(op, PURE) or not needed.isdisjoint(op.results):
            continue
        plain = isinstance(op, ops.Load) and op not in low.assignment.staged
        if plain or not loaded.isdisjoint(op.operands()):
            found.append(op)
            loaded.update(op.results)
    return found
