"""Compute what is known before the run, and drop what changes nothing.

    %a = full {value = 2.0} : tile<8xf32>
    %b = full {value = 3.0} : tile<8xf32>
    %c = map.mul(%a, %b) : tile<8xf32>          %c = full {value = 6.0} : tile<8xf32>
    %i = index #0 + 4 : tile<8xi32>       =>    %m = full {value = true} : tile<8xbool>
    %n = full {value = 64} : tile<8xi32>        %d = %x  (uses of %d read %x)
    %m = map.lt(%i, %n) : tile<8xbool>
    %d = select %m, %x, %c

Integer maps of index tiles become index tiles, comparisons that ranges decide become constants, and
index scalars and lookups of index tiles are inlined into the addresses that read them, so that
addresses are sums over single axes wherever they can be. Facts of integer values are narrowed.

Keeps every bit of the result: x + 0.0 stays (it turns -0.0 into 0.0) while x - 0.0 goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.dtypes import DType
from fuser.graph.ops.registry import primitive
from fuser.graph.sizes import certain, is_symbolic
from fuser.tilegen import facts, ops
from fuser.tilegen.index import (
    Atom,
    Axis,
    Index,
    Lookup,
    Scalar,
    axis,
    floordiv,
    index,
    lookup,
    maximum,
    minimum,
    modulo,
    scalar,
)
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.passes.rewrite import is_bounded, narrow_fact, replace_operands, stands_for
from fuser.tilegen.value import INDEX, UNBOUNDED, Value

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BEYOND = 1 << 80
"""No difference of two integers is as large."""


def fold_constants(kernel: Kernel) -> None:
    _Folder(kernel).block(kernel.body)


class _Folder:
    def __init__(self, kernel: Kernel) -> None:
        self.grid = kernel.grid
        self.makers: dict[Value, Op] = {}
        self.aliases: dict[Value, Value] = {}

    def block(self, block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            replace_operands(op, self.aliases)
            op.replace_indices(self.leaf)  # index scalars and index tiles written out
            new = self.fold(op)
            if isinstance(new, Value):
                self.aliases[op.result] = new
                continue
            if new is not None:
                op = stands_for(new, op)
            if isinstance(op, ops.For):
                known = facts.infer_variable(op.start, op.stop, op.step)
                narrow_fact(op.body.params[0], known)
            for inner in op.blocks():
                self.block(inner)
            for value in op.results:
                self.makers[value] = op
                narrow_fact(value, facts.infer(op, self.grid))
            kept.append(op)
        block.ops = kept

    # index expressions --------------------------------------------------------------------------

    def leaf(self, atom: Atom) -> Index | None:
        if isinstance(atom, Scalar):
            maker = self.makers.get(atom.value)
            if isinstance(maker, ops.IndexTile) and _is_within(maker.expression, atom.value):
                return maker.expression
            return scalar(atom.value)
        if isinstance(atom, Lookup):
            written = self.as_index(atom.value)
            if written is not None and _is_within(written, atom.value):
                return _moved(written, atom.axes, atom.value.shape)
            maker = self.makers.get(atom.value)
            if isinstance(maker, ops.Cast) and _keeps_integers(maker):
                return lookup(maker.x, atom.axes)
            if isinstance(maker, ops.Broadcast) and _only_adds_axes(maker):
                return lookup(maker.x, [atom.axes[a] for a in maker.axes])
        return None

    def as_index(self, value: Value) -> Index | None:
        """An integer tile as an expression over its own coordinates, if it reads no memory."""
        maker = self.makers.get(value)
        match maker:
            case ops.IndexTile():
                return maker.expression
            case ops.Full() if value.dtype.is_integer:
                return index(int(maker.value))
            case ops.Cast() if _keeps_integers(maker):
                return self.as_index(maker.x)
            case ops.Broadcast() if value.dtype.is_integer:
                inner = self.as_index(maker.x)
                if inner is None or (inner.values() and not _only_adds_axes(maker)):
                    return None
                return _moved(inner, maker.axes, maker.x.shape)
            case _:
                return None

    # ops ----------------------------------------------------------------------------------------

    def constant(self, value: Value) -> float | int | bool | None:
        """The value of every element, if it is known."""
        maker = self.makers.get(value)
        return maker.value if isinstance(maker, ops.Full) else None

    def fold(self, op: Op) -> Op | Value | None:
        """A value that equals the result, an op to put in place, or None to keep the op."""
        match op:
            case ops.Map():
                return self.map(op)
            case ops.Cast():
                return self.cast(op)
            case ops.IndexTile() if op.shape and _is_number(op.expression):
                return _full(op.expression.constant, op.result)
            case ops.Broadcast() | ops.Reshape() | ops.Permute():
                known = self.constant(op.x)
                return None if known is None else _full(known, op.result)
            case ops.Reduce():
                known = self.constant(op.x)
                if known is not None and op.fn in ("max", "min"):
                    return _full(known, op.result)
                if known == 0 and op.fn == "sum":
                    return _full(abs(known), op.result)
        return None

    def map(self, op: ops.Map) -> Op | Value | None:
        known = [self.constant(arg) for arg in op.args]
        if all(value is not None for value in known):
            result = _evaluate(op.fn, known, op.args)
            return None if result is None else _full(result, op.result)
        if op.fn == "select":
            if known[0] is not None:
                return op.args[1] if known[0] else op.args[2]
            return op.args[1] if op.args[1] is op.args[2] else None
        if len(op.args) == 2:
            alias = _identity(op.fn, op.args, known)
            if alias is not None:
                return alias
        if op.fn in ("neg", "logical_not"):
            inner = self.makers.get(op.args[0])
            if isinstance(inner, ops.Map) and inner.fn == op.fn:
                return inner.args[0]
        if op.args[0].dtype.is_integer:
            return self.integer_map(op)
        return None

    def integer_map(self, op: ops.Map) -> Op | None:
        args = [self.as_index(arg) for arg in op.args]
        if op.fn in COMPARISONS:
            decided = _decide(op.fn, args, op.args)
            return None if decided is None else _full(decided, op.result)
        if None in args or op.result.dtype is INDEX or not op.result.shape:
            return None
        expression = _arithmetic(op.fn, [arg for arg in args if arg is not None])
        if expression is None:
            return None
        low, high = expression.range
        if low < op.result.dtype.lowest or high > op.result.dtype.highest:
            return None  # the map would wrap around, the expression would not
        return ops.IndexTile(expression=expression, shape=op.result.shape, dtype=op.result.dtype)

    def cast(self, op: ops.Cast) -> Op | Value | None:
        if op.x.dtype is op.dtype:
            return op.x
        known = self.constant(op.x)
        if known is not None:
            (result,) = primitive("cast").evaluate(
                [np.asarray(known, op.x.dtype.numpy)], {"dtype": op.dtype}
            )
            return _full(_number(result), op.result)
        inner = self.makers.get(op.x)
        if isinstance(inner, ops.Cast) and is_exact(inner.x.dtype, inner.dtype):
            return (
                inner.x
                if inner.x.dtype is op.dtype
                else (ops.Cast(x=inner.x, dtype=op.dtype, flush=op.flush))
            )
        return None


def is_exact(source: DType, target: DType) -> bool:
    """Whether target holds every value of source, so that a cast through it changes nothing."""
    if source.is_float:
        wider = target.is_float and target.bits > source.bits
        return wider and (target.bits, source.bits) != (16, 16)
    if source.kind == "bool":
        return target.kind != "bool"
    if target.is_float:
        digits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(target.name, 0)
        return source.bits <= digits
    return target.is_integer and (
        source.lowest >= target.lowest and source.highest <= target.highest
    )


def _keeps_integers(op: ops.Cast) -> bool:
    if not (op.dtype.is_integer and op.x.dtype.is_integer):
        return False
    low, high, _ = facts.fact_of(op.x)
    return is_exact(op.x.dtype, op.dtype) or (
        low >= op.dtype.lowest and high <= op.dtype.highest and is_bounded(low, high)
    )


def _only_adds_axes(op: ops.Broadcast) -> bool:
    return all(dim == op.shape[a] for dim, a in zip(op.x.shape, op.axes, strict=True))


def _is_within(expression: Index, value: Value) -> bool:
    """Whether the expression says all that is known of the value."""
    low, high = expression.range
    return certain(low - value.low) and certain(value.high - high)


def _moved(expression: Index, axes: Sequence[int], shape: Sequence[int]) -> Index:
    """The expression over a tile of `shape` as one whose axis i is axes[i]."""

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):
            return axis(axes[atom.axis], shape[atom.axis])
        if isinstance(atom, Lookup):
            return lookup(atom.value, [axes[number] for number in atom.axes])
        return None

    return expression.replace(leaf)


def _is_number(expression: Index) -> bool:
    return expression.is_constant and not is_symbolic(expression.constant)


def _full(value: float | int | bool, result: Value) -> ops.Full:
    return ops.Full(value=value, shape=result.shape, dtype=result.dtype)


def _number(array: Any) -> float | int | bool:
    wide = array.astype(np.float64) if array.dtype.kind not in "biuf" else array
    number: float | int | bool = wide.item()
    return number


def _evaluate(fn: str, known: Sequence[Any], args: Sequence[Value]) -> float | int | bool | None:
    arrays = [np.asarray(value, arg.dtype.numpy) for value, arg in zip(known, args, strict=True)]
    try:
        (result,) = primitive(fn).evaluate(arrays, {})
    except (ZeroDivisionError, ValueError):
        return None
    return _number(result)


def _identity(fn: str, args: Sequence[Value], known: Sequence[Any]) -> Value | None:
    """The operand that equals the result, whatever its value."""
    a, b = args
    left, right = known
    if fn == "mul":
        return a if _is(right, 1) else b if _is(left, 1) else None
    if fn == "div":
        return a if _is(right, 1) else None
    if fn == "sub":
        return a if _is(right, 0.0) else None
    if fn == "add":
        # In floats the number that changes nothing is -0.0.
        zero = -0.0 if a.dtype.is_float else 0
        return a if _is(right, zero) else b if _is(left, zero) else None
    if fn in ("min", "max") and a is b:
        return a
    if fn in ("logical_and", "logical_or"):
        neutral = fn == "logical_and"
        if a is b or right is neutral:
            return a
        if left is neutral:
            return b
        return a if left is (not neutral) else b if right is (not neutral) else None
    return None


def _is(known: float | int | None, number: float | int) -> bool:
    if known is None or known != number:
        return False
    return math.copysign(1, known) == math.copysign(1, number)


def _decide(fn: str, written: Sequence[Index | None], args: Sequence[Value]) -> bool | None:
    """The result of a comparison of integers, where ranges decide it."""
    a, b = written
    (a_low, a_high), (b_low, b_high) = (
        arg.range if expression is None else expression.range
        for expression, arg in zip(written, args, strict=True)
    )
    # Where nothing is known there is no end: 64-bit integers go beyond UNBOUNDED.
    above, below = a_high < UNBOUNDED, a_low > -UNBOUNDED
    above, below = above and b_low > -UNBOUNDED, below and b_high < UNBOUNDED
    low, high = (a_low - b_high if below else -BEYOND), (a_high - b_low if above else BEYOND)
    if a is not None and b is not None:
        difference = a - b
        if (above and below) or difference.is_constant:
            low, high = difference.range
    if is_symbolic(low, high):
        return decide_symbolic(fn, low, high)
    if fn in ("gt", "le"):  # a > b is a - b >= 1
        answer = False if high <= 0 else True if low >= 1 else None
        return answer if fn == "gt" or answer is None else not answer
    if fn in ("ge", "lt"):
        answer = False if high < 0 else True if low >= 0 else None
        return answer if fn == "ge" or answer is None else not answer
    answer = False if low > 0 or high < 0 else True if low == high == 0 else None
    return answer if fn == "eq" or answer is None else not answer


def decide_symbolic(fn: str, low: int, high: int) -> bool | None:
    """What low <= a - b <= high says of a comparison at all sizes."""
    above, below = certain(low - 1), certain(-1 - high)
    not_below, not_above = certain(low), certain(-high)
    yes, no = {
        "gt": (above, not_above), "le": (not_above, above),
        "ge": (not_below, below), "lt": (below, not_below),
        "eq": (not_below and not_above, above or below),
        "ne": (above or below, not_below and not_above),
    }[fn]  # fmt: skip
    return True if yes else False if no else None


def _arithmetic(fn: str, args: Sequence[Index]) -> Index | None:
    """The map over whole numbers as an index expression, where it is one."""
    if fn == "neg":
        return args[0] * -1
    if len(args) != 2:
        return None
    a, b = args
    match fn:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "min":
            return minimum(a, b)
        case "max":
            return maximum(a, b)
        case "mul" if b.is_constant:
            return a * b.constant
        case "mul" if a.is_constant:
            return b * a.constant
        case "mod" if b.is_constant and b.constant > 0:
            return modulo(a, b.constant)
        case "div" if b.is_constant and b.constant > 0 and certain(a.range[0]):
            return floordiv(a, b.constant)
    return None


__all__ = ["fold_constants", "is_exact"]
