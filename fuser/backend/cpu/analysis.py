"""Where each value of a tile program lives on a CPU, decided before any code is written."""

from __future__ import annotations

from fuser.backend.cpu import costs, tree
from fuser.backend.cpu.dot_plan import keep, plan_dot
from fuser.backend.cpu.tree import Facts
from fuser.target import Target
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel, Op, TileType, Value

MOST_UNROLLED = 300
"""Instructions up to which what follows a register tile is unrolled over all its vectors."""


def analyse(kernel: Kernel, target: Target) -> Facts:
    facts = Facts(kernel, target)
    _index(facts, kernel.body, 1)
    _registers(facts)
    _kinds(facts, kernel.body)
    _kept(facts, kernel.body)
    _orders(facts, kernel.body)
    return facts


def _index(facts: Facts, block: Block, trips: int) -> None:
    for op in block.ops:
        facts.trips[op] = trips
        facts.parents[op] = block
        for value in op.results:
            facts.producers[value] = op
            facts.blocks[value] = block
        for operand in op.operands():
            facts.users.setdefault(operand, []).append(op)
        for inner in op.blocks():
            count = trips
            if isinstance(op, ops.For):
                count = trips * 8
                for position, param in enumerate(inner.params):
                    facts.blocks[param] = inner
                    if position:
                        facts.slots[param] = (op, position - 1)
            _index(facts, inner, count)


def _size(value: Value) -> int:
    return value.type.size


def _registers(facts: Facts) -> None:
    """Find dots and carried tiles small enough for registers, and used element by element only."""
    limit = facts.target.tile_vectors
    candidates = [
        value
        for value, op in facts.producers.items()
        if isinstance(op, ops.Dot | ops.For) and _size(value) > 1 and not by_unit(facts, op)
    ]
    candidates += [param for param in facts.slots if _size(param) > 1]
    wide = any(value.dtype.bits == 64 for value in candidates)
    facts.width = facts.target.lanes(64 if wide else 32)
    chosen = {
        value
        for value in candidates
        if value.type.rank <= 2 and tree.vectors(value.shape, facts.width) <= limit
    }
    # A loop's parameter, result and yielded value live in one place.
    while True:
        dropped = {value for value in chosen if not _elementwise(facts, value, chosen)}
        for value in list(chosen):
            twins = _twins(facts, value)
            if any(twin not in chosen or twin in dropped for twin in twins):
                dropped.add(value)
        if not dropped & chosen:
            break
        chosen -= dropped
    for value in chosen:
        facts.kinds[value] = "registers"
    for value in chosen:
        # Unrolled code for every vector of the tile is only worth it while it is short.
        cost = sum(costs.tree_cost(facts, op.value) for op in tree.stores_of(facts, value))
        if (
            value in facts.producers
            and cost * tree.vectors(value.shape, facts.width) > MOST_UNROLLED
        ):
            facts.spilled.add(value)


def by_unit(facts: Facts, op: Op) -> bool:
    """Whether an op is a dot by tiles or dot-product vectors: its result lies in scratch."""
    return isinstance(op, ops.Dot) and facts.target.dot_unit(op.a.dtype.name) is not None


def _twins(facts: Facts, value: Value) -> list[Value]:
    op = facts.producers.get(value)
    if isinstance(op, ops.For):
        return [op.body.params[1 + op.results.index(value)]]
    if value in facts.slots:
        loop, slot = facts.slots[value]
        return [loop.results[slot]]
    return []


def _elementwise(facts: Facts, value: Value, chosen: set[Value]) -> bool:
    """Whether every use of the value, through maps and casts, is at the same element."""
    for op in facts.users.get(value, ()):
        match op:
            case ops.Map() | ops.Cast():
                if not _elementwise(facts, op.result, chosen):
                    return False
            case ops.Store():
                if any(value in index.values() for index in op.indices):
                    return False
            case ops.Dot():
                if op.acc is not value or op.result not in chosen or value in (op.a, op.b):
                    return False
            case ops.For():
                for slot, init in enumerate(op.inits):
                    if init is value and op.results[slot] not in chosen:
                        return False
            case ops.Yield():
                if not _yields_to(facts, op, value) <= chosen:
                    return False
            case _:
                return False
    return True


def _yields_to(facts: Facts, op: ops.Yield, value: Value) -> set[Value]:
    """The results of the enclosing loop or branch that a yield of `value` gives."""
    block = facts.parents[op]
    found: set[Value] = set()
    for outer in facts.parents:
        if block in outer.blocks():
            found |= {
                result for result, arg in zip(outer.results, op.args, strict=True) if arg is value
            }
            if isinstance(outer, ops.If):
                found.add(Value(TileType(value.dtype), "branch"))
    return found


def _kinds(facts: Facts, block: Block) -> None:
    """Kinds of the results of folds, dots, loops and branches."""
    for op in block.walk():
        values: tuple[Value, ...] = op.results
        if isinstance(op, ops.For):
            values += tuple(op.body.params[1:])
        if not isinstance(op, ops.Dot | ops.Reduce | ops.Scan | ops.For | ops.If):
            continue
        for value in values:
            one = _size(value) == 1 and not isinstance(op, ops.Dot | ops.Scan)
            facts.kinds.setdefault(value, "scalar" if one else "memory")


def _kept(facts: Facts, block: Block) -> None:
    """Mark inline values that are worth keeping, consumers first: what a kept value reads is used
    once, however often the kept value is."""
    for op in reversed(block.ops):
        for inner in op.blocks():
            _kept(facts, inner)
        if isinstance(op, ops.Map | ops.Cast | ops.Load):
            if op.result.dtype.name != "index" and _worth_keeping(facts, op.result):
                facts.kinds[op.result] = "memory"


def _orders(facts: Facts, block: Block) -> None:
    """Axis orders of kept values and the plans of dots, in program order."""
    for op in block.ops:
        if isinstance(op, ops.Dot):
            plan_dot(facts, op)
        elif isinstance(op, ops.Map | ops.Cast | ops.Load):
            if facts.kind(op.result) == "memory":
                keep(facts, op.result)
        for inner in op.blocks():
            _orders(facts, inner)


def _worth_keeping(facts: Facts, value: Value) -> bool:
    if _size(value) < 8 or len(facts.users.get(value, ())) == 0:
        return False
    if tree.reads_registers(facts, value):
        return False
    cost = costs.tree_cost(facts, value)
    if cost <= 1:
        return False
    uses = _uses(facts, value, facts.trips[facts.producers[value]])
    # A copy costs a write and a read for each use; masks are packed and unpacked as well.
    write, read = (8, 3) if value.dtype.kind == "bool" else (3, 1)
    return uses * cost > cost + write + read * uses


def _uses(facts: Facts, value: Value, trips: int) -> float:
    """How often each element would be computed, were the value inline.

    Uses in one expression count once: a point computes a value once.
    """
    roots: dict[object, float] = {}
    _collect(facts, value, trips, 1.0, roots)
    return sum(roots.values())


def _collect(
    facts: Facts, value: Value, trips: int, factor: float, roots: dict[object, float]
) -> None:
    for op in facts.users.get(value, ()):
        again = factor * max(1.0, facts.trips[op] / trips)
        key: object = op
        if op.results and facts.kind(op.result) == "memory" and not isinstance(op, ops.For):
            if isinstance(op, ops.Map | ops.Cast | ops.Load):
                roots[op] = max(roots.get(op, 0.0), again)
                continue
        match op:
            case ops.Map() | ops.Cast() | ops.Permute() | ops.Reshape():
                _collect(facts, op.result, trips, factor, roots)
                continue
            case ops.Broadcast():
                _collect(facts, op.result, trips, factor * _repeats(op), roots)
                continue
            case ops.Load() | ops.IndexTile():
                again *= 2
            case ops.Dot() if by_unit(facts, op):
                again = factor  # an operand is copied once, where it is made
            case ops.Dot():
                again = again if op.acc is value else 2 * again
            case ops.Reduce() if op.result.shape == ():
                pass
            case ops.Store():
                # Stores of one shape share a loop.
                key = ("store", op.value.shape)
        roots[key] = max(roots.get(key, 0.0), again)


def _repeats(op: ops.Broadcast) -> int:
    """How often a broadcast recomputes its operand: new axes inside the last own axis are free."""
    own = [axis for axis, extent in zip(op.axes, op.x.shape, strict=True) if extent > 1]
    count = 1
    for axis in range(max(own, default=0)):
        if axis not in own:
            count *= op.shape[axis]
    return count
