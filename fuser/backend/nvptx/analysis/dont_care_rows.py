"""Don't-care rows of a left operand: out of bounds, with a product that nobody looks at.

A load is zeros where it is out of bounds. Of few rows most of a tile is, and copies of nothing take
as long as others. Where these rows become nothing but rows that no store writes, whatever shared
memory holds will do.
"""

from __future__ import annotations

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.layouts.assignment import Assignment
from fuser.graph.sizes import same
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value


def has_dont_care_rows(load: ops.Load, dots: list[ops.Dot], plan: Assignment) -> bool:
    """Whether all that of a load, the left operand of some dots, may be out of bounds are rows that
    every store of what becomes of them leaves out, too."""
    access = plan.accesses[load]
    if access.mask is not None or any(at.axes() != {0} for at, _ in access.bounds):
        return False
    pending = [dot.result for dot in dots]
    seen = set(pending)
    while pending:
        value = pending.pop()
        for use in plan.uses.get(value, ()):
            found = _made_of(use, value, access, plan)
            if found is None:
                return False
            pending += [item for item in found if item not in seen]
            seen.update(found)
    return True


def _made_of(use: Op, value: Value, access: Access, plan: Assignment) -> list[Value] | None:
    """What an op makes row by row of a value whose axis 0 are the rows; None where rows meet, or
    one that is out of bounds is stored."""
    match use:
        case ops.Map() | ops.Cast() | ops.Bitcast():
            return [use.result]
        case ops.Reduce() if use.axis > 0:
            return [use.result]
        case ops.Broadcast() if use.axes[0] == 0 and same(use.shape[0], value.shape[0]):
            return [use.result]
        case ops.Dot() if use.acc is value:
            return [use.result]
        case ops.Yield():
            loop = plan.loops.get(plan.home[value])
            if loop is None or loop.body.ops[-1] is not use:
                return None
            places = [place for place, arg in enumerate(use.args) if arg is value]
            return [v for at in places for v in (loop.body.params[at + 1], loop.results[at])]
        case ops.Store() if use.value is value:
            return [] if _leaves_out(plan.accesses[use], access.bounds) else None
    return None


def _leaves_out(store: Access, bounds: tuple[tuple[Index, int], ...]) -> bool:
    """Whether a store has the bounds of the load."""
    return all(
        any(at == other and same(size, most) for other, most in store.bounds)
        for at, size in bounds
    )  # fmt: skip


__all__ = ["has_dont_care_rows"]
