"""The edges of masks that compare positions: which iterations of a pipelined attention loop
(schedule/attention_pipeline.py) need them.

A condition such as key <= query holds for every element of an iteration up to a bound of the loop
variable, query <= key + window from one on. Where an iteration has fewer keys than a block has
rows, each warp group looks at its own rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.assignment import Assignment
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.schedule.dot_chain import DotChain
from fuser.graph import walks
from fuser.graph.sizes import certain, same
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index, Scalar
from fuser.tilegen.value import Value

SCORES = 2
"""Axes of scores: rows and keys."""
GROUP_ROWS = 64
"""Rows of scores that a warp group has, where groups share a tile by rows."""


@dataclass(frozen=True)
class _Extreme:
    """The greatest or least element of an integer tile for a warp group: value + rows * the number
    of its first row."""

    value: Index
    rows: int = 0

    def minus(self, other: _Extreme) -> _Extreme:
        return _Extreme(self.value - other.value, self.rows - other.rows)


@dataclass(frozen=True)
class _MaskBound:
    """Where a condition begins or ceases to hold: side * variable + rest >= 0 where it holds."""

    condition: ops.Map
    rest: _Extreme


class MaskPeeling:
    """The conditions of one chain that hold for every element of the iterations before or from a
    bound of the loop variable on."""

    def __init__(self, low: Builder, chain: DotChain, loop: ops.For) -> None:
        self.low, self.loop = low, loop
        self.by_group = loop.step < chain.first.a.shape[0] and _groups_have_rows(
            low.assignment, chain
        )
        self.found = {side: self._bounds_of(chain, side) for side in (-1, 1)}

    def limit(self, side: int) -> tuple[Operand | None, list[ops.Map]]:
        """(a bound of the loop variable, conditions that hold for every element of an iteration
        before it, or with side 1 of an iteration from it on); None where no condition is of that
        kind."""
        low, e = self.low, self.low.scalars
        limits: list[Operand] = []
        for bound in self.found[side]:
            at = low.evaluate(bound.rest.value * -side)  # variable <= rest, or variable >= -rest
            if bound.rest.rows:
                at = e.plus(at, e.times(self._first_row(), -side * bound.rest.rows))
            limits.append(e.plus(at, 1) if side < 0 else at)
        if not limits:
            return None, []
        limit = limits[0]
        for other in limits[1:]:
            limit = e.compute("smin" if side < 0 else "smax", limit, other)
        return limit, [bound.condition for bound in self.found[side]]

    def ordered(self) -> bool:
        """Whether what holds from a bound on holds wherever the rest ceases to."""
        gaps = [(after.rest, before.rest) for after in self.found[1] for before in self.found[-1]]
        return bool(gaps) and all(
            after.rows + before.rows == 0 and certain((after.value + before.value + 1).range[0])
            for after, before in gaps
        )

    def _first_row(self) -> Operand:
        e = self.low.scalars
        mine = e.head.compute("and", e.head.compute("lshr", e.tid, 1), -GROUP_ROWS)
        return e.head.lane(mine, 0)

    def _bounds_of(self, chain: DotChain, side: int) -> list[_MaskBound]:
        found: list[_MaskBound] = []
        variable = self.loop.body.params[0]
        for op in chain.middle + chain.head:
            if not isinstance(op, ops.Map) or op.fn not in ("le", "lt", "ge", "gt"):
                continue
            axes = self._axes_of(op.result)
            if axes is None:
                continue
            small, large = op.args if op.fn in ("le", "lt") else op.args[::-1]
            most, least = self._extreme(small, 1, axes), self._extreme(large, -1, axes)
            if most is None or least is None:
                continue
            slack = least.minus(most)
            if not same(slack.value.coefficient(Scalar(variable)), side):
                continue
            strict = 1 if op.fn in ("lt", "gt") else 0
            rest = slack.value - strict - Index(0, ((Scalar(variable), side),))
            if variable not in rest.values() and set(rest.values()) <= set(self.low.env):
                found.append(_MaskBound(op, _Extreme(rest, slack.rows)))
        return found

    def _axes_of(self, value: Value) -> tuple[int, ...] | None:
        """Which axes of the scores those of a tile are: of all keys, or all rows, alone, what it is
        broadcast to tells. None where that is not one answer."""
        if len(value.shape) == SCORES:
            return tuple(range(SCORES))
        table = self.low.assignment.uses

        def results(item: Value) -> list[Value]:
            return [use.result for use in table.get(item, ()) if isinstance(use, ops.Map)]

        found = {
            tuple(use.axes)
            for item in walks.reachable([value], results) for use in table.get(item, ())
            if isinstance(use, ops.Broadcast) and len(use.shape) == SCORES
        }  # fmt: skip
        return found.pop() if len(found) == 1 else None

    def _extreme(self, value: Value, sign: int, axes: tuple[int, ...]) -> _Extreme | None:
        """The greatest (sign 1) or least (-1) element of an integer tile. axes: those of the scores
        that the tile's axes are."""
        maker = self.low.assignment.makers.get(value)
        if isinstance(maker, ops.Broadcast):
            return self._extreme(maker.x, sign, tuple(axes[axis] for axis in maker.axes))
        if isinstance(maker, ops.Full):
            return _Extreme(Index(int(maker.value)))
        if not isinstance(maker, ops.IndexTile):
            return None
        result, rows = Index(maker.expression.constant), 0
        for atom, coefficient in maker.expression.terms:
            if isinstance(atom, Axis):
                extent = atom.extent
                if self.by_group and axes[atom.axis] == 0:
                    extent, rows = GROUP_ROWS, rows + coefficient
                result = result + (coefficient * (extent - 1) if coefficient * sign > 0 else 0)
            elif Index(0, ((atom, 1),)).axes():
                return None
            else:
                result = result + Index(0, ((atom, coefficient),))
        return _Extreme(result, rows)


def _groups_have_rows(assignment: Assignment, chain: DotChain) -> bool:
    """Whether each warp group has GROUP_ROWS neighbouring rows of the scores."""
    layout = assignment.dots[chain.first].accumulator
    rows = [basis[0] for basis in layout.bits]
    expected = [GROUP_ROWS << bit for bit in range(len(rows) - 7)]
    inside = max(offset[0] for offset in layout.regs) + sum(rows[:7]) < GROUP_ROWS
    return bool(expected) and rows[7:] == expected and inside
