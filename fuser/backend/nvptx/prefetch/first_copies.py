"""Issue the first copies of a loop before the work that precedes it: they travel while
operands that are computed, the queries of attention or what is scaled, are waited for.

    %x = load &q[...]                               %x = load &q[...]
    %q = cast %x                                    alloc @1
    alloc @0                                        copy_async &k[0], @1
    write_tile @0, %q                               commit_copies
    alloc @1                                        copy_async &k[64], @1[8192]
    copy_async &k[0], @1                            commit_copies
    commit_copies                                   %q = cast %x
    copy_async &k[64], @1[8192]                     alloc @0
    commit_copies                                   write_tile @0, %q
    for ...                                         for ...

Slots have no places yet, and barriers are not set.
"""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.prefetch.code_motion import PURE, makers_of, take

_ISSUING = (ops.CopyAsync, ops.CommitCopies)
_PASSED = (
    *PURE, *_ISSUING, ops.Alloc, ops.Unsplat, ops.ScaledMap, ops.Multiply, ops.Cast, ops.Bitcast,
    ops.FillEdge, ops.FoldRegisters, ops.FoldLanes, ops.FoldParts, ops.Shuffle, ops.Load, ops.Keep,
    ops.WriteTile, ops.WriteParts, ops.ReadParts, ops.WriteShared, ops.ReadShared, ops.Free,
)  # fmt: skip
"""What copies may go past: it writes nothing in global memory, and waits for no copy."""


def issue_copies_first(program: Program) -> None:
    """Move the copies before the first loop of a program to its loads."""
    body = program.body.ops
    start = end = 0
    for op in body:
        if op.blocks() and not only_copies(op):
            break
        end += 1
        if not isinstance(op, _PASSED) and not only_copies(op):
            start = end
    work = body[start:end]
    issuing = [op for op in work if _issues(op)]
    makers, copies, loads = makers_of(work), dict[Op, None](), dict[Op, None]()
    if not issuing or not all(take(op, makers, copies) for op in issuing):
        return
    for op in work:
        if isinstance(op, ops.Load):
            take(op, makers, loads)
    body[start:end] = [
        *(op for op in work if op in loads),
        *(op for op in work if op in copies and op not in loads),
        *(op for op in work if op not in copies and op not in loads),
    ]


def only_copies(op: Op) -> bool:
    """Whether an op issues copies where a condition holds, and does nothing else."""
    return isinstance(op, ops.Where) and all(
        isinstance(inner, (*PURE, *_ISSUING)) or only_copies(inner) for inner in op.body.ops
    )


def _issues(op: Op) -> bool:
    return isinstance(op, _ISSUING) or only_copies(op)


__all__ = ["issue_copies_first", "only_copies"]
