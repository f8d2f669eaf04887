"""Canonical forms of map primitives."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.ir import Node, Value
from fuser.graph.ops.registry import PRIMITIVES
from fuser.graph.passes.rewrite import join_origins, producer, stretched_constant, uniform
from fuser.graph.passes.rule import Example, Kind, Operands, Rule, Sample, rule

_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_SYMMETRIC = ("add", "mul", "min", "max", "eq", "ne")
_LOGIC = ("logical_and", "logical_or", "logical_xor")
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")

_NUMBERS: tuple[Kind, ...] = ("float", "int")


# parts of examples --------------------------------------------------------------------------------


def _right(op: str, *kinds: Kind) -> Example:
    """op(x, a number)."""
    return Example(lambda s: s.b.emit(op, s.tensor(), s.number()), kinds or ("float",))


def _left(op: str, *kinds: Kind) -> Example:
    """op(a number, x)."""
    return Example(lambda s: s.b.emit(op, s.number(), s.tensor()), kinds or ("float",))


def _of(make: Callable[[Sample], Value], *kinds: Kind) -> Example:
    return Example(make, kinds or ("float",))


# what rules ask -----------------------------------------------------------------------------------


def _scalar(value: Value) -> float | None:
    """The number that a constant is throughout, else None."""
    fill = uniform(value)
    return None if fill is None else float(fill)


def _is(value: Value, number: float) -> bool:
    """Whether a constant is a number throughout; a float zero must have its sign."""
    found = _scalar(value)
    if found != number:
        return False
    return not value.dtype.is_float or math.copysign(1.0, found) == math.copysign(1.0, number)


_SEEN = 6
"""Nodes that `is_nonnegative` looks through."""


def is_nonnegative(value: Value, depth: int = _SEEN) -> bool:
    """Whether a float is known to be 0 (not -0), more, or nan: squares, their sums, variances."""
    number = _scalar(value)
    if number is not None:
        return number > 0 or _is(value, 0.0)
    node = value.node
    if node is None or not depth or not node.inputs:
        return False
    parts = [partial(is_nonnegative, part, depth - 1) for part in node.inputs]
    match node.op:
        case "exp" | "abs":
            return True
        case "mul":
            return node.inputs[0] is node.inputs[1] or all(part() for part in parts)
        case "add" | "div" | "max" | "reduce_sum" | "sqrt" | "broadcast" | "reshape" | "cast":
            return node.inputs[0].dtype.is_float and all(part() for part in parts)
    return False


def _fill(b: Builder, value: float, like: Value) -> Value:
    return b.full(value, like.type)


def _rounds_well(value: float, like: Value) -> bool:
    """Whether value keeps float32 accuracy in the dtype of like: 1/3 does not in float16."""
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(value).astype(like.dtype.numpy))
    return np.isfinite(rounded) and abs(rounded - value) <= 2.0**-23 * abs(value)


# numbers that stand somewhere ---------------------------------------------------------------------


@rule(
    "exact", (*_SYMMETRIC, *_MIRRORED, *_LOGIC, *_BITWISE),
    *(_left(op, *_NUMBERS) for op in (*_SYMMETRIC, *_MIRRORED)),
    *(_left(op, "bool") for op in _LOGIC), *(_left(op, "int") for op in _BITWISE),
)  # fmt: skip
def commute(b: Builder, node: Node, operands: Operands) -> Value | None:
    """op(c, x) -> op(x, c): constants stand on the right."""
    lhs, rhs = operands
    if stretched_constant(lhs) is None or stretched_constant(rhs) is not None:
        return None
    return b.emit(_MIRRORED.get(node.op, node.op), rhs, lhs)


@rule(
    "exact", ("add", "sub", "mul", "div", "logical_and", "logical_or"),
    *(_right(op, *_NUMBERS) for op in ("add", "sub", "mul", "div")),
    *(_right(op, "bool") for op in ("logical_and", "logical_or")),
)  # fmt: skip
def drop_neutral(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x + (-0), x - 0, x * 1, x / 1, x and true, x or false -> x; integer x + 0 -> x."""
    x, rhs = operands
    neutral = {"add": -0.0, "sub": 0.0, "mul": 1, "div": 1, "logical_and": 1, "logical_or": 0}
    return x if _is(rhs, neutral[node.op]) else None


@rule("fast", ("add", "sub"), _right("add"), _right("sub"))
def drop_zero(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x + 0 -> x, x - (-0) -> x: another zero where x is -0."""
    x, rhs = operands
    return x if x.dtype.is_float and _scalar(rhs) == 0 else None


@rule(
    "exact", ("mul", "logical_and", "logical_or"),
    _right("mul", "int"), _right("logical_and", "bool"), _right("logical_or", "bool"),
)  # fmt: skip
def absorb(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x and false -> false; x or true -> true; integer x * 0 -> 0."""
    x, rhs = operands
    absorbing = {"logical_and": 0.0, "logical_or": 1.0, "mul": 0.0}[node.op]
    if node.op == "mul" and x.dtype.is_float:
        return None  # 0 * inf is nan
    return rhs if _scalar(rhs) == absorbing else None


# signs --------------------------------------------------------------------------------------------


@rule(
    "exact", ("neg", "sub", "add", "mul"),
    _of(lambda s: s.b.emit("neg", s.b.emit("neg", s.tensor())), *_NUMBERS),
    _of(lambda s: s.b.emit("sub", s.tensor(), s.b.emit("neg", s.tensor())), *_NUMBERS),
    _of(lambda s: s.b.emit("add", s.tensor(), s.b.emit("neg", s.tensor())), *_NUMBERS),
    _left("sub", *_NUMBERS), _right("mul", *_NUMBERS),
)  # fmt: skip
def negate(b: Builder, node: Node, operands: Operands) -> Value | None:
    """-(-x) -> x; -0 - x -> -x (integer 0 - x, too); x * -1 -> -x; x +- (-y) -> x -+ y."""
    if node.op == "neg":
        inner = producer(operands[0], "neg")
        return inner.inputs[0] if inner else None
    lhs, rhs = operands
    if node.op == "mul":
        signed = node.output.dtype.kind in ("float", "int")
        return b.emit("neg", lhs) if signed and _scalar(rhs) == -1 else None
    inner = producer(rhs, "neg")
    if inner is not None:
        return b.emit("add" if node.op == "sub" else "sub", lhs, inner.inputs[0])
    return b.emit("neg", rhs) if node.op == "sub" and _is(lhs, -0.0) else None


@rule("fast", ("sub",), _left("sub"))
def negate_from_zero(b: Builder, node: Node, operands: Operands) -> Value | None:
    """0 - x -> -x: another zero where x is 0."""
    lhs, rhs = operands
    return b.emit("neg", rhs) if _scalar(lhs) == 0 else None


# divisions, powers, roots -------------------------------------------------------------------------


@rule("exact", ("div",), _right("div"))
def divide_by_power_of_two(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x / c -> x * (1 / c) where the dtype holds 1 / c."""
    x, rhs = operands
    divisor = _scalar(rhs)
    if divisor is None or not x.dtype.is_float or abs(math.frexp(divisor)[0]) != 0.5:
        return None
    inverse = 1.0 / divisor
    with np.errstate(over="ignore"):
        held = float(np.asarray(inverse).astype(x.dtype.numpy)) == inverse
    return b.emit("mul", x, _fill(b, inverse, x)) if held else None


@rule("fast", ("div",), _right("div"))
def divide_by_constant(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x / c -> x * (1 / c) where the dtype holds 1 / c to float32's accuracy."""
    x, rhs = operands
    divisor = _scalar(rhs)
    if divisor is None or not x.dtype.is_float or divisor == 0 or not np.isfinite(divisor):
        return None
    if not _rounds_well(1.0 / divisor, x):
        return None
    return b.emit("mul", x, _fill(b, 1.0 / divisor, x))


@rule("exact", ("div",), _left("div"))
def divide_one(b: Builder, node: Node, operands: Operands) -> Value | None:
    """1 / x -> reciprocal(x)."""
    lhs, rhs = operands
    return b.emit("reciprocal", rhs) if lhs.dtype.is_float and _is(lhs, 1.0) else None


@rule("wider", ("reciprocal",), _of(lambda s: s.b.emit("reciprocal", s.b.emit("sqrt", s.tensor()))))
def reciprocal_root(b: Builder, node: Node, operands: Operands) -> Value | None:
    """1 / sqrt(x) -> rsqrt(x), which rounds the root to float32."""
    inner = producer(operands[0], "sqrt")
    if inner is None:
        return None
    b.origin = join_origins(inner, node)
    return b.emit("rsqrt", inner.inputs[0])


def _by_root(s: Sample) -> Value:
    x = s.tensor(3, 2)
    root = s.b.emit("sqrt", s.tensor(3))
    return s.b.emit("div", x, s.b.broadcast(root, (3, 2), (0,)))


@rule("fast", ("div",), _of(_by_root))
def divide_by_root(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x / broadcast(sqrt(v)) -> x * broadcast(rsqrt(v)): one division a row."""
    x, rhs = operands
    stretched = producer(rhs, "broadcast")
    root = producer(stretched.inputs[0], "sqrt") if stretched else None
    if stretched is None or root is None:
        return None
    b.origin = join_origins(root, node)
    scale = b.emit("rsqrt", root.inputs[0])
    return b.emit("mul", x, b.broadcast(scale, rhs.type.shape, stretched.attrs["axes"]))


@rule("exact", ("pow",), _right("pow", *_NUMBERS))
def reduce_power(b: Builder, node: Node, operands: Operands) -> Value | None:
    """pow(x, 1) -> x; pow(x, 2) -> x * x; integer pow(x, 3) -> x * x * x."""
    x, rhs = operands
    exponent = _scalar(rhs)
    if exponent == 1:
        return x
    if exponent == 2 or (exponent == 3 and not x.dtype.is_float):
        square = b.emit("mul", x, x)
        return square if exponent == 2 else b.emit("mul", square, x)
    return None


def _of_magnitude(s: Sample) -> Value:
    return s.b.emit("pow", s.b.emit("abs", s.tensor()), s.number())


@rule("function", ("pow",), _right("pow"), _of(_of_magnitude))
def power_of_float(b: Builder, node: Node, operands: Operands) -> Value | None:
    """pow(x, 3), pow(x, 1/2), pow(x, -1), pow(x, -1/2) -> products, roots and reciprocals."""
    x, rhs = operands
    exponent = _scalar(rhs)
    if not x.dtype.is_float:
        return None
    if exponent == 3:
        return b.emit("mul", b.emit("mul", x, x), x)
    if exponent == -1:
        return b.emit("reciprocal", x)
    if exponent not in (0.5, -0.5):
        return None
    if is_nonnegative(x):
        return b.emit("sqrt" if exponent > 0 else "rsqrt", x)
    # a root of -0 is -0, and one of -inf is nan: the power of -0 is that of 0, of -inf that of inf
    root = b.emit("sqrt" if exponent > 0 else "rsqrt", b.emit("add", x, _fill(b, 0.0, x)))
    infinite = b.emit("eq", x, _fill(b, -math.inf, x))
    return b.emit("select", infinite, _fill(b, math.inf if exponent > 0 else 0.0, x), root)


@rule(
    "fast", ("mul",),
    _of(lambda s: s.b.emit("mul", s.b.emit("mul", s.tensor(), s.number()), s.number())),
)  # fmt: skip
def merge_scale(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x * c * d -> x * (c * d)."""
    lhs, rhs = operands
    inner = producer(lhs, "mul")
    outer_factor = _scalar(rhs)
    if inner is None or outer_factor is None or not lhs.dtype.is_float:
        return None
    inner_factor = _scalar(inner.inputs[1])
    if inner_factor is None:
        return None
    factor = inner_factor * outer_factor
    if not _rounds_well(factor, lhs) or (factor == 0) != (inner_factor == 0 or outer_factor == 0):
        return None
    b.origin = join_origins(inner, node)
    return b.emit("mul", inner.inputs[0], _fill(b, factor, lhs))


# conditions ---------------------------------------------------------------------------------------


def _choice(s: Sample, condition: Value) -> Value:
    return s.b.emit("select", condition, s.tensor(), s.tensor())


def _same_branches(s: Sample) -> Value:
    x = s.tensor()
    return s.b.emit("select", s.b.emit("lt", x, s.number()), x, x)


@rule(
    "exact", ("select",),
    _of(_same_branches, *_NUMBERS),
    _of(lambda s: _choice(s, s.b.emit("lt", s.number(), s.number())), *_NUMBERS),
    _of(
        lambda s: _choice(s, s.b.emit("logical_not", s.b.emit("lt", s.tensor(), s.number()))),
        *_NUMBERS,
    ),
)  # fmt: skip
def simplify_select(b: Builder, node: Node, operands: Operands) -> Value | None:
    """A constant condition, equal branches, a negated condition."""
    condition, on_true, on_false = operands
    if on_true is on_false:
        return on_true
    known = _scalar(condition)
    if known is not None:
        return on_true if known else on_false
    inner = producer(condition, "logical_not")
    if inner is not None:
        return b.emit("select", inner.inputs[0], on_false, on_true)
    return None


@rule(
    "exact", ("logical_not",),
    _of(lambda s: s.b.emit("logical_not", s.b.emit("logical_not", s.tensor())), "bool"),
)  # fmt: skip
def double_not(b: Builder, node: Node, operands: Operands) -> Value | None:
    """not not x -> x."""
    inner = producer(operands[0], "logical_not")
    return inner.inputs[0] if inner else None


# movement before maps -----------------------------------------------------------------------------

_MAPS = tuple(name for name, record in PRIMITIVES.items() if record.kind == "map")


def _stretched_map(s: Sample) -> Value:
    x, y = (s.b.broadcast(s.tensor(3), (3, 2), (0,)) for _ in range(2))
    return s.b.emit("add", s.b.emit("mul", x, y), s.b.broadcast(s.tensor(3), (3, 2), (0,)))


@rule("exact", _MAPS, _of(_stretched_map, *_NUMBERS))
def sink_broadcast(b: Builder, node: Node, operands: Operands) -> Value | None:
    """map(broadcast(x), broadcast(y)) -> broadcast(map(x, y)), y a number or stretched like x.

    The map then runs on fewer elements, and constants meet constants.
    """
    stretched = [producer(value, "broadcast") for value in operands]
    if not all(stretched):
        return None
    nodes = [part for part in stretched if part is not None]
    leader = max(nodes, key=lambda part: len(part.attrs["axes"]))
    source, axes = leader.inputs[0], leader.attrs["axes"]
    parts: list[Value] = []
    for part in nodes:
        value = part.inputs[0]
        if value.type.rank == 0 and source.type.rank:
            parts.append(b.broadcast(value, source.type.shape, ()))
        elif part.attrs["axes"] == axes and value.type.shape == source.type.shape:
            parts.append(value)
        else:
            return None
    small = b.emit(node.op, *parts, **node.attrs)
    return b.broadcast(small, node.output.type.shape, axes)


def _unsqueezed_map(s: Sample) -> Value:
    return s.b.emit("neg", s.b.emit("reshape", s.tensor(3), shape=(1, 3)))


@rule("exact", _MAPS, _of(_unsqueezed_map, *_NUMBERS))
def sink_unsqueeze(b: Builder, node: Node, operands: Operands) -> Value | None:
    """map(reshape(x), c) -> reshape(map(x, c)) where the reshape only inserts dims of 1.

    The statistics of a norm whose exporter kept the reduced axis then meet their broadcast.
    """
    inner = [producer(value, "reshape") for value in operands]
    sources = {part.inputs[0].type.shape for part in inner if part is not None}
    if len(sources) != 1:
        return None
    shape = sources.pop()
    if len(shape) >= node.output.type.rank or [d for d in shape if d != 1] != [
        d for d in node.output.type.shape if d != 1
    ]:
        return None
    parts: list[Value] = []
    for value, part in zip(operands, inner, strict=True):
        stretched = producer(value, "broadcast")
        if part is not None:
            parts.append(part.inputs[0])
        elif stretched is not None and stretched.inputs[0].type.rank == 0:
            parts.append(b.broadcast(stretched.inputs[0], shape, ()))
        else:
            return None
    return b.reshape(b.emit(node.op, *parts, **node.attrs), node.output.type.shape)


RULES: tuple[Rule, ...] = (
    commute, drop_neutral, drop_zero, absorb, negate, negate_from_zero, merge_scale,
    divide_one, divide_by_power_of_two, divide_by_constant, divide_by_root, reduce_power,
    power_of_float, reciprocal_root, simplify_select, double_not, sink_broadcast, sink_unsqueeze,
)  # fmt: skip
"""In the order in which they are tried."""
