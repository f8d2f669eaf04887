"""Where each value of a tile program lives on a CPU, decided before any code is written.

- inline: evaluated at each point where it is wanted (loads, maps, casts, movement);
- scalar: one element, in a register (reductions of a row, carried statistics);
- registers: a few vectors, fully unrolled (the accumulators of a register-blocked dot);
- memory: in the thread's scratch, with an order of axes (reductions of many rows, large dots,
  values used often enough to be worth keeping).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fuser.backend.cpu import affine
from fuser.target import Target
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Lookup, Scalar
from fuser.tilegen.ir import INDEX, Block, Kernel, Op, TileType, Value

Kind = Literal["inline", "scalar", "registers", "memory"]

_EXPENSIVE = {
    "exp": 12, "log": 16, "tanh": 18, "erf": 20, "sin": 24, "cos": 24, "tan": 32, "pow": 40,
    "asin": 24, "acos": 24, "atan": 20, "sinh": 24, "cosh": 24, "asinh": 32, "acosh": 32,
    "atanh": 32, "div": 4, "sqrt": 6, "rsqrt": 10, "reciprocal": 4, "mod": 20, "fmod": 20,
}  # fmt: skip


MOST_UNROLLED = 300
"""Instructions up to which what follows a register tile is unrolled over all its vectors."""


@dataclass(frozen=True)
class DotPlan:
    """How a dot is blocked. `vector_axis` 1: vectors run along N (row operand a); 0: along M.

    rows and chunks (vectors) are the register tile. a and b are the operands in accumulator type.
    """

    a: Value
    b: Value
    vector_axis: int
    rows: int
    chunks: int


@dataclass
class Facts:
    """What the analysis found; `lower.py` reads it."""

    kernel: Kernel
    target: Target
    width: int = 16
    producers: dict[Value, Op] = field(default_factory=dict)
    blocks: dict[Value, Block] = field(default_factory=dict)
    users: dict[Value, list[Op]] = field(default_factory=dict)
    trips: dict[Op, int] = field(default_factory=dict)
    parents: dict[Op, Block] = field(default_factory=dict)
    slots: dict[Value, tuple[ops.For, int]] = field(default_factory=dict)
    kinds: dict[Value, Kind] = field(default_factory=dict)
    orders: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    dots: dict[Op, DotPlan] = field(default_factory=dict)
    spilled: set[Value] = field(default_factory=set)
    """Register tiles that move to memory once they are complete: their consumers are long."""
    pinned: set[Value] = field(default_factory=set)
    """Memory values whose order of axes may not change any more."""

    def kind(self, value: Value) -> Kind:
        return self.kinds.get(value, "inline")

    def order(self, value: Value) -> tuple[int, ...]:
        """Axes of a memory value from outermost to innermost."""
        return self.orders.get(value, tuple(range(value.type.rank)))

    def strides(self, value: Value) -> tuple[int, ...]:
        """Elements between neighbours along each axis of a memory value."""
        steps = [0] * value.type.rank
        step = 1
        for axis in reversed(self.order(value)):
            steps[axis] = step
            step *= value.shape[axis]
        return tuple(steps)


def analyse(kernel: Kernel, target: Target) -> Facts:
    facts = Facts(kernel, target)
    _index(facts, kernel.body, 1)
    _registers(facts)
    _kinds(facts, kernel.body)
    _kept(facts, kernel.body)
    _orders(facts, kernel.body)
    return facts


# structure ----------------------------------------------------------------------------------------


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


def yield_of(block: Block) -> tuple[Value, ...]:
    last = block.ops[-1] if block.ops else None
    return last.args if isinstance(last, ops.Yield) else ()


# the tree of a value ------------------------------------------------------------------------------


def resolve(facts: Facts, index: Index, coords: Sequence[Index]) -> Index:
    """An expression over tile axes at a point, index scalars replaced by what they stand for."""

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):
            return coords[atom.axis]
        if isinstance(atom, Scalar):
            op = facts.producers.get(atom.value)
            if isinstance(op, ops.IndexTile) and not op.shape:
                return resolve(facts, op.expression, ())
        return None

    return affine.substitute(index, leaf)


def operands_at(
    facts: Facts, op: Op, coords: Sequence[Index]
) -> Iterator[tuple[Value, tuple[Index, ...]]]:
    """The operands that an inlined op reads at a point, each with its own point."""
    match op:
        case ops.Map():
            for arg in op.args:
                yield arg, tuple(coords)
        case ops.Cast():
            yield op.x, tuple(coords)
        case ops.Broadcast():
            yield op.x, broadcast_point(op, coords)
        case ops.Permute():
            yield op.x, permute_point(op, coords)
        case ops.Reshape():
            yield op.x, reshape_point(op, coords)
        case ops.Load():
            for index in op.indices:
                for atom in lookups(index):
                    yield atom.value, tuple(coords[axis] for axis in atom.axes)
        case ops.IndexTile():
            for atom in lookups(op.expression):
                yield atom.value, tuple(coords[axis] for axis in atom.axes)


def lookups(index: Index) -> list[Lookup]:
    """Every Lookup in an expression."""
    found: list[Lookup] = []

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Lookup):
            found.append(atom)
        return None

    index.replace(leaf)
    return found


def broadcast_point(op: ops.Broadcast, coords: Sequence[Index]) -> tuple[Index, ...]:
    return tuple(
        Index(0) if extent == 1 else coords[axis]
        for extent, axis in zip(op.x.shape, op.axes, strict=True)
    )


def permute_point(op: ops.Permute, coords: Sequence[Index]) -> tuple[Index, ...]:
    point = [Index(0)] * len(coords)
    for position, axis in enumerate(op.axes):
        point[axis] = coords[position]
    return tuple(point)


def reshape_point(op: ops.Reshape, coords: Sequence[Index]) -> tuple[Index, ...]:
    # Dims of 1 come and go without arithmetic.
    source = [extent for extent in op.x.shape if extent != 1]
    target = [extent for extent in op.shape if extent != 1]
    if source == target:
        kept = iter([c for c, extent in zip(coords, op.shape, strict=True) if extent != 1])
        return tuple(Index(0) if extent == 1 else next(kept) for extent in op.x.shape)
    return affine.unflatten(affine.flatten(coords, op.shape), op.x.shape)


def address_of(
    facts: Facts, op: ops.Load | ops.Store | ops.AtomicAdd, coords: Sequence[Index]
) -> Index:
    """Elements from the buffer's start, Lookups left in place."""
    total = Index(op.view.offset)
    for index, stride in zip(op.indices, op.view.strides, strict=True):
        total = total + resolve(facts, index, coords) * stride
    return total


def memory_address(facts: Facts, value: Value, coords: Sequence[Index]) -> Index:
    total = Index(0)
    for coord, stride in zip(coords, facts.strides(value), strict=True):
        total = total + coord * stride
    return total


# costs --------------------------------------------------------------------------------------------


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


def lane_cost(facts: Facts, value: Value, coords: Sequence[Index], width: int) -> float:
    """Memory instructions of one vector of the value: 1 if consecutive, 0 if equal in all lanes."""
    if facts.kind(value) == "memory" or value in facts.spilled:
        return _access_cost(memory_address(facts, value, coords), width)
    if facts.kind(value) != "inline":
        return 0.0
    op = facts.producers.get(value)
    if op is None:
        return 0.0
    total = 0.0
    if isinstance(op, ops.Load):
        total = _access_cost(address_of(facts, op, coords), width)
        if any(affine.has_lane(c) for _, point in operands_at(facts, op, coords) for c in point):
            total = width
    for operand, point in operands_at(facts, op, coords):
        total += lane_cost(facts, operand, point, width)
    return total


def _access_cost(address: Index, width: int) -> float:
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
        cost = sum(lane_cost(facts, value, coords, lanes) for value in values)
        cost += sum(_access_cost(address_of(facts, op, coords), lanes) for op in stores)
        cost = (cost + 0.5) / lanes
        if cost < best_cost * 0.99:
            best, best_cost = axis, cost
    return best, best_cost


def tree_cost(facts: Facts, value: Value) -> float:
    """Instructions to compute one vector of an inline value."""
    if facts.kind(value) != "inline":
        return 1.0
    op = facts.producers.get(value)
    match op:
        case ops.Load():
            return 1.0 + sum(8.0 for index in op.indices for _ in lookups(index))
        case ops.Map():
            own = _EXPENSIVE.get(op.fn, 1)
            if value.dtype.is_integer and op.fn in ("div", "mod", "fmod"):
                own = 100
            return own + sum(tree_cost(facts, arg) for arg in op.args)
        case ops.Cast():
            return 1.0 + tree_cost(facts, op.x)
        case ops.Broadcast() | ops.Permute():
            return tree_cost(facts, op.x)
        case ops.Reshape():
            return tree_cost(facts, op.x)
        case ops.IndexTile():
            # Positions mostly fold into constants and sums that leave the loop.
            return sum(8.0 for _ in lookups(op.expression))
        case _:
            return 0.0


# registers ----------------------------------------------------------------------------------------


def chunk_starts(extent: int, width: int) -> list[tuple[int, int]]:
    """(first element, lanes) of the vectors that cover an axis; the last may be narrower."""
    return [(start, min(width, extent - start)) for start in range(0, extent, width)]


def vectors(shape: Sequence[int], width: int) -> int:
    """How many vectors hold a tile whose last axis is vectorised."""
    count = -(-shape[-1] // width) if shape else 1
    for extent in shape[:-1]:
        count *= extent
    return count


def _size(value: Value) -> int:
    return value.type.size


def _registers(facts: Facts) -> None:
    """Find dots and carried tiles small enough for registers, and used element by element only."""
    limit = 28 if facts.target.vector_registers >= 32 else 13
    candidates = [
        value
        for value, op in facts.producers.items()
        if isinstance(op, ops.Dot | ops.For) and _size(value) > 1
    ]
    candidates += [param for param in facts.slots if _size(param) > 1]
    wide = any(value.dtype.bits == 64 for value in candidates)
    facts.width = facts.target.lanes(64 if wide else 32)
    chosen = {
        value
        for value in candidates
        if value.type.rank <= 2 and vectors(value.shape, facts.width) <= limit
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
        cost = sum(tree_cost(facts, op.value) for op in _stores_of(facts, value))
        if value in facts.producers and cost * vectors(value.shape, facts.width) > MOST_UNROLLED:
            facts.spilled.add(value)


def _stores_of(facts: Facts, value: Value) -> Iterator[ops.Store]:
    """The stores that maps and casts lead to from a register tile."""
    for op in facts.users.get(value, ()):
        if isinstance(op, ops.Store):
            yield op
        elif isinstance(op, ops.Map | ops.Cast):
            yield from _stores_of(facts, op.result)


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
                pass
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


# memory -------------------------------------------------------------------------------------------


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
            _plan_dot(facts, op)
        elif isinstance(op, ops.Map | ops.Cast | ops.Load):
            if facts.kind(op.result) == "memory":
                keep(facts, op.result)
        for inner in op.blocks():
            _orders(facts, inner)


def keep(facts: Facts, value: Value, order: tuple[int, ...] | None = None) -> None:
    """Make an inline value a memory tile; its innermost axis is the one cheapest to vectorise."""
    if order is None:
        facts.kinds[value] = "inline"
        width = facts.target.lanes(max(32, value.dtype.bits))
        axis, _ = choose_axis(facts, value.shape, [value], width)
        order = tuple(a for a in range(value.type.rank) if a != axis)
        order += (axis,) if axis >= 0 else ()
    facts.kinds[value] = "memory"
    facts.orders[value] = order


def _worth_keeping(facts: Facts, value: Value) -> bool:
    if _size(value) < 8 or len(facts.users.get(value, ())) == 0:
        return False
    if reads_registers(facts, value):
        return False
    cost = tree_cost(facts, value)
    if cost <= 1:
        return False
    uses = _uses(facts, value, facts.trips[facts.producers[value]])
    # A copy costs a write and a read for each use; masks are packed and unpacked as well.
    write, read = (8, 3) if value.dtype.kind == "bool" else (3, 1)
    return uses * cost > cost + write + read * uses


def reads_registers(facts: Facts, value: Value) -> bool:
    """Whether an inline value is computed from a register tile."""
    if facts.kind(value) == "registers":
        return value not in facts.spilled
    if facts.kind(value) != "inline":
        return False
    op = facts.producers.get(value)
    if not isinstance(op, ops.Map | ops.Cast | ops.Broadcast | ops.Permute | ops.Reshape):
        return False
    return any(reads_registers(facts, operand) for operand in op.operands())


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


# dots ---------------------------------------------------------------------------------------------


def _plan_dot(facts: Facts, op: ops.Dot) -> None:
    rows, columns = op.result.shape
    operands = {0: _widen(facts, op, op.a), 1: _widen(facts, op, op.b)}
    width = facts.target.lanes(max(32, op.result.dtype.bits))
    in_registers = facts.kind(op.result) == "registers"
    costs = {}
    for axis in (1,) if in_registers or rows < 8 else (1, 0):
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
        tile = _register_tile(facts.target, extent_rows, -(-extent_vector // width))
    facts.dots[op] = DotPlan(operands[0], operands[1], axis, *tile)


def _movable(facts: Facts, value: Value) -> bool:
    """Whether a value is kept in memory anyway, in an order of axes that may still change."""
    owner = facts.producers.get(value)
    kept = facts.kind(value) == "memory" and isinstance(owner, ops.Map | ops.Cast | ops.Load)
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
    facts.trips[cast] = facts.trips[owner] if owner else facts.trips[op]
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
            return not any(lookups(index) for index in op.indices)
        return isinstance(op, ops.Full)


def _reuse(facts: Facts, op: ops.Dot, value: Value) -> float:
    """How many runs of the dot share one copy of an operand."""
    owner = facts.producers.get(value)
    made = facts.trips[owner] if owner else facts.trips[op]
    return max(1.0, facts.trips[op] / made)


def _row_cost(facts: Facts, op: ops.Dot, value: Value, width: int) -> float:
    """What copying the row operand costs; 0 if its elements can be broadcast where they are."""
    if facts.kind(value) != "inline" or _leaf_load(facts, value):
        return 0.0
    return value.type.size * tree_cost(facts, value) / width / _reuse(facts, op, value)


def _vector_cost(facts: Facts, op: ops.Dot, value: Value, axis: int, width: int) -> float:
    """What copying the vector operand costs; 0 if its vectors can be loaded where they are."""
    if _movable(facts, value):
        return 0.0
    coords = probe(value.shape, axis, width)
    vectors_at = lane_cost(facts, value, coords, width)
    rows = op.result.shape[1 - axis]
    compute = tree_cost(facts, value)
    cheap = compute <= 2 or rows <= 12 and compute <= 4
    if vectors_at <= 1 and (cheap or facts.kind(value) != "inline"):
        return 0.0
    copy = value.type.size / width * (compute + vectors_at)
    return copy / _reuse(facts, op, value) + 1


def _register_tile(target: Target, rows: int, chunks: int) -> tuple[int, int]:
    """(rows, vectors) of a register tile for a large dot: few leftovers, many FMAs a load."""
    registers = target.vector_registers
    best, best_cost = (1, 1), float("inf")
    for wide in range(1, min(chunks, 4) + 1):
        for high in range(1, 13):
            if high * wide + wide + 1 > registers - 1 or high > rows:
                continue
            tiles = -(-rows // high) * -(-chunks // wide)
            # Two loads and two FMAs a cycle; eight FMAs are needed to hide their latency.
            step = max(high * wide / 2, (high + wide) / 2, 4.0) + 0.25
            cost = tiles * step
            if rows % high or chunks % wide:
                cost *= 1.05
            if cost < best_cost:
                best, best_cost = (high, wide), cost
    return best
