"""Canonical forms of map primitives.

Float rules keep results within a rounding or two: a division by a constant becomes a product with
its reciprocal, x + 0.0 becomes x (it differs for -0.0 only).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.ir import Node, Value
from fuser.graph.ops.registry import PRIMITIVES
from fuser.graph.passes.rewrite import join_origins, producer, stretched_constant, uniform

Rule: TypeAlias = "Callable[[Builder, Node, tuple[Value, ...]], Value | None]"
Operands: TypeAlias = "tuple[Value, ...]"

_COMMUTE = {
    "add": "add", "mul": "mul", "min": "min", "max": "max", "eq": "eq", "ne": "ne", "lt": "gt",
    "gt": "lt", "le": "ge", "ge": "le", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
}  # fmt: skip


def commute(b: Builder, node: Node, operands: Operands) -> Value | None:
    """A constant on the left goes to the right."""
    lhs, rhs = operands
    if stretched_constant(lhs) is None or stretched_constant(rhs) is not None:
        return None
    return b.emit(_COMMUTE[node.op], rhs, lhs)


def _scalar(value: Value) -> float | None:
    """The number that a constant is throughout, else None."""
    fill = uniform(value)
    return None if fill is None else float(fill)


def drop_neutral(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x + 0, x - 0, x * 1, x / 1, x and true, x or false -> x."""
    x, rhs = operands
    neutral = {"add": 0, "sub": 0, "mul": 1, "div": 1, "logical_and": 1, "logical_or": 0}
    return x if _scalar(rhs) == neutral[node.op] else None


def absorb(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x and false -> false; x or true -> true; integer x * 0 -> 0."""
    x, rhs = operands
    absorbing = {"logical_and": 0.0, "logical_or": 1.0, "mul": 0.0}[node.op]
    if node.op == "mul" and x.dtype.is_float:
        return None  # 0 * inf is nan
    return rhs if _scalar(rhs) == absorbing else None


def negate(b: Builder, node: Node, operands: Operands) -> Value | None:
    """neg(neg(x)) -> x; 0 - x -> neg(x); x * -1 -> neg(x); x + neg(y) -> x - y."""
    if node.op == "neg":
        inner = producer(operands[0], "neg")
        return inner.inputs[0] if inner else None
    lhs, rhs = operands
    if node.op == "sub":
        inner = producer(rhs, "neg")
        if inner is not None:
            return b.emit("add", lhs, inner.inputs[0])
        return b.emit("neg", rhs) if _scalar(lhs) == 0 else None
    if node.op == "mul":
        signed = node.output.dtype.kind in ("float", "int")
        return b.emit("neg", lhs) if signed and _scalar(rhs) == -1 else None
    inner = producer(rhs, "neg")
    return b.emit("sub", lhs, inner.inputs[0]) if inner else None


def _fill(b: Builder, value: float, like: Value) -> Value:
    return b.full(value, like.type)


def _rounds_well(value: float, like: Value) -> bool:
    """Whether value keeps float32 accuracy in the dtype of like: 1/3 does not in float16."""
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(value).astype(like.dtype.numpy))
    return np.isfinite(rounded) and abs(rounded - value) <= 2.0**-23 * abs(value)


def divide_by_constant(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x / c -> x * (1/c) for a float number c whose reciprocal the dtype holds well."""
    x, rhs = operands
    divisor = _scalar(rhs)
    if divisor is None or not x.dtype.is_float or divisor == 0 or not np.isfinite(divisor):
        return None
    if not _rounds_well(1.0 / divisor, x):
        return None
    return b.emit("mul", x, _fill(b, 1.0 / divisor, x))


def reciprocal_forms(b: Builder, node: Node, operands: Operands) -> Value | None:
    """1 / x -> reciprocal(x); reciprocal(sqrt(x)) -> rsqrt(x)."""
    if node.op == "div":
        lhs, rhs = operands
        if _scalar(lhs) == 1 and lhs.dtype.is_float:
            return b.emit("reciprocal", rhs)
        return None
    inner = producer(operands[0], "sqrt")
    if inner is None:
        return None
    b.origin = join_origins(inner, node)
    return b.emit("rsqrt", inner.inputs[0])


def divide_by_root(b: Builder, node: Node, operands: Operands) -> Value | None:
    """x / broadcast(sqrt(v)) -> x * broadcast(rsqrt(v)): the norms, one division a row."""
    x, rhs = operands
    stretched = producer(rhs, "broadcast")
    root = producer(stretched.inputs[0], "sqrt") if stretched else None
    if stretched is None or root is None:
        return None
    b.origin = join_origins(root, node)
    scale = b.emit("rsqrt", root.inputs[0])
    return b.emit("mul", x, b.broadcast(scale, rhs.type.shape, stretched.attrs["axes"]))


def reduce_power(b: Builder, node: Node, operands: Operands) -> Value | None:
    """pow with a constant exponent -> products, roots and reciprocals."""
    x, rhs = operands
    exponent = _scalar(rhs)
    if exponent is None:
        return None
    if exponent == 1:
        return x
    if exponent in (2, 3):
        square = b.emit("mul", x, x)
        return square if exponent == 2 else b.emit("mul", square, x)
    if not x.dtype.is_float:
        return None
    # pow(-inf, 0.5) is inf and pow(-0.0, 0.5) is 0.0 where the roots differ: nothing relies on it.
    forms = {0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}
    return b.emit(forms[exponent], x) if exponent in forms else None


def merge_scale(b: Builder, node: Node, operands: Operands) -> Value | None:
    """mul(mul(x, c), d) -> mul(x, c * d) for float numbers c and d."""
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


def double_not(b: Builder, node: Node, operands: Operands) -> Value | None:
    inner = producer(operands[0], "logical_not")
    return inner.inputs[0] if inner else None


def sink_broadcast(b: Builder, node: Node, operands: Operands) -> Value | None:
    """map(broadcast(a), broadcast(c)) -> broadcast(map(a, c)), c a number or stretched like a.

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


def _with_sink(rules: dict[str, tuple[Rule, ...]]) -> dict[str, tuple[Rule, ...]]:
    """Every map primitive also sinks broadcasts and unsqueezes."""
    maps = [name for name, record in PRIMITIVES.items() if record.kind == "map"]
    return {op: (*rules.get(op, ()), sink_broadcast, sink_unsqueeze) for op in maps}


RULES = _with_sink(
    {
        "add": (commute, drop_neutral, negate),
        "sub": (drop_neutral, negate),
        "mul": (commute, drop_neutral, absorb, negate, merge_scale),
        "div": (drop_neutral, reciprocal_forms, divide_by_constant, divide_by_root),
        "pow": (reduce_power,),
        "neg": (negate,),
        "reciprocal": (reciprocal_forms,),
        "select": (simplify_select,),
        "logical_not": (double_not,),
        "logical_and": (commute, drop_neutral, absorb),
        "logical_or": (commute, drop_neutral, absorb),
        **{
            op: (commute,)
            for op in _COMMUTE
            if op not in ("add", "mul", "logical_and", "logical_or")
        },
    }
)
