"""Arithmetic on single integers: what a producer warp can do by itself, beside computing warps."""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.ir import Op


def is_scalar_arithmetic(op: Op) -> bool:
    """Whether an op computes one integer (or bool) of others, without memory."""
    match op:
        case ops.ProgramId():
            return True
        case ops.IndexTile() | ops.Full():
            return not op.result.shape and not op.result.dtype.is_float
        case ops.Map() | ops.Cast():
            values = (op.result, *op.operands())
            return not any(value.shape or value.dtype.is_float for value in values)
    return False
