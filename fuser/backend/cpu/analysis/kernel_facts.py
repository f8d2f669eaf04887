"""What the CPU lowering knows about a kernel, and how inlined values read their operands.

Values live in one of four ways:
- inline: evaluated at each point where it is wanted (loads, maps, casts, movement);
- scalar: one element, in a register (reductions of a row, carried statistics);
- registers: a few vectors, fully unrolled (the accumulators of a register-blocked dot);
- memory: in the thread's scratch, with an order of axes (reductions of many rows, large dots,
  values used often enough to be worth keeping).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from fuser.backend.cpu.analysis import affine
from fuser.backend.cpu.dots.records import DotPlan, OperandPlan, Spacing
from fuser.base.target import Target
from fuser.dtypes import DType, f32, f64
from fuser.graph import walks
from fuser.graph.sizes import divisor as gcd
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.ir import Block, Buffer, Kernel, Op
from fuser.tilegen.value import UNBOUNDED, TileType, Value

Kind = Literal["inline", "scalar", "registers", "memory"]
MOST_WAYS = 1 << 20
"""Where counting ends how many ways lead from one value to another: they double at each fork."""
ELEMENTWISE = ops.Map | ops.Cast | ops.Bitcast
"""What computes an element of a tile from the same element of others."""
MOVES = ops.Map | ops.Cast | ops.Bitcast | ops.Broadcast | ops.Permute | ops.Reshape
"""What computes the elements of a tile from those of others, each from a few."""


@dataclass
class Facts:
    """What the analysis found; `lowering/lower.py` reads it."""

    kernel: Kernel
    target: Target
    width: int = 16
    producers: dict[Value, Op] = field(default_factory=dict)
    blocks: dict[Value, Block] = field(default_factory=dict)
    users: dict[Value, list[Op]] = field(default_factory=dict)
    iterations: dict[Op, int] = field(default_factory=dict)
    parents: dict[Op, Block] = field(default_factory=dict)
    owners: dict[Block, Op] = field(default_factory=dict)
    """The loops and branches that have blocks."""
    slots: dict[Value, tuple[ops.For, int]] = field(default_factory=dict)
    kinds: dict[Value, Kind] = field(default_factory=dict)
    orders: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    dots: dict[Op, DotPlan] = field(default_factory=dict)
    spilled: set[Value] = field(default_factory=set)
    """Register tiles that move to memory once they are complete: their consumers are long."""
    pinned: set[Value] = field(default_factory=set)
    """Memory values whose order of axes may not change any more."""
    extents: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    """What a memory value takes along each axis, where that is more than its shape."""
    packed: dict[Value, OperandPlan] = field(default_factory=dict)
    """The copies that dot units read."""
    products: dict[ops.Map, ops.Map | None] = field(default_factory=dict)
    """What `last_product` found."""
    changing: frozenset[Buffer | int] = frozenset()
    """What the kernel both loads and writes: buffers, and numbers of those that may overlap."""
    held: set[ops.Load] = field(default_factory=set)
    """Loads that are kept where they stand (memory/memory_order.py)."""
    spaced: dict[Value, Spacing] = field(default_factory=dict)
    """Memory values that have room between parts of an axis."""

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
            spaced = self.spaced.get(value)
            parted = spaced is not None and spaced.axis == axis
            step *= spaced.width if spaced and parted else self.room(value)[axis]
        return tuple(steps)

    def room(self, value: Value) -> tuple[int, ...]:
        """The extents that a memory value takes."""
        return self.extents.get(value, value.shape)

    def made_of(self, value: Value) -> list[Value]:
        """The results of maps and casts of a value."""
        return [op.result for op in self.users.get(value, ()) if isinstance(op, ELEMENTWISE)]

    def inline_operands(self, value: Value) -> tuple[Value, ...]:
        """What an inline value is evaluated from."""
        op = self.producers.get(value)
        return op.operands() if op is not None and self.kind(value) == "inline" else ()

    def program_ids(self) -> dict[int, Value]:
        """The program ids of the kernel, by axis."""
        return {op.axis: op.result for op in self.kernel.body.ops if isinstance(op, ops.ProgramId)}

    def fastest_id(self) -> Value | None:
        """The program id by which a program differs from the next one."""
        axes = [axis for axis, extent in enumerate(self.kernel.grid) if size_hint(extent) > 1]
        return self.program_ids().get(axes[-1]) if axes else None

    def derive(self, op: Op, value: Value, made: Op, dtype: DType, name: str) -> Value:
        """The result of `made`, which computes a dot's operand from a value of the kernel, as a
        value that the lowering alone sees. It belongs where that value is, so that what a loop does
        not change is computed once."""
        found = Value(TileType(dtype, value.shape), f"{value.name}.{name}")
        made.results = (found,)
        self.producers[found], self.blocks[found] = made, self.blocks[value]
        owner = self.producers.get(value, op)
        self.iterations[made], self.parents[made] = self.iterations[owner], self.blocks[value]
        self.users.setdefault(value, []).append(made)
        self.users[found] = [op]
        return found


def yield_of(block: Block) -> tuple[Value, ...]:
    last = block.ops[-1] if block.ops else None
    return last.args if isinstance(last, ops.Yield) else ()


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
        case ops.Cast() | ops.Bitcast():
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
            if op.mask is not None:
                yield op.mask, tuple(coords)
        case ops.Gather():
            yield op.at, tuple(coords)  # x is in memory
        case ops.IndexTile():
            for atom in lookups(op.expression):
                yield atom.value, tuple(coords[axis] for axis in atom.axes)


def lookups(index: Index) -> list[Lookup]:
    """Every Lookup in an expression."""
    found: list[Lookup] = []
    for atom, _ in index.terms:
        match atom:
            case Lookup():
                found.append(atom)
            case FloorDiv() | Mod():
                found += lookups(atom.base)
            case Extreme():
                for item in atom.items:
                    found += lookups(item)
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


def direct_load(facts: Facts, value: Value, dtype: str) -> ops.Load | None:
    """The load of a dtype that an inline value is, with neither a mask nor places looked up."""
    op = facts.producers.get(value)
    if not isinstance(op, ops.Load) or facts.kind(value) != "inline" or op.mask is not None:
        return None
    return None if op.view.dtype.name != dtype or any(map(lookups, op.indices)) else op


def looks_up(op: ops.Load | ops.WRITES, coords: Sequence[Index]) -> bool:
    """Whether the lanes of a point are at places that are looked up."""
    points = (coords[axis] for index in op.indices for atom in lookups(index) for axis in atom.axes)
    return any(map(affine.has_lane, points))


def address_of(facts: Facts, op: ops.Load | ops.WRITES, coords: Sequence[Index]) -> Index:
    """Elements from the buffer's start, Lookups left in place."""
    total = Index(op.view.offset)
    for index, stride in zip(op.indices, op.view.strides, strict=True):
        total = total + resolve(facts, index, coords) * stride
    return total


def memory_address(facts: Facts, value: Value, coords: Sequence[Index]) -> Index:
    return place_address(facts.strides(value), coords, facts.spaced.get(value))


def place_address(
    strides: Sequence[int], coords: Sequence[Index], spaced: Spacing | None = None
) -> Index:
    """Elements from the start of a tile in scratch."""
    total = Index(0)
    for axis, (coord, stride) in enumerate(zip(coords, strides, strict=True)):
        if spaced and axis == spaced.axis:
            part, rest = affine.divide(coord, spaced.width), affine.remainder(coord, spaced.width)
            coord = part * spaced.across + rest
        total = total + coord * stride
    return total


def chunk_starts(extent: int, width: int) -> list[tuple[int, int]]:
    """(first element, lanes) of the vectors that cover an axis; the last may be narrower."""
    return [(start, min(width, extent - start)) for start in range(0, extent, width)]


def vectors(shape: Sequence[int], width: int) -> int:
    """How many vectors hold a tile whose last axis is vectorised."""
    count = -(-shape[-1] // width) if shape else 1
    for extent in shape[:-1]:
        count *= extent
    return count


def reads_registers(facts: Facts, value: Value) -> bool:
    """Whether an inline value is computed from a register tile."""

    def operands(current: Value) -> Sequence[Value]:
        op = facts.producers.get(current) if facts.kind(current) == "inline" else None
        return op.operands() if isinstance(op, MOVES) else ()

    return any(
        facts.kind(current) == "registers" and current not in facts.spilled
        for current in walks.reachable([value], operands)
    )


def apart(a: ops.Store, b: ops.Store) -> bool:
    """Whether two stores are known to write different elements, at all points and in all programs:
    to other buffers, or where the indices of one dim differ modulo what their terms count in."""
    if a.view.buffer is not b.view.buffer:
        return not a.view.buffer.alias or a.view.buffer.alias != b.view.buffer.alias
    span = 0
    for stride, extent in sorted(zip(a.view.strides, a.view.shape, strict=True)):
        if extent >= UNBOUNDED and len(a.view.shape) > 1:
            return False
        if stride and extent > 1 and stride <= span:
            return False  # two points of the view may be one element
        span += stride * (extent - 1)  # an unbounded dim is the only one
    same_window = a.view.shape == b.view.shape and a.view.strides == b.view.strides
    if not same_window or a.view.offset != b.view.offset:
        return False
    for stride, left, right in zip(a.view.strides, a.indices, b.indices, strict=True):
        step = gcd(*(coefficient for _, coefficient in (*left.terms, *right.terms)))
        distance = left.constant - right.constant
        if not is_symbolic(distance) and stride and (distance % step if step else distance):
            return True
    return False


def stores_of(facts: Facts, value: Value) -> dict[ops.Store, int]:
    """The stores that maps and casts lead to from a register tile, each with how many ways do."""

    found: dict[ops.Store, int] = {}
    order: dict[Value, None] = {}
    for current in walks.post_order(value, facts.made_of, order):
        order[current] = None
    ways = dict.fromkeys(order, 0) | {value: 1}
    for current in reversed(order):
        for op in facts.users.get(current, ()):
            if isinstance(op, ops.Store):
                found[op] = found.get(op, 0) + ways[current]
            elif isinstance(op, ELEMENTWISE):
                ways[op.result] = min(MOST_WAYS, ways[op.result] + ways[current])
    return found


def last_product(facts: Facts, op: ops.Map) -> ops.Map | None:
    """The product that an `add` of a fast kernel rounds together with its sum: the last one of a
    sum of two or more products. None where `op` is no such sum. Asked once kinds are final."""
    if not facts.kernel.fast:
        return None

    def rest_of(total: ops.Map) -> list[ops.Map]:
        sides = map(partial(_used_once, facts), total.args if _is_sum(total) else ())
        return [side for side in sides if side is not None and side.fn == "add"]

    for total in walks.post_order(op, rest_of, facts.products):
        facts.products[total] = _last_product(facts, total)
    return facts.products[op]


def _is_sum(op: ops.Map) -> bool:
    return op.fn == "add" and op.result.dtype in (f32, f64)


def _last_product(facts: Facts, op: ops.Map) -> ops.Map | None:
    """`last_product`, known of the sums that `op` adds to."""
    if not _is_sum(op):
        return None
    for arg, other in (op.args[::-1], op.args):
        product = _used_once(facts, arg)
        if product is None or product.fn != "mul":
            continue
        rest = _used_once(facts, other)
        if rest is not None and (rest.fn == "mul" or facts.products.get(rest) is not None):
            return product
    return None


def _used_once(facts: Facts, value: Value) -> ops.Map | None:
    """The map that makes an inline value with one user."""
    op = facts.producers.get(value)
    once = len(facts.users.get(value, ())) == 1 and facts.kind(value) == "inline"
    return op if once and isinstance(op, ops.Map) else None


def divisors(load: ops.Load, axis: int) -> list[int]:
    """What positions along an axis of the tile are divided by in the indices, the least first."""
    found: set[int] = set()
    stack = list(load.indices)
    while stack:
        for atom, _ in stack.pop().terms:
            if isinstance(atom, FloorDiv | Mod):
                stack.append(atom.base)
                if isinstance(atom.divisor, int) and axis in atom.base.axes():
                    found.add(atom.divisor)
    return sorted(found)
