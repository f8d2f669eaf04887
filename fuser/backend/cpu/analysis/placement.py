"""Where each value of a tile program lives on a CPU, decided before any code is written."""

from __future__ import annotations

from fuser.backend.cpu.analysis import costs, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.dots.dot_plan import plan_dot
from fuser.backend.cpu.dots.operand_plan import keep
from fuser.backend.cpu.dots.register_tile import evaluated_once
from fuser.backend.cpu.memory.memory_order import hold_loads
from fuser.base.target import Target
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.value import TileType, Value

MOST_UNROLLED = 300
"""Instructions up to which what follows a register tile is unrolled over all its vectors."""


def analyse(kernel: Kernel, target: Target) -> Facts:
    facts = Facts(kernel, target)
    _index(facts, kernel.body, 1)
    hold_loads(facts)
    _gathered(facts)
    _registers(facts)
    _kinds(facts, kernel.body)
    _keep_shared(facts, kernel)
    _orders(facts, kernel.body)
    return facts


def _index(facts: Facts, block: Block, iterations: int) -> None:
    for op in block.ops:
        facts.iterations[op] = iterations
        facts.parents[op] = block
        for value in op.results:
            facts.producers[value] = op
            facts.blocks[value] = block
        for operand in op.operands():
            facts.users.setdefault(operand, []).append(op)
        for inner in op.blocks():
            facts.owners[inner] = op
            count = iterations
            if isinstance(op, ops.For | ops.While):
                count = iterations * 8
                for position, param in enumerate(inner.params):
                    facts.blocks[param] = inner
                    if position and isinstance(op, ops.For):
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
        if value.type.rank <= 2 and kernel_facts.vectors(value.shape, facts.width) <= limit
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
        stores = kernel_facts.stores_of(facts, value).items()
        cost = sum(ways * costs.tree_cost(facts, op.value) for op, ways in stores)
        if (
            value in facts.producers
            and cost * kernel_facts.vectors(value.shape, facts.width) > MOST_UNROLLED
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

    return all(
        _used_elementwise(facts, op, current, chosen)
        for current in walks.reachable([value], facts.made_of)
        for op in facts.users.get(current, ())
    )


def _used_elementwise(facts: Facts, op: Op, value: Value, chosen: set[Value]) -> bool:
    """Whether one user reads the value at the same element only."""
    match op:
        case ops.Map() | ops.Cast() | ops.Bitcast():
            return True
        case ops.Store():
            return not any(value in index.values() for index in op.indices)
        case ops.Dot():
            return op.acc is value and op.result in chosen and value not in (op.a, op.b)
        case ops.For():
            slots = [slot for slot, init in enumerate(op.inits) if init is value]
            return all(op.results[slot] in chosen for slot in slots)
        case ops.Yield():
            return _yields_to(facts, op, value) <= chosen
    return False


def _yields_to(facts: Facts, op: ops.Yield, value: Value) -> set[Value]:
    """The results of the enclosing loop or branch that a yield of `value` gives."""
    outer = facts.owners[facts.parents[op]]
    found = {result for result, arg in zip(outer.results, op.args, strict=True) if arg is value}
    if isinstance(outer, ops.If):
        found.add(Value(TileType(value.dtype), "branch"))
    return found


def _kinds(facts: Facts, block: Block) -> None:
    """Kinds of the results of folds, dots, loops and branches."""
    for op in block.walk():
        values: tuple[Value, ...] = op.results
        if isinstance(op, ops.For):
            values += tuple(op.body.params[1:])
        elif isinstance(op, ops.While):
            values += (*op.condition.params, *op.body.params)
        if not isinstance(op, _PLACED):
            continue
        for value in values:
            one = _size(value) == 1 and not isinstance(op, ops.Dot | ops.Scan)
            facts.kinds.setdefault(value, "scalar" if one else "memory")


_PLACED = ops.Dot | ops.Reduce | ops.Scan | ops.For | ops.While | ops.If | ops.Atomic
"""What computes whole tiles, wherever these are wanted."""


def _gathered(facts: Facts) -> None:
    """What a gather reads anywhere is in memory."""
    for op in facts.producers.values():
        if isinstance(op, ops.Gather) and op.x in facts.producers:
            if not isinstance(facts.producers[op.x], _PLACED):
                facts.kinds.setdefault(op.x, "memory")


def _keep_shared(facts: Facts, kernel: Kernel) -> None:
    """Mark inline values that are worth keeping."""
    from_registers = {param for param in facts.slots if facts.kind(param) == "registers"}
    known: dict[Value, float] = {}
    for op in kernel.walk():
        for value in op.results:
            costs.tree_cost(facts, value, known)
            if facts.kind(value) == "registers" and value not in facts.spilled:
                from_registers.add(value)
            elif facts.kind(value) == "inline" and isinstance(op, kernel_facts.MOVES):
                if not from_registers.isdisjoint(op.operands()):
                    from_registers.add(value)
    _kept(facts, kernel.body, known, from_registers, {})


def _kept(
    facts: Facts,
    block: Block,
    known: dict[Value, float],
    from_registers: set[Value],
    roots: dict[Value, Roots],
) -> None:
    """Mark values of a block, consumers first: what a kept value reads is used once, however often
    the kept value is. known: what values cost while all of them are inline; those that a value
    reads are, when its turn comes."""
    for op in reversed(block.ops):
        for inner in op.blocks():
            _kept(facts, inner, known, from_registers, roots)
        for value in op.results:
            roots[value] = _roots(facts, value, roots)
        if isinstance(op, kernel_facts.ELEMENTWISE | ops.Load | ops.Gather):
            value = op.result
            if value.dtype.name == "index" or value in from_registers:
                continue
            if _worth_keeping(facts, value, known[value], roots[value]):
                facts.kinds[value] = "memory"


def _orders(facts: Facts, block: Block) -> None:
    """Axis orders of kept values and the plans of dots, in program order."""
    for op in block.ops:
        if isinstance(op, ops.Dot):
            plan_dot(facts, op)
        elif isinstance(op, kernel_facts.ELEMENTWISE | ops.Load):
            if facts.kind(op.result) == "memory":
                keep(facts, op.result)
        for inner in op.blocks():
            _orders(facts, inner)


def _worth_keeping(facts: Facts, value: Value, cost: float, roots: Roots) -> bool:
    if _size(value) < 8 or len(facts.users.get(value, ())) == 0 or cost <= 1:
        return False
    uses = _uses(roots, facts.iterations[facts.producers[value]])
    # A copy costs a write and a read for each use; masks are packed and unpacked as well.
    write, read = (8, 3) if value.dtype.kind == "bool" else (3, 1)
    return uses * cost > cost + write + read * uses


Roots = dict[tuple[object, int], float]
"""Where a value is computed if nothing after it is kept: (expression, iterations of its loops),
and how often an element is."""


def _uses(roots: Roots, iterations: int) -> float:
    """How often each element of a value made in a loop of so many iterations would be computed,
    were it inline. Uses in one expression count once: a point computes a value once."""
    counts: dict[object, float] = {}
    for (key, inner), factor in roots.items():
        counts[key] = max(counts.get(key, 0.0), factor * max(1.0, inner / iterations))
    return sum(counts.values())


def _roots(facts: Facts, value: Value, known: dict[Value, Roots]) -> Roots:
    """Where a value is computed. known: of the values made from it."""
    found: Roots = {}

    def add(key: tuple[object, int], factor: float) -> None:
        found[key] = max(found.get(key, 0.0), factor)

    for op in facts.users.get(value, ()):
        iterations = facts.iterations[op]
        if op.results and facts.kind(op.result) == "memory":
            if isinstance(op, kernel_facts.ELEMENTWISE | ops.Load):
                add((op, iterations), 1.0)
                continue
        match op:
            case (
                ops.Map()
                | ops.Cast()
                | ops.Bitcast()
                | ops.Permute()
                | ops.Reshape()
                | ops.Broadcast()
            ):
                repeats = _repeats(op) if isinstance(op, ops.Broadcast) else 1
                for key, factor in known[op.result].items():
                    add(key, factor * repeats)
            case ops.Load() if op.mask is value and not any(
                value in i.values() for i in op.indices
            ):
                for key, factor in known[op.result].items():
                    add(key, factor)
            case ops.Load() | ops.IndexTile() | ops.Gather():
                add((op, iterations), 2.0)
            case ops.Dot() if by_unit(facts, op):
                add((op, 1), 1.0)  # an operand is copied once, where it is made
            case ops.Dot():
                once = op.acc is value or (op.b is value and evaluated_once(facts, op))
                add((op, iterations), 1.0 if once else 2.0)
            case ops.Store():
                # Stores of one shape share a loop.
                add((("store", op.value.shape), iterations), 1.0)
            case _:
                add((op, iterations), 1.0)
    return found


def _repeats(op: ops.Broadcast) -> int:
    """How often a broadcast recomputes its operand: new axes inside the last own axis are free."""
    own = [axis for axis, extent in zip(op.axes, op.x.shape, strict=True) if extent > 1]
    count = 1
    for axis in range(max(own, default=0)):
        if axis not in own:
            count *= op.shape[axis]
    return count
