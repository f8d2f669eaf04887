"""Values of 16-bit floats as they are in memory.

A kernel keeps them as float32 until it stores them. Where two of them are compared with each other,
one may come from memory and the other not: both are rounded, whatever the kernel.
"""

from __future__ import annotations

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.ir import Value

_MOVES = ("reshape", "transpose", "broadcast", "slice", "concat", "gather")


def as_stored(b: Builder, x: Value) -> Value:
    """x, float16 or bfloat16, rounded; others as they are."""
    if x.dtype not in (dtypes.f16, dtypes.bf16) or _is_stored(x):
        return x
    return b.emit("cast", x, dtype=x.dtype, rounds=True)


def _is_stored(x: Value) -> bool:
    """Whether a value is an element of an input or a constant."""
    while x.node is not None and x.node.op in _MOVES and len(x.node.inputs) == 1:
        x = x.node.inputs[0]
    return x.node is None or x.node.op == "constant"
