"""Move what does not change with a loop to before it.

    %s = for 0, 64, (%z) {step = 8} ... {            %q = load &q, [%pid*16 + #0, #1]
      %q = load &q, [%pid*16 + #0, #1]         =>    %s = for 0, 64, (%z) {step = 8} ... {
      %d = dot %q, %k, %acc                            %d = dot %q, %k, %acc
      ...                                              ...

Loads of buffers that the kernel modifies stay, and so does a load that is known to be in bounds, if
the loop may run no iteration: nothing would be known then. Of a caller's pointer the bounds
themselves may be known from the loop alone. Branches keep what is in them. Inner
loops go first, so that an op may leave several loops.
"""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.passes.rewrite import runs_at_least_once, stored_buffers
from fuser.tilegen.value import Value


def hoist_loop_invariants(kernel: Kernel) -> None:
    stored = stored_buffers(kernel)

    def hoist(block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            if isinstance(op, ops.For):
                kept += _leaving(op, stored)
            kept.append(op)
        block.ops = kept

    kernel.rewrite(hoist)


def _leaving(loop: ops.For, stored: frozenset[object]) -> list[Op]:
    """Take the invariant ops out of the body, in order."""
    inside: set[Value] = set(loop.body.params)
    stay: list[Op] = []
    leave: list[Op] = []
    runs = runs_at_least_once(loop)
    for op in loop.body.ops:
        if _may_move(op, stored, runs) and not inside.intersection(op.operands()):
            leave.append(op)
        else:
            stay.append(op)
            inside.update(op.results)
    loop.body.ops = stay
    return leave


def _may_move(op: Op, stored: frozenset[object], runs: bool) -> bool:
    if op.has_effect or op.blocks():
        return False
    if isinstance(op, ops.Load):
        buffer = op.view.buffer
        return buffer not in stored and (runs or (op.pad is not None and not buffer.open))
    return True
