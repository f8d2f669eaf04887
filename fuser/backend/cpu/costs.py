"""What it costs to evaluate a value: memory instructions a vector, instructions of its tree."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu import affine, tree
from fuser.backend.cpu.tree import Facts
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar
from fuser.tilegen.ir import INDEX, TileType, Value

_EXPENSIVE = {
    "exp": 12, "log": 16, "tanh": 18, "erf": 20, "sin": 24, "cos": 24, "tan": 32, "pow": 40,
    "asin": 24, "acos": 24, "atan": 20, "sinh": 24, "cosh": 24, "asinh": 32, "acosh": 32,
    "atanh": 32, "div": 4, "sqrt": 6, "rsqrt": 10, "reciprocal": 4, "mod": 20, "fmod": 20,
}  # fmt: skip


def probe(shape: Sequence[int], axis: int, width: int) -> tuple[Index, ...]:
    """A point with its lane along `axis`, other axes at counters, to be looked at, not emitted."""
    coords = []
    for position, extent in enumerate(shape):
        value = Value(TileType(INDEX), f"probe{position}", 0, max(0, extent - 1))
        here = Index(0) if extent == 1 else Index(0, ((Scalar(value), 1),))
        if position == axis:
            lanes = min(width, extent)
            value.multiple = width
            value.high = max(0, (extent - 1) // width * width)
            here = (Index(0) if extent <= width else here) + affine.lane(lanes)
        coords.append(here)
    return tuple(coords)


_Costs = dict[tuple[Value, tuple[Index, ...]], float]


def lane_cost(
    facts: Facts,
    value: Value,
    coords: Sequence[Index],
    width: int,
    defined: bool = False,
    known: _Costs | None = None,
) -> float:
    """Memory instructions of one vector of the value: 1 if consecutive, 0 if equal in all lanes.

    defined: of its definition, where it is to be kept but has no place yet. known: costs of
    operands met before at this width: what has many users counts many times, worked out once.
    """
    if not defined and (facts.kind(value) == "memory" or value in facts.spilled):
        return access_cost(tree.memory_address(facts, value, coords), width)
    kept = defined and isinstance(facts.producers.get(value), ops.Map | ops.Cast | ops.Load)
    if facts.kind(value) != "inline" and not kept:
        return 0.0
    op = facts.producers.get(value)
    if op is None:
        return 0.0
    total = 0.0
    if isinstance(op, ops.Load):
        total = access_cost(tree.address_of(facts, op, coords), width)
        if any(
            affine.has_lane(c) for _, point in tree.operands_at(facts, op, coords) for c in point
        ):
            total = width
    known = {} if known is None else known
    for key in tree.operands_at(facts, op, coords):
        if key not in known:
            known[key] = lane_cost(facts, *key, width, known=known)
        total += known[key]
    return total


def access_cost(address: Index, width: int) -> float:
    step = affine.lane_form(address).step
    return 0.0 if step == 0 else 1.0 if step == 1 else float(width)


def choose_axis(
    facts: Facts,
    shape: Sequence[int],
    values: Sequence[Value],
    width: int,
    stores: Sequence[ops.Store | ops.AtomicAdd] = (),
    banned: int = -1,
) -> tuple[int, float]:
    """The axis to vectorise for evaluating `values` over `shape`, and its cost for one element.

    -1 where no axis has more than one element.
    """
    best, best_cost = -1, float("inf")
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1 or axis == banned:
            continue
        coords = probe(shape, axis, width)
        lanes = min(width, shape[axis])
        known: _Costs = {}
        cost = sum(lane_cost(facts, value, coords, lanes, known=known) for value in values)
        cost += sum(access_cost(tree.address_of(facts, op, coords), lanes) for op in stores)
        cost = (cost + 0.5) / lanes
        if cost < best_cost * 0.99:
            best, best_cost = axis, cost
    return best, best_cost


def tree_cost(facts: Facts, value: Value, known: dict[Value, float] | None = None) -> float:
    """Instructions to compute one vector of an inline value. known: costs of values met before."""
    if facts.kind(value) != "inline":
        return 1.0
    known = {} if known is None else known
    if value not in known:
        known[value] = _tree_cost(facts, value, known)
    return known[value]


def _tree_cost(facts: Facts, value: Value, known: dict[Value, float]) -> float:
    op = facts.producers.get(value)
    match op:
        case ops.Load():
            return 1.0 + sum(8.0 for index in op.indices for _ in tree.lookups(index))
        case ops.Map():
            own = _EXPENSIVE.get(op.fn, 1)
            if value.dtype.is_integer and op.fn in ("div", "mod", "fmod"):
                own = 100
            return own + sum(tree_cost(facts, arg, known) for arg in op.args)
        case ops.Cast():
            return 1.0 + tree_cost(facts, op.x, known)
        case ops.Broadcast() | ops.Permute():
            return tree_cost(facts, op.x, known)
        case ops.Reshape():
            return tree_cost(facts, op.x, known)
        case ops.IndexTile():
            # Positions mostly fold into constants and sums that leave the loop.
            return sum(8.0 for _ in tree.lookups(op.expression))
        case _:
            return 0.0
