"""How a user's kernel is run: what the launch asks for, as far as it is good for the kernel.

num_warps and num_stages are hints. Rows are spread over more warps where a thread would hold too
many elements: 16 warps of 32 elements each load as fast as memory gives, 8 of 64 do not (softmax of
12,672 columns on an H200).
"""

from __future__ import annotations

from dataclasses import replace

from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule

MOST_WARPS = 16
ELEMENTS = 512
"""Of a tile without matrix products, for each warp."""


def choose(kernel: Kernel, asked: Schedule) -> Schedule:
    """The schedule of a kernel after its passes."""
    largest = 1
    for op in kernel.walk():
        if isinstance(op, ops.Dot):
            return asked
        largest = max(largest, *(value.type.size for value in op.results), 1)
    warps = max(asked.warps, min(MOST_WARPS, largest // ELEMENTS))
    if warps == asked.warps:
        return asked
    reason = f"{largest} elements on {warps} warps, {asked.warps} were asked for"
    return replace(asked, warps=warps, reason=reason)
