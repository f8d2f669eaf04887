"""Facts of integer values: least and greatest value and a divisor, from an op's operands.

Builder, parser and passes share this, so that a program read back from text knows what the built
one knew. An emitter may claim more (a table bounds its indices); the text then says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.graph.sizes import divisor as gcd
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Index, symbolic_extreme
from fuser.tilegen.ir import Op
from fuser.tilegen.value import UNBOUNDED, Value

Fact = tuple[int, int, int]
"""(low, high, multiple); multiple 0 is the constant 0."""

UNKNOWN: Fact = (-UNBOUNDED, UNBOUNDED, 1)


def fact_of(value: Value) -> Fact:
    return value.low, value.high, value.multiple


def set_fact(value: Value, fact: Fact) -> None:
    value.low, value.high, value.multiple = fact[0], fact[1], fact[2] or 1


def infer(op: Op, grid: Sequence[int] = ()) -> Fact:
    """What is known of the (single) result of an op without blocks."""
    if len(op.results) != 1 or not op.result.dtype.is_integer:
        return UNKNOWN
    match op:
        case ops.ProgramId():
            fact = (0, grid[op.axis] - 1, 1) if op.axis < len(grid) else UNKNOWN
        case ops.IndexTile():
            fact = (*op.expression.range, op.expression.multiple)
        case ops.Full():
            fact = (int(op.value), int(op.value), abs(int(op.value)))
        case ops.Cast() if op.x.dtype.is_integer:
            fact = _cast(op)
        case ops.Cast() if op.x.dtype.kind == "bool":
            fact = (0, 1, 1)
        case ops.Broadcast() | ops.Reshape() | ops.Permute():
            fact = fact_of(op.x)
        case ops.Reduce() if op.fn in ("max", "min"):
            fact = fact_of(op.x)
        case ops.Map():
            fact = _map(op.fn, [fact_of(arg) for arg in op.args])
        case _:
            fact = UNKNOWN
    return _fitted(fact, op.result)


def infer_variable(start: Index, stop: Index, step: int) -> Fact:
    """What is known of the variable of a loop inside of its body."""
    low, high = start.range[0], stop.range[1]
    by = gcd(start.multiple, step) or 1
    if high < UNBOUNDED:
        high = high - 1 if is_symbolic(high) else (high - 1) // by * by
    if step > 0 and start.is_constant and start.constant < stop.range[1] < UNBOUNDED:
        high = start.constant + (stop.range[1] - start.constant - 1) // step * step
    return low, high if is_symbolic(low, high) else max(low, high), by


def _known(fact: Fact) -> bool:
    return fact[0] > -UNBOUNDED and fact[1] < UNBOUNDED


def _fitted(fact: Fact, value: Value) -> Fact:
    """The fact, unless the dtype may have wrapped around."""
    low, high, multiple = fact
    fits_low = low <= -UNBOUNDED or low >= value.dtype.lowest
    fits_high = high >= UNBOUNDED or high <= value.dtype.highest
    if fits_low and fits_high:
        return low, high, multiple or 1
    return -UNBOUNDED, UNBOUNDED, _even_wrapped(multiple)


def _even_wrapped(multiple: int) -> int:
    """What still divides numbers after a wrap, which adds a multiple of a power of 2."""
    known = multiple if isinstance(multiple, int) and multiple else 1
    return known & -known


def _cast(op: ops.Cast) -> Fact:
    low, high, multiple = fact_of(op.x)
    source, target = op.x.dtype, op.dtype
    if max(low, source.lowest) < target.lowest or min(high, source.highest) > target.highest:
        return UNKNOWN
    return low, high, multiple


def _map(fn: str, args: Sequence[Fact]) -> Fact:
    if fn == "select" and len(args) == 3:
        return _union(args[1], args[2])
    if fn == "neg" and _known(args[0]):
        low, high, by = args[0]
        return -high, -low, by
    if len(args) != 2:
        return UNKNOWN
    if fn in ("min", "max"):
        pick = min if fn == "min" else max
        (a_low, a_high, a_by), (b_low, b_high, b_by) = args
        if is_symbolic(a_low, a_high, b_low, b_high):  # a fact is no reason for a guard
            low, high = symbolic_extreme(fn, (a_low, b_low)), symbolic_extreme(fn, (a_high, b_high))
            return low, high, gcd(a_by, b_by)
        return pick(a_low, b_low), pick(a_high, b_high), gcd(a_by, b_by)
    (a_low, a_high, a_by), (b_low, b_high, b_by) = args
    if not all(map(_known, args)):
        if fn not in ("add", "sub", "mul"):
            return UNKNOWN
        by = a_by * b_by if fn == "mul" else gcd(a_by, b_by)
        return -UNBOUNDED, UNBOUNDED, _even_wrapped(by)
    if fn == "mod" and b_low > 0:
        return 0, b_high - 1, 1
    if fn not in ("add", "sub", "mul"):
        return UNKNOWN
    if fn == "add":
        return a_low + b_low, a_high + b_high, gcd(a_by, b_by)
    if fn == "sub":
        return a_low - b_high, a_high - b_low, gcd(a_by, b_by)
    ends = [x * y for x in (a_low, a_high) for y in (b_low, b_high)]
    if is_symbolic(*ends):
        return UNKNOWN
    return min(ends), max(ends), a_by * b_by


def _union(a: Fact, b: Fact) -> Fact:
    if is_symbolic(a[0], a[1], b[0], b[1]):
        return UNKNOWN
    return min(a[0], b[0]), max(a[1], b[1]), gcd(a[2], b[2])
