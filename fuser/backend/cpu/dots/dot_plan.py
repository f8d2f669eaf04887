"""How dots are blocked on a CPU, and where their operands live."""

from __future__ import annotations

from fuser.backend.cpu.analysis import costs, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import DotPlan, Facts
from fuser.backend.cpu.dots.operand_plan import plan_unit_dot
from fuser.base.target import Target
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Mod
from fuser.tilegen.value import TileType, Value

TRANSPOSABLE_ROWS = 8
"""Rows of a dot in scratch from which on its vectors may go along them."""

LANE_ROWS = 4
"""Rows of a dot up to which vectors along k win: a square of 16 x 16 elements takes 64 shuffles to
turn, its products 16 instructions a row either way, and the sums of 16 columns 79 once."""

MOST_INLINE = 8
"""Instructions of an operand computed in the loop over k where nothing is computed twice; more take
the registers of sums."""

MOST_STEPS = 8
"""Of k in one iteration: more would be long code for nothing."""


def plan_dot(facts: Facts, op: ops.Dot) -> None:
    """Choose how a dot is computed, and make the copies of operands that this needs."""
    unit = facts.target.dot_unit(op.a.dtype.name)
    if unit is not None:
        plan_unit_dot(facts, op, unit)
        return
    rows, columns = op.result.shape
    operands = {0: _widen(facts, op, op.a), 1: _widen(facts, op, op.b)}
    width = facts.target.lanes(max(32, op.result.dtype.bits))
    in_registers = facts.kind(op.result) == "registers"
    if _along_k(facts, op, operands, width):
        facts.orders[op.result] = (0, 1)
        facts.dots[op] = DotPlan(operands[0], operands[1], 1, 1, 1, along_k=True)
        return
    costs = {}
    for axis in (1,) if in_registers or rows < TRANSPOSABLE_ROWS else (1, 0):
        costs[axis] = _row_cost(facts, op, operands[1 - axis], width) + _vector_cost(
            facts, op, operands[axis], axis, width
        )
    axis = min(costs, key=lambda item: (costs[item], -item))
    order = (0, 1) if axis == 1 else (1, 0)
    if _row_cost(facts, op, operands[1 - axis], width) > 0:
        keep(facts, operands[1 - axis])
    if _movable(facts, operands[axis]):
        facts.orders[operands[axis]] = order
        facts.pinned.add(operands[axis])
    elif _vector_cost(facts, op, operands[axis], axis, width) > 0:
        if facts.kind(operands[axis]) != "inline":
            operands[axis] = _cast(facts, op, operands[axis])
        keep(facts, operands[axis], order)
        facts.pinned.add(operands[axis])
    if in_registers:
        tile = (rows, -(-columns // facts.width))
    else:
        facts.orders[op.result] = order
        extent_rows, extent_vector = (rows, columns) if axis == 1 else (columns, rows)
        tile = register_tile(facts.target, extent_rows, -(-extent_vector // width))
    steps = max(_period(facts, operands[side], op.a.shape[1]) for side in (0, 1))
    facts.dots[op] = DotPlan(operands[0], operands[1], axis, *tile, steps=steps)


def evaluated_once(facts: Facts, op: ops.Dot) -> bool:
    """Whether the second operand, if it is inline, is computed once: the rows are one register tile
    high."""
    rows, columns = op.result.shape
    if facts.kind(op.result) == "registers":
        return True
    if rows >= TRANSPOSABLE_ROWS:
        return False
    width = facts.target.lanes(max(32, op.result.dtype.bits))
    return rows == register_tile(facts.target, rows, -(-columns // width))[0]


def _along_k(facts: Facts, op: ops.Dot, operands: dict[int, Value], width: int) -> bool:
    """Whether a dot of few rows reads both operands in vectors of k where they are, and its second
    operand would have to be turned otherwise."""
    (rows, depth), b = op.a.shape, operands[1]
    if rows > LANE_ROWS or depth % width or not op.result.dtype.is_float:
        return False
    if facts.kernel.row_order:
        return False  # sums by lanes are another order than that of more rows
    a = operands[0]
    if max(costs.tree_cost(facts, a), costs.tree_cost(facts, b)) > 2 or _reuse(facts, op, b) > 2:
        return False
    if facts.kind(b) != "inline":
        return False
    a_at, b_at, turned = (
        costs.lane_cost(facts, value, costs.probe(value.shape, axis, width), width)
        for value, axis in ((a, 1), (b, 0), (b, 1))
    )
    return a_at <= 1 and b_at <= 1 and turned >= width


def _period(facts: Facts, value: Value, depth: int) -> int:
    """Steps of k after which the way to read an operand repeats: codes that share a word are one
    load and shifts by constants if those steps are one iteration."""
    found = 1

    def operands(current: Value) -> tuple[Value, ...]:
        op = facts.producers.get(current)
        return op.operands() if op and facts.kind(current) == "inline" else ()

    for current in walks.reachable([value], operands):
        op = facts.producers.get(current)
        if isinstance(op, ops.IndexTile) and facts.kind(current) == "inline":
            for atom, _ in op.expression.terms:
                if isinstance(atom, Mod) and atom.base.axes() and atom.divisor <= MOST_STEPS:
                    found = max(found, atom.divisor)
    return found if depth % found == 0 else 1


def keep(facts: Facts, value: Value, order: tuple[int, ...] | None = None) -> None:
    """Make an inline value a memory tile; its innermost axis is the one cheapest to vectorise."""
    if order is None:
        facts.kinds[value] = "inline"
        width = facts.target.lanes(max(32, value.dtype.bits))
        axis, _ = costs.choose_axis(facts, value.shape, [value], width)
        order = tuple(a for a in range(value.type.rank) if a != axis)
        order += (axis,) if axis >= 0 else ()
    facts.kinds[value] = "memory"
    facts.orders[value] = order


def _movable(facts: Facts, value: Value) -> bool:
    """Whether a value is kept in memory anyway, in an order of axes that may still change."""
    owner = facts.producers.get(value)
    kept = facts.kind(value) == "memory" and isinstance(owner, kernel_facts.ELEMENTWISE | ops.Load)
    return kept and value not in facts.pinned


def _widen(facts: Facts, op: ops.Dot, value: Value) -> Value:
    """The operand in the accumulator's dtype: a cast that only the lowering sees."""
    return value if value.dtype == op.result.dtype else _cast(facts, op, value)


def _cast(facts: Facts, op: ops.Dot, value: Value) -> Value:
    """A copy of an operand in the accumulator's dtype, as a value of its own."""
    dtype = op.result.dtype
    cast = ops.Cast(x=value, dtype=dtype)
    wide = Value(TileType(dtype, value.shape), f"{value.name}.wide")
    cast.results = (wide,)
    facts.producers[wide] = cast
    # It belongs where the operand is, so that what a loop does not change is converted once.
    facts.blocks[wide] = facts.blocks[value]
    owner = facts.producers.get(value)
    facts.iterations[cast] = facts.iterations[owner] if owner else facts.iterations[op]
    facts.parents[cast] = facts.blocks[value]
    facts.users.setdefault(value, []).append(cast)
    facts.users[wide] = [op]
    return wide


def _leaf_load(facts: Facts, value: Value) -> bool:
    """Whether a value is only a load or a kept tile, seen through movement."""
    while True:
        if facts.kind(value) != "inline":
            return True
        op = facts.producers.get(value)
        if isinstance(op, ops.Broadcast | ops.Permute | ops.Reshape):
            value = op.x
            continue
        if isinstance(op, ops.Load):
            plain = op.mask is None
            return plain and not any(kernel_facts.lookups(index) for index in op.indices)
        return isinstance(op, ops.Full)


def _reuse(facts: Facts, op: ops.Dot, value: Value) -> float:
    """How many runs of the dot share one copy of an operand."""
    owner = facts.producers.get(value)
    made = facts.iterations[owner] if owner else facts.iterations[op]
    return max(1.0, facts.iterations[op] / made)


def _row_cost(facts: Facts, op: ops.Dot, value: Value, width: int) -> float:
    """What copying the row operand costs; 0 if its elements can be broadcast where they are."""
    if facts.kind(value) != "inline" or _leaf_load(facts, value):
        return 0.0
    return value.type.size * costs.tree_cost(facts, value) / width / _reuse(facts, op, value)


def _vector_cost(facts: Facts, op: ops.Dot, value: Value, axis: int, width: int) -> float:
    """What copying the vector operand costs; 0 if its vectors can be loaded where they are."""
    if _movable(facts, value):
        return 0.0
    coords = costs.probe(value.shape, axis, width)
    vectors_at = costs.lane_cost(facts, value, coords, width)
    rows = op.result.shape[1 - axis]
    compute = costs.tree_cost(facts, value)
    most, loads = 2 if rows > 12 else 4, 1
    if axis == 1 and evaluated_once(facts, op):
        most, loads = MOST_INLINE, 2
    if vectors_at <= 1 and facts.kind(value) != "inline":
        return 0.0
    if vectors_at <= loads and compute <= most:
        return 0.0
    copy = value.type.size / width * (compute + vectors_at)
    return copy / _reuse(facts, op, value) + 1


def register_tile(target: Target, rows: int, chunks: int) -> tuple[int, int]:
    """(rows, vectors) of a register tile for a large dot: few leftovers, many FMAs a load."""
    registers = target.vector_registers
    best, best_cost = (1, 1), float("inf")
    for wide in range(1, min(chunks, 4) + 1):
        for high in range(1, 13):
            if high * wide + wide + 1 > registers - 1 or high > rows:
                continue
            tiles = -(-rows // high) * -(-chunks // wide)
            # Two loads and two FMAs a cycle; ten FMAs are needed to hide their latency: with the
            # least, eight, a loop is up to 1.3 times slower where its code lies badly.
            step = max(high * wide / 2, (high + wide) / 2, 5.0) + 0.25
            cost = tiles * step
            if rows % high or chunks % wide:
                cost *= 1.05
            if cost < best_cost:
                best, best_cost = (high, wide), cost
    return best
