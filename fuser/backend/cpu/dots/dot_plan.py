"""How dots are computed on a CPU: their micro-kernels and register tiles."""

from __future__ import annotations

from fuser.backend.cpu.analysis import costs, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.dots.operand_plan import (
    PANEL,
    ROWS,
    broadcast_cost,
    broadcast_operand,
    left_of_unit,
    pack_panels,
    padded,
    reuse,
    right_of_unit,
    vector_cost,
    vector_operand,
    widened,
)
from fuser.backend.cpu.dots.records import DotPlan, OperandPlan, Spacing
from fuser.backend.cpu.dots.register_tile import TRANSPOSABLE_ROWS, register_tile
from fuser.base.target import DotUnit
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Mod
from fuser.tilegen.value import Value

LANE_ROWS = 4
"""Rows of a dot up to which vectors along k win: a square of 16 x 16 elements takes 64 shuffles to
turn, its products 16 instructions a row either way, and the sums of 16 columns 79 once."""

MOST_STEPS = 8
"""Of k in one iteration: more would be long code for nothing."""


def plan_dot(facts: Facts, op: ops.Dot) -> None:
    """Choose how a dot is computed, and make the copies of operands that this needs."""
    unit = facts.target.dot_unit(op.a.dtype.name)
    if unit is not None:
        _plan_unit_dot(facts, op, unit)
        return
    rows, columns = op.result.shape
    operands = widened(facts, op, op.a), widened(facts, op, op.b)
    width = facts.target.lanes(max(32, op.result.dtype.bits))
    in_registers = facts.kind(op.result) == "registers"
    if _along_k(facts, op, *operands, width):
        facts.orders[op.result] = (0, 1)
        facts.dots[op] = DotPlan(
            OperandPlan(operands[0], False, 1), OperandPlan(operands[1], True, 0)
        )
        return
    total = {}
    for axis in (1,) if in_registers or rows < TRANSPOSABLE_ROWS else (1, 0):
        total[axis] = broadcast_cost(facts, op, operands[1 - axis], width) + vector_cost(
            facts, op, operands[axis], axis, width
        )
    axis = min(total, key=lambda item: (total[item], -item))
    plans = {1 - axis: broadcast_operand(facts, op, operands[1 - axis], axis == 0, width)}
    plans[axis] = vector_operand(facts, op, operands[axis], axis, width)
    if in_registers:
        tile = (rows, -(-columns // facts.width))
    else:
        facts.orders[op.result] = (0, 1) if axis == 1 else (1, 0)
        extent_rows, extent_vector = (rows, columns) if axis == 1 else (columns, rows)
        tile = register_tile(facts.target, extent_rows, -(-extent_vector // width))
        pack_panels(facts, op, plans[axis], tile[1] * width, -(-extent_rows // tile[0]))
    steps = max(_period(facts, plan.value, op.a.shape[1]) for plan in plans.values())
    facts.dots[op] = DotPlan(plans[0], plans[1], *tile, steps=steps)


def _plan_unit_dot(facts: Facts, op: ops.Dot, unit: DotUnit) -> None:
    """The result is a tile in scratch of whole rows of tiles and panels."""
    accumulators = _accumulators(facts, op)
    a = left_of_unit(facts, op, unit, alone=accumulators == [op.result])
    b, window = right_of_unit(facts, op, unit), a.window
    for value in accumulators:
        facts.orders[value] = (0, 1)
        facts.pinned.add(value)
        rows = window.rows if window else value.shape[0]
        facts.extents[value] = (padded(rows, ROWS), padded(value.shape[1], PANEL))
        if window:
            facts.spaced[value] = Spacing(0, window.width, window.across)
    facts.dots[op] = DotPlan(a, b)


def _accumulators(facts: Facts, op: ops.Dot) -> list[Value]:
    """The result, and the carried tile of a loop that it is the next value of."""
    found = [op.result]
    for loop in facts.producers.values():
        if isinstance(loop, ops.For) and op.result in kernel_facts.yield_of(loop.body):
            slot = kernel_facts.yield_of(loop.body).index(op.result)
            found += [loop.body.params[1 + slot], loop.results[slot]]
    return list(dict.fromkeys(found))


def _along_k(facts: Facts, op: ops.Dot, a: Value, b: Value, width: int) -> bool:
    """Whether a dot of few rows reads both operands in vectors of k where they are, and its second
    operand would have to be turned otherwise."""
    rows, depth = op.a.shape
    if rows > LANE_ROWS or depth < width or not op.result.dtype.is_float:
        return False
    if facts.kernel.row_order:
        return False  # sums by lanes are another order than that of more rows
    if max(costs.tree_cost(facts, a), costs.tree_cost(facts, b)) > 2 or reuse(facts, op, b) > 2:
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
    for current in walks.reachable([value], facts.inline_operands):
        op = facts.producers.get(current)
        if isinstance(op, ops.IndexTile) and facts.kind(current) == "inline":
            for atom, _ in op.expression.terms:
                if isinstance(atom, Mod) and atom.base.axes() and atom.divisor <= MOST_STEPS:
                    found = max(found, atom.divisor)
    return found if depth % found == 0 else 1
