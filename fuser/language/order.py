"""Which atomics give other results when programs run in another order."""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel

FREE = ("add", "max", "min", "and", "or", "xor")
"""Of integers these give the same in any order."""


def depends_on_order(kernel: Kernel) -> str:
    """Where in the source (or which op) an atomic depends on the order of the programs: one of
    floats, one whose old value is used, an exchange. Empty if there is none."""
    used = {value for op in kernel.walk() for value in op.operands()}
    for op in kernel.walk():
        match op:
            case ops.AtomicAdd():
                free = not op.view.dtype.is_float
            case ops.Atomic():
                exact = not op.view.dtype.is_float or op.fn in ("max", "min")
                free = op.fn in FREE and exact and not any(v in used for v in op.results)
            case _:
                continue
        if not free:
            return op.source or op.opcode
    return ""
