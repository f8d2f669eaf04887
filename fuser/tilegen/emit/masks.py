"""Which keys a block of query rows can see: bounds of the loop over keys, read off the mask code.

A mask is recognised where the score code ends in select(condition, scores, low), its mirror, or
scores + select(condition, 0, low), and the condition compares positions (causal, windows). Keys
that no row of the block sees need no work: their probability is exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.graph import walks
from fuser.graph.ir import Node, Value
from fuser.graph.sizes import certain
from fuser.tilegen.emit.constants import Triangle, triangle, uniform
from fuser.tilegen.emit.maps import Coords, backward
from fuser.tilegen.emit.primitives import index_of
from fuser.tilegen.emit.space import Emission
from fuser.tilegen.index import Axis, Index, maximum, minimum

COMPARISONS = ("ge", "gt", "le", "lt")
LOW = -1e4
"""A score this far below every other has probability 0 in float32."""


_Condition = tuple[Value, Coords, bool]


@dataclass(frozen=True)
class Mask:
    """condition holds where a key is seen (or, if `inverted`, where not); low is the score else."""

    condition: Value
    coords: Coords
    inverted: bool
    low: float


def key_bounds(
    em: Emission, scores: Value, coords: Coords, origin: Value, key: Axis, keys: int, block: int
) -> tuple[Index, Index]:
    """(start, stop) of the keys that any row may see, start a multiple of `block`.

    coords: coordinates of the scores, where `key` is the atom that runs over all keys.
    """
    whole = Index(0), Index(keys)
    mask = _find_mask(em, scores, coords, origin)
    if mask is None:
        return whole
    limits: list[Index] = []
    known = _constraints(em, mask.condition, mask.coords, mask.inverted, limits)
    start, stop = whole
    for limit in limits:  # a key is seen only where limit >= 0
        factor = limit.coefficient(key)
        rest = limit - Index(0, ((key, 1),)) * factor
        if abs(factor) != 1 or key.axis in rest.axes():
            continue
        if factor == -1:
            if mask.low != float("-inf") and (
                not certain(rest.range[0]) or not known or len(limits) > 1
            ):
                return whole  # a row that sees nothing spreads over all keys: keep them
            most = _extreme(rest, 1)
            stop = stop if most is None else minimum(stop, most + 1)
        elif mask.low == float("-inf"):
            least = _extreme(rest * -1, -1)
            if least is not None:
                start = maximum(start, (least // block) * block)
    return start, stop


def _find_mask(em: Emission, value: Value, coords: Coords, origin: Value) -> Mask | None:
    """The mask at the end of the score code, behind movement and casts."""
    while em.is_inside(value) and value is not origin:
        node = value.node
        assert node is not None
        if node.op == "select":
            condition, a, b = node.inputs
            for other, inverted in ((b, False), (a, True)):
                low = _number(em, other)
                if low is not None and low <= LOW:
                    return Mask(condition, coords, inverted, low)
            return None
        if node.op == "add":
            return _added_mask(em, node, coords)
        moved = coords if node.op == "cast" else _moved(node, coords)
        if moved is None:
            return None
        value, coords = node.inputs[0], moved
    return None


def _added_mask(em: Emission, node: Node, coords: Coords) -> Mask | None:
    """scores + select(condition, 0, low)."""
    for operand in node.inputs:
        value, at = operand, coords
        while em.is_inside(value) and value.node is not None and value.node.op != "select":
            moved = at if value.node.op == "cast" else _moved(value.node, at)
            if moved is None:
                break
            value, at = value.node.inputs[0], moved
        table = triangle(value)
        if table is not None and table.seen == 0 and table.unseen <= LOW:
            return Mask(value, at, False, float(table.unseen))
        if value.node is None or value.node.op != "select" or not em.is_inside(value):
            continue
        condition, a, b = value.node.inputs
        first, second = _number(em, a), _number(em, b)
        if first == 0 and second is not None and second <= LOW:
            return Mask(condition, at, False, second)
        if second == 0 and first is not None and first <= LOW:
            return Mask(condition, at, True, first)
    return None


def _constraints(
    em: Emission, value: Value, coords: Coords, inverted: bool, found: list[Index]
) -> bool:
    """Collect expressions that are >= 0 wherever the condition holds; whether that is all of it."""

    def sides(at: _Condition) -> list[_Condition]:
        condition, coords, inverted = at
        node = condition.node
        if node is None or not em.is_inside(condition) or _open_table(condition, inverted):
            return []
        if node.op == "logical_not":
            return [(node.inputs[0], coords, not inverted)]
        if node.op == ("logical_or" if inverted else "logical_and"):
            return [(side, coords, inverted) for side in node.inputs]
        if node.op in COMPARISONS:
            return []
        moved = _moved(node, coords)
        return [] if moved is None else [(node.inputs[0], moved, inverted)]

    whole = True
    for at in walks.reachable([(value, coords, inverted)], sides):
        if not sides(at):
            whole &= _constraint(em, *at, found)
    return whole


def _open_table(value: Value, inverted: bool) -> Triangle | None:
    """The triangle that a constant condition is, where it holds on its seen side."""
    table = triangle(value)
    return table if table is not None and not inverted and table.seen is not False else None


def _constraint(
    em: Emission, value: Value, coords: Coords, inverted: bool, found: list[Index]
) -> bool:
    """`_constraints` of a condition that is not made of others."""
    table = _open_table(value, inverted)
    if table is not None:
        found.append(coords[table.row] + table.shift - coords[table.column])
        return True
    node = value.node
    if node is None or not em.is_inside(value):
        return False
    if node.op in COMPARISONS:
        a, b = (index_of(em, operand, coords) for operand in node.inputs)
        if a is None or b is None:
            return False
        op = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}[node.op] if inverted else node.op
        difference = a - b if op in ("ge", "gt") else b - a
        found.append(difference if op in ("ge", "le") else difference - 1)
        return True
    return False


def _moved(node: Node, coords: Coords) -> Coords | None:
    return backward(node, coords) if len(node.inputs) == 1 else None


def _number(em: Emission, value: Value) -> float | None:
    """The one number that a value is, behind movement."""
    while em.is_inside(value) and value.node is not None and len(value.node.inputs) == 1:
        if value.node.op not in ("reshape", "transpose", "broadcast", "cast"):
            return None
        value = value.node.inputs[0]
    number = uniform(value)
    return None if number is None else float(number)


def _extreme(expression: Index, sign: int) -> Index | None:
    """The greatest (sign 1) or least (-1) value over the tile: axes replaced by an end."""
    result = Index(expression.constant)
    for atom, coefficient in expression.terms:
        if isinstance(atom, Axis):
            if coefficient * sign > 0:
                result = result + coefficient * (atom.extent - 1)
        elif Index(0, ((atom, 1),)).axes():
            return None
        else:
            result = result + Index(0, ((atom, coefficient),))
    return result
