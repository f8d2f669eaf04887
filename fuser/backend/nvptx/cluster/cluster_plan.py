"""How many blocks share a program (cluster/cluster.py)."""

from __future__ import annotations

from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.cluster.cluster import LARGEST
from fuser.backend.nvptx.cluster.reduction_merge import mergeable_loop
from fuser.backend.nvptx.layouts.assignment import of_caller
from fuser.base.target import Target
from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel
from fuser.tilegen.passes.rewrite import stored_buffers

MECHANISM = "programs shared by clusters"


def blocks_of(kernel: Kernel, target: Target) -> int:
    """How many blocks share a program: as the schedule says, where there are clusters."""
    found = _shared_by(kernel, target)
    return 1 if isinstance(found, str) else found


def decide_blocks(kernel: Kernel, target: Target, blocks: int, against: str) -> Decision | None:
    """Why `blocks` of a cluster share a program, or one has it alone; None where nobody asked.
    against: what its lowering had against more."""
    if kernel.schedule.cluster == 1:
        return None
    found = _shared_by(kernel, target)
    if blocks > 1:
        return Decision(MECHANISM, True, f"{blocks} blocks share a program")
    return Decision(MECHANISM, False, found if isinstance(found, str) else against)


def _shared_by(kernel: Kernel, target: Target) -> int | str:
    """How many blocks may share a program, or why one has it alone."""
    blocks = kernel.schedule.cluster
    if not target.clusters:
        return f"{target.arch} has no clusters"
    if blocks == 1:
        return "the schedule does not ask for it"
    if of_caller(kernel) and not is_straight(kernel):
        return "a caller's kernel that does more than read, reduce and write"
    if any(n & (n - 1) for n in (blocks, kernel.schedule.warps)):
        return f"{blocks} blocks of {kernel.schedule.warps} warps are no powers of two"
    kinds = {type(op) for op in kernel.walk()}
    if ops.Scan in kinds:
        return "a scan needs one block"
    if {ops.Dot, ops.Reduce} <= kinds and mergeable_loop(kernel) is None:
        return "what its loop carries cannot be merged"
    return min(blocks, LARGEST)


def is_straight(kernel: Kernel) -> bool:
    """Whether a kernel of a caller reads, reduces and writes, once each: what it writes is not what
    it reads, and its tiles have one axis, along which blocks can share them."""
    plain = (
        ops.ProgramId, ops.IndexTile, ops.Full, ops.Load, ops.Store, ops.Map, ops.Cast,
        ops.Broadcast, ops.Reduce,
    )  # fmt: skip
    stored = stored_buffers(kernel)
    for op in kernel.walk():
        if not isinstance(op, plain) or any(len(value.shape) > 1 for value in op.results):
            return False
        if isinstance(op, ops.Load) and op.view.buffer in stored:
            return False
    return True
