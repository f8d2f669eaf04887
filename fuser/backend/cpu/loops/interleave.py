"""The interleave count: how many vectors of a long elementwise computation go side by side.

In a chain each operation waits for the one before, four cycles or more; a core finds other work
among the next few hundred instructions, which in a long chain are of the same vector. So an
iteration of the loop takes several vectors at once, as one of as many lanes, which LLVM splits
operation by operation:

    y[0:16] = f(g(x[0:16])), then y[16:32] ...   =>   a, b = g(x[0:16]), g(x[16:32]); f(a), f(b)

Only while their values fit in the registers, and where memory is read in plain vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu.analysis import affine, costs, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

MOST = 4
WORKING = 3
"""Registers that an operation itself takes, an exponential say, beside its operands."""
LEAST_WORK = 128
"""Instructions of one vector from which on it is worth it. With fewer, a core that looks a few
hundred instructions ahead finds the next iterations of the loop by itself."""

_Wanted = tuple[Value, tuple[Index, ...]]


def interleave_count(
    facts: Facts, values: Sequence[Value], shape: Sequence[int], axis: int, width: int
) -> int:
    """1, 2 or 4: as many whole vectors of `width` along `axis` as are best computed together."""
    at = costs.probe(shape, axis, width)
    order: dict[_Wanted, int] = {}
    last: dict[_Wanted, int] = {}
    work = 0.0
    for root in values:
        for wanted in walks.post_order((root, at), lambda item: _operands(facts, item), order):
            place = order[wanted] = len(order)
            operands = _operands(facts, wanted)
            if not _is_plain(facts, wanted, operands, width):
                return 1
            last.update(dict.fromkeys(operands, place))
            if _in_lanes(wanted):
                work += costs.own_cost(facts, wanted[0])
        last[root, at] = order[root, at]
    if work <= LEAST_WORK:
        return 1
    live = _most_live(facts, order, last) + WORKING
    count = MOST
    while count > 1 and (
        count * live > facts.target.vector_registers or shape[axis] // width % count
    ):
        count //= 2
    return count


def _operands(facts: Facts, wanted: _Wanted) -> list[_Wanted]:
    value, coords = wanted
    op = facts.producers.get(value) if facts.kind(value) == "inline" else None
    return [] if op is None else list(kernel_facts.operands_at(facts, op, coords))


def _in_lanes(wanted: _Wanted) -> bool:
    return any(affine.has_lane(coordinate) for coordinate in wanted[1])


def _is_plain(facts: Facts, wanted: _Wanted, operands: Sequence[_Wanted], width: int) -> bool:
    """Whether an operation is one for vectors of any length."""
    value, coords = wanted
    op = facts.producers.get(value)
    if (kind := facts.kind(value)) == "memory":
        return costs.access_cost(kernel_facts.memory_address(facts, value, coords), width) <= 1
    if kind != "inline":
        return kind == "scalar"
    if isinstance(op, ops.Load):
        address = kernel_facts.address_of(facts, op, coords)
        return not any(map(_in_lanes, operands)) and costs.access_cost(address, width) <= 1
    if isinstance(op, ops.IndexTile):
        return not kernel_facts.lookups(op.expression)
    if isinstance(op, ops.Map):  # integers are divided one by one
        return not (op.args[0].dtype.is_integer and op.fn in ("div", "mod", "fmod", "pow"))
    return isinstance(op, ops.Full | kernel_facts.MOVES)


def _most_live(facts: Facts, order: dict[_Wanted, int], last: dict[_Wanted, int]) -> int:
    """The most vectors that are held at once; constants are read where they are used."""
    change = [0] * (len(order) + 1)
    for wanted, place in order.items():
        op = facts.producers.get(wanted[0])
        if not _in_lanes(wanted) or isinstance(op, ops.Full | ops.Broadcast | ops.IndexTile):
            continue
        change[place] += 1
        change[last[wanted]] -= 1
    live = most = 0
    for step in change:
        live += step
        most = max(most, live)
    return most
