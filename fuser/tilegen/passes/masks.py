"""Drop the pad of a load that can be proved to stay in bounds.

    buffer of 1024, grid(8)
    %x = load &x, [%pid*128 + #0] : tile<128xf32>
                          =>
    %x = load &x, [%pid*128 + #0] {pad = none} : tile<128xf32>

The proof is the range of each index: of the grid, of loop variables and of what they are made of.
A back end emits no bounds checks for such a load. (It can use the same ranges to check only the
dims that need it where a pad stays.)
"""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.index import in_range
from fuser.tilegen.ir import Kernel


def drop_proven_masks(kernel: Kernel) -> None:
    for op in kernel.walk():
        if isinstance(op, ops.Load) and op.pad is not None and is_in_bounds(op):
            op.pad = None


def is_in_bounds(op: ops.Load | ops.Store | ops.AtomicAdd) -> bool:
    """Whether no index can ever leave the view."""
    return all(
        in_range(expression, extent)
        for expression, extent in zip(op.indices, op.view.shape, strict=True)
    )
