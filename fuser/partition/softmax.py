"""Recognise softmax in primitives, whatever stands between them.

    p = exp(x - broadcast(max(x))) / broadcast(sum(exp(...)))
The quotient may be a matmul with a reciprocal, and casts may surround every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.graph.ir import Node, Value
from fuser.partition.nodes import VIEW, reduce_axes


@dataclass(frozen=True)
class Softmax:
    """scores: the operand. probabilities: the result. axis: the axis of both that is normalised."""

    scores: Value
    probabilities: Value
    axis: int
    maximum: Node
    total: Node


def match_softmax(probabilities: Value) -> Softmax | None:
    """The softmax that computes a value, if it is one along a single axis."""
    node = probabilities.node
    if node is None or node.op not in ("div", "mul"):
        return None
    pairs = [(node.inputs[0], node.inputs[1])]
    if node.op == "mul":
        pairs.append((node.inputs[1], node.inputs[0]))
    for powers, row in pairs:
        divisor = behind(row, VIEW)
        if node.op == "mul":
            if divisor.node is None or divisor.node.op != "reciprocal":
                continue
            divisor = behind(divisor.node.inputs[0], VIEW)
        found = _match_parts(probabilities, powers, divisor)
        if found is not None:
            return found
    return None


def _match_parts(probabilities: Value, powers: Value, divisor: Value) -> Softmax | None:
    total = divisor.node
    if total is None or total.op != "reduce_sum" or len(reduce_axes(total)) != 1:
        return None
    if total.inputs[0] is not powers or powers.node is None or powers.node.op != "exp":
        return None
    difference = powers.node.inputs[0].node
    if difference is None or difference.op != "sub":
        return None
    scores, peak = difference.inputs
    maximum = behind(peak, VIEW).node
    if maximum is None or maximum.op != "reduce_max" or maximum.inputs[0] is not scores:
        return None
    if reduce_axes(maximum) != reduce_axes(total) or peak.shape != scores.shape:
        return None
    return Softmax(scores, probabilities, reduce_axes(total)[0], maximum, total)


def behind(value: Value, ops: frozenset[str]) -> Value:
    """The value before a chain of single-operand primitives."""
    while value.node is not None and value.node.op in ops:
        value = value.node.inputs[0]
    return value
