"""Whole numbers that stay index expressions: when they do, and arithmetic on them."""

from __future__ import annotations

from fuser.graph import dims
from fuser.graph.sizes import certain, is_symbolic
from fuser.language.emitter import Emitter, is_nonnegative
from fuser.language.tensors import Tensor
from fuser.language.types import ElementType, int32, int64
from fuser.tilegen.index import Index, floordiv, maximum, minimum, modulo


def is_whole(x: Tensor) -> bool:
    """Whether a tensor is a signed integer that is kept as an index expression."""
    return x.index is not None and x.dtype in (int32, int64)


def stay_whole(x: Tensor, y: Tensor) -> bool:
    """Whether a result is kept as an index expression: both are, or one that is no plain number."""
    if is_whole(x) and is_whole(y):
        return True
    if x.dtype not in (int32, int64):
        return False
    return any(is_whole(side) and side.literal is None for side in (x, y))


def operate_whole(op: str, a: Index | None, b: Index | None) -> Index | None:
    """+, -, *, min or max as an index expression, where there is one."""
    assert a is not None and b is not None
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*" if b.is_constant:
            return a * b.constant
        case "*" if a.is_constant:
            return b * a.constant
        case "min" | "fmin":
            return minimum(a, b)
        case "max" | "fmax":
            return maximum(a, b)
    return None


def fits(e: Emitter, expression: Index, dtype: ElementType) -> bool:
    """Whether nothing says that an expression leaves its type: integers of sizes and program ids
    are taken to fit."""
    return dtype is int64 or not e.is_long(expression)


def divide_whole(op: str, a: Index | None, b: Index | None) -> Index | None:
    """a // b or a % b as an index expression, where truncation and rounding down agree."""
    assert a is not None and b is not None
    if not b.is_constant or not certain(b.constant - 1) or not is_nonnegative(a):
        return None
    if a.is_constant and is_symbolic(a.constant, b.constant):
        return Index(
            dims.as_int((dims.floordiv if op == "//" else dims.modulo)(a.constant, b.constant))
        )
    return floordiv(a, b.constant) if op == "//" else modulo(a, b.constant)


def decided(slack: Index) -> bool | None:
    """Whether slack >= 0 holds everywhere or nowhere, if that is known."""
    low, high = slack.range
    if certain(low):
        return True
    return False if certain(-1 - high) else None
