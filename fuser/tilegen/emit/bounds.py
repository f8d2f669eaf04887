"""Bounds on scores: what a softmax may subtract in the place of its row maximum.

A softmax is the same whatever is subtracted from a row of scores, as long as exp neither overflows
nor loses the greatest of them. Where the part of the scores that comes from the matmul is bounded,

    s[i, j] = 30 * tanh(x[i, j]) + bias[j]                     between bias[j] - 30 and bias[j] + 30

a bound is known before the matmul is: 30 + the greatest bias of the row, at most 60 above the
row's maximum. Without a bias it is one number, and no maximum has to be kept at all.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from fuser.dtypes import DType
from fuser.graph import walks
from fuser.graph.ir import Node, Value
from fuser.tilegen.emit.constants import uniform
from fuser.tilegen.emit.maps import Coords, backward
from fuser.tilegen.emit.space import Emission, Piece

MOST_SLACK = 64.0
"""A bound this far above a maximum leaves exp(-64) = 2^-92 for it: a product with a value of 2^-34
is still a normal float32, or bfloat16. float16 has no such range."""

ROOM = 8.0
"""Probabilities may be as great as exp(8) relative to what is subtracted."""
MOVES = ("cast", "reshape", "transpose", "broadcast", "slice")
Range = tuple[float, float]


def constant_bound(em: Emission, scores: Value, origin: Value) -> float | None:
    """A number that no score made of the matmul `origin` is above, nor more than MOST_SLACK below
    unless it is -inf; None where there is none."""
    walk, value = _Scores(em, origin), scores
    while value is not origin and walk.depends(value):
        interval = walk.range(value)
        if interval is not None:
            return interval[1] if interval[1] - interval[0] <= MOST_SLACK else None
        node = value.node
        assert node is not None
        if node.op == "select":
            _, a, b = node.inputs
            hidden, value = (a, b) if walk.depends(b) else (b, a)
            if _number(em, hidden) != -math.inf:
                return None
        elif node.op in MOVES and len(node.inputs) == 1:
            value = node.inputs[0]
        else:
            return None
    return None


def upper_bound(
    em: Emission, scores: Value, coords: Coords, origin: Value, axes: frozenset[int]
) -> Piece | None:
    """What no score at `coords` is above, nor more than MOST_SLACK below, made without the matmul
    `origin`; None where there is none that changes along `axes` alone, but for masks."""
    found = _Scores(em, origin).bound(scores, coords)
    if found is None or found.slack > MOST_SLACK or not found.axes <= axes:
        return None
    schedule = em.b.kernel.schedule  # a back end may take any number between both
    em.b.kernel.schedule = dataclasses.replace(schedule, bounded_scores=True)
    return found.upper


def raised(em: Emission, old: Piece, new: Piece) -> Piece:
    """What is subtracted from now on, after `old`, where the scores so far are bounded by `new`: it
    may stay behind by ROOM, so that sums are seldom scaled."""
    best = em.map("max", old, new)
    near = em.map("le", best, em.map("add", old, Piece(old.dtype, splat=ROOM)))
    return em.map("select", near, old, best)


def keeps_range(dtype: DType) -> bool:
    """Whether probabilities of a dtype may be far below 1."""
    return dtype.name in ("f32", "bf16", "f64")


def may_mask(em: Emission, scores: Value, origin: Value) -> bool:
    """Whether a score may be -inf: there is a select or a non-scalar sum in the score code."""
    pending: list[Value] = [scores]
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        node: Node | None = value.node
        if value in seen or value is origin or node is None:
            continue
        seen.add(value)
        if not em.is_inside(value):
            return uniform(value) is None
        if node.op in ("select", "add", "sub", "log", "max", "min", "concat"):
            return True
        pending.extend(node.inputs)
    return False


def _number(em: Emission, value: Value) -> float | None:
    """The one number that a value is, behind movement."""
    while em.is_inside(value) and value.node is not None and value.node.op in MOVES:
        value = value.node.inputs[0]
    number = uniform(value)
    return None if number is None else float(number)


@dataclass(frozen=True)
class _Bound:
    """upper: no score is above it; slack: nor so far below it. axes: of what is added."""

    upper: Piece
    slack: float
    axes: frozenset[int]


class _Scores:
    def __init__(self, em: Emission, origin: Value) -> None:
        self.em, self.origin = em, origin
        self._depends: dict[Value, bool] = {origin: True}
        self._ranges: dict[Value, Range | None] = {}

    def depends(self, value: Value) -> bool:
        """Whether a value is made of the matmul."""
        for part in walks.post_order(value, self._inputs, self._depends):
            self._depends[part] = any(self._depends[v] for v in self._inputs(part))
        return self._depends[value]

    def _inputs(self, value: Value) -> tuple[Value, ...]:
        return value.node.inputs if value.node and self.em.is_inside(value) else ()

    def range(self, value: Value) -> Range | None:
        """The numbers between which a value lies, whatever the matmul is (but for NaN)."""
        for part in walks.post_order(value, self._inputs, self._ranges):
            self._ranges[part] = self._range(part)
        return self._ranges[value]

    def _range(self, value: Value) -> Range | None:
        number = uniform(value)
        if number is not None:
            return float(number), float(number)
        node = value.node
        if node is None or not self.em.is_inside(value) or not value.dtype.is_float:
            return None
        if node.op in ("tanh", "erf", "sin", "cos"):
            return -1.0, 1.0
        inner = [self._ranges[v] for v in node.inputs]
        if node.op in MOVES:
            return inner[0]
        if node.op in ("min", "max"):
            return _clipped(node.op, *inner)
        known = [item for item in inner if item is not None]
        if len(known) < len(inner):
            return None
        match node.op:
            case "neg":
                return -known[0][1], -known[0][0]
            case "add":
                return known[0][0] + known[1][0], known[0][1] + known[1][1]
            case "sub":
                return known[0][0] - known[1][1], known[0][1] - known[1][0]
            case "mul":
                ends = [a * b for a in known[0] for b in known[1]]
                return min(ends), max(ends)
            case "div" if known[1][0] == known[1][1] != 0:
                ends = [a / known[1][0] for a in known[0]]
                return min(ends), max(ends)
        return None

    def bound(self, value: Value, coords: Coords) -> _Bound | None:
        em = self.em
        interval = self.range(value) if self.depends(value) else None
        if interval is not None:
            low, high = interval
            return _Bound(Piece(value.dtype.compute, splat=high), high - low, frozenset())
        if value is self.origin:
            return None
        if not self.depends(value):
            piece = em.tile(value, coords)
            return _Bound(piece, 0.0, frozenset(piece.axes))
        node = value.node
        assert node is not None
        if node.op in ("add", "sub"):
            left, right = node.inputs
            if node.op == "sub" and self.depends(right):
                return None
            return self._joined(node.op, self.bound(left, coords), self.bound(right, coords))
        if node.op == "select" and not self.depends(node.inputs[0]):
            sides = [self.bound(v, coords) for v in node.inputs[1:]]
            a, b = sides
            if a is None or b is None:
                return None
            upper = em.map("select", em.tile(node.inputs[0], coords), a.upper, b.upper)
            return _Bound(upper, max(a.slack, b.slack), a.axes | b.axes)
        if len(node.inputs) != 1:
            return None
        moved = coords if node.op == "cast" else backward(node, coords)
        return None if moved is None else self.bound(node.inputs[0], moved)

    def _joined(self, fn: str, a: _Bound | None, b: _Bound | None) -> _Bound | None:
        if a is None or b is None:
            return None
        upper = self.em.map(fn, a.upper, b.upper)
        return _Bound(upper, a.slack + b.slack, a.axes | b.axes)


def _clipped(op: str, a: Range | None, b: Range | None) -> Range:
    """The range of min(a, b) or max(a, b), of which one may be unknown."""
    pick = min if op == "min" else max
    (low, high), (least, most) = (item or (-math.inf, math.inf) for item in (a, b))
    return pick(low, least), pick(high, most)
