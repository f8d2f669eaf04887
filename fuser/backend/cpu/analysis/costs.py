"""What it costs to evaluate a value: memory instructions a vector, instructions of its tree."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu.analysis import affine, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar
from fuser.tilegen.ir import Op
from fuser.tilegen.value import INDEX, TileType, Value

MOST_COST = 1e300
"""Where costs end: what has two users counts twice, and so 2^n times after n of its kind."""

_EXPENSIVE = {
    "exp": 12, "exp2": 12, "log": 16, "log2": 18, "tanh": 18, "erf": 20, "sin": 24, "cos": 24,
    "tan": 32, "pow": 40,
    "asin": 24, "acos": 24, "atan": 20, "sinh": 24, "cosh": 24, "asinh": 32, "acosh": 32,
    "atanh": 32, "div": 4, "sqrt": 6, "rsqrt": 10, "reciprocal": 4, "mod": 20, "fmod": 20,
    "bits_float": 0, "float_bits": 0,
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


_Wanted = tuple[Value, tuple[Index, ...]]


def lane_cost(
    facts: Facts,
    value: Value,
    coords: Sequence[Index],
    width: int,
    defined: bool = False,
    known: dict[_Wanted, float] | None = None,
) -> float:
    """Memory instructions of one vector of the value: 1 if consecutive, 0 if equal in all lanes.

    defined: of its definition, where it is to be kept but has no place yet. known: costs of
    operands met before at this width: what has many users counts many times, worked out once.
    """
    root = (value, tuple(coords))
    known = {} if known is None or defined else known

    def operands(wanted: _Wanted) -> list[_Wanted]:
        op = _evaluated(facts, wanted[0], defined and wanted is root)
        return [] if op is None else list(kernel_facts.operands_at(facts, op, wanted[1]))

    for wanted in walks.post_order(root, operands, known):
        own = _own_lane_cost(facts, wanted, width, defined and wanted is root)
        known[wanted] = min(MOST_COST, own + sum(known[part] for part in operands(wanted)))
    return known[root]


def _evaluated(facts: Facts, value: Value, defined: bool) -> Op | None:
    """The op that is evaluated where the value is wanted; None if it is read or held."""
    op = facts.producers.get(value)
    if facts.kind(value) == "memory" or value in facts.spilled:
        return op if defined and isinstance(op, kernel_facts.ELEMENTWISE | ops.Load) else None
    return op if facts.kind(value) == "inline" else None


def _own_lane_cost(facts: Facts, wanted: _Wanted, width: int, defined: bool) -> float:
    """Memory instructions of the value alone, without those of its operands."""
    value, coords = wanted
    if not defined and (facts.kind(value) == "memory" or value in facts.spilled):
        return access_cost(kernel_facts.memory_address(facts, value, coords), width)
    op = _evaluated(facts, value, defined)
    if isinstance(op, ops.Gather):
        return width
    if not isinstance(op, ops.Load):
        return 0.0
    if kernel_facts.looks_up(op, coords):
        return width
    return access_cost(kernel_facts.address_of(facts, op, coords), width)


def access_cost(address: Index, width: int) -> float:
    step = affine.lane_form(address).step
    return 0.0 if step == 0 else 1.0 if step == 1 else float(width)


def _store_cost(facts: Facts, op: ops.Store, coords: Sequence[Index], width: int) -> float:
    if kernel_facts.looks_up(op, coords):
        return width
    return access_cost(kernel_facts.address_of(facts, op, coords), width)


def choose_axis(
    facts: Facts,
    shape: Sequence[int],
    values: Sequence[Value],
    width: int,
    stores: Sequence[ops.Store] = (),
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
        known: dict[_Wanted, float] = {}
        cost = sum(lane_cost(facts, value, coords, lanes, known=known) for value in values)
        cost += sum(_store_cost(facts, op, coords, lanes) for op in stores)
        cost = (cost + 0.5) / lanes
        if cost < best_cost * 0.99:
            best, best_cost = axis, cost
    return best, best_cost


def tree_cost(facts: Facts, value: Value, known: dict[Value, float] | None = None) -> float:
    """Instructions to compute one vector of an inline value. known: costs of values met before."""
    known = {} if known is None else known

    def operands(current: Value) -> tuple[Value, ...]:
        match facts.producers.get(current) if facts.kind(current) == "inline" else None:
            case ops.Map() as op:
                return op.args
            case ops.Cast() | ops.Bitcast() | ops.Broadcast() | ops.Permute() | ops.Reshape() as op:
                return (op.x,)
            case ops.Load(mask=Value() as mask):
                return (mask,)
            case ops.Gather() as op:
                return (op.at,)
        return ()

    for current in walks.post_order(value, operands, known):
        inner = operands(current)
        parts = sum(known[operand] for operand in inner)
        own = own_cost(facts, current)
        if own == 1 and parts == 0 and inner:
            own = 0.0  # of positions and constants alone: it folds as they do
        known[current] = min(MOST_COST, own + parts)
    return known[value]


def own_cost(facts: Facts, value: Value) -> float:
    """Instructions of the value alone, without those of its operands."""
    if facts.kind(value) != "inline":
        return 1.0
    op = facts.producers.get(value)
    match op:
        case ops.Load():
            return 1.0 + sum(8.0 for index in op.indices for _ in kernel_facts.lookups(index))
        case ops.Map():
            if value.dtype.is_integer and op.fn in ("div", "mod", "fmod"):
                return 100.0
            return _EXPENSIVE.get(op.fn, 1)
        case ops.Cast() | ops.Bitcast():
            return 1.0
        case ops.Gather():
            return 8.0
        case ops.IndexTile():
            # Positions mostly fold into constants and sums that leave the loop.
            return sum(8.0 for _ in kernel_facts.lookups(op.expression))
        case _:
            return 0.0
