"""How a user's kernel is run: what the launch asks for, as far as it is good for the kernel.

num_warps and num_stages are hints. Kernels with matrix products take them as they are. Rows, which
have none, are spread so that a thread has 8 to 64 elements: more warps of fewer elements wait
longer for each other at every reduction, fewer of more have no registers left. Where what a thread
must remember fits half of its registers, two blocks share a multiprocessor, so that one loads while
the other computes (softmax of 12,672 columns on an H200: 4.06 TB/s, and 3.05 alone); where it does
not, the blocks of a cluster share the row (layer norm of 15,872 columns: 2.78 TB/s, not 2.38).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value

ELEMENTS = 512
"""Of a row for each warp, up to 8 warps."""
LONG = 32768
"""Elements of which 8 warps would have to hold too many."""
FEW = 4
"""Warps that a short row gets at most."""
HALF = 72
"""32-bit registers that a thread of 8 warps may hold across a reduction, where two blocks share a
multiprocessor."""


def choose(kernel: Kernel, asked: Schedule) -> Schedule:
    """The schedule of a kernel after its passes."""
    from fuser.backend.nvptx.cluster import is_straight  # of use to kernels for GPUs alone

    largest = 1
    for op in kernel.walk():
        if isinstance(op, ops.Dot):
            return asked
        largest = max([largest, *(value.type.size for value in op.results)])
    warps = max(min(asked.warps, FEW), 16 if largest >= LONG else min(8, largest // ELEMENTS))
    extra = dict(asked.extra)
    held = max(_held(kernel.body), default=0) / (32 * 32 * warps)
    cluster = 1
    if warps == 8 and held and held <= HALF:
        extra["resident"] = 2
    elif warps == 8 and held and is_straight(kernel):
        warps, cluster = 4, 4
    if (warps, cluster, extra) == (asked.warps, asked.cluster, asked.extra):
        return asked
    where = f"{warps} warps" + (f" of each of {cluster} blocks" if cluster > 1 else "")
    reason = f"{largest} elements on {where}; {asked.warps} warps were asked for"
    return replace(asked, warps=warps, cluster=cluster, extra=extra, reason=reason)


def _held(block: Block) -> Iterator[int]:
    """Bits of tiles that are needed before and after each reduction."""
    last: dict[Value, int] = {}
    for position, op in enumerate(block.ops):
        inner = [value for b in op.blocks() for o in b.walk() for value in o.operands()]
        last.update(dict.fromkeys((*op.operands(), *inner), position))
    made: list[Value] = list(block.params)
    for position, op in enumerate(block.ops):
        if isinstance(op, ops.Reduce):
            yield sum(_bits(value) for value in made if last.get(value, -1) > position)
        made += op.results
        for inner_block in op.blocks():
            yield from _held(inner_block)


def _bits(value: Value) -> int:
    return value.type.size * max(8, value.dtype.bits) if value.shape else 0
