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
    wide = b.cast(x, dtypes.f32)
    dropped = 13 if x.dtype is dtypes.f16 else 16
    bits = b.emit("float_bits", wide, dtype=dtypes.i32)
    odd = b.map("bitwise_and", b.map("shift_right", bits, dropped), 1)
    moved = b.map("add", b.map("add", bits, (1 << (dropped - 1)) - 1), odd)
    whole = b.map("bitwise_and", moved, -(1 << dropped))
    found = b.emit("bits_float", whole, dtype=dtypes.f32)
    if x.dtype is dtypes.f16:
        size = b.map("abs", wide)
        least = b.map("mul", b.map("round", b.map("mul", wide, 2.0**24)), 2.0**-24)
        found = b.map("select", b.map("lt", size, 2.0**-14), least, found)
        most = b.map("mul", found, float("inf"))
        found = b.map("select", b.map("ge", b.map("abs", found), 2.0**16), most, found)
    return b.cast(b.map("select", b.map("is_nan", wide), wide, found), x.dtype)


def _is_stored(x: Value) -> bool:
    """Whether a value is an element of an input or a constant."""
    while x.node is not None and x.node.op in _MOVES and len(x.node.inputs) == 1:
        x = x.node.inputs[0]
    return x.node is None or x.node.op == "constant"
