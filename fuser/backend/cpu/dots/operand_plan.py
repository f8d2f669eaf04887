"""How dots read their operands: where they are, or from a copy that is made first.

FMAs take vectors of one operand and elements of the other. What is dear to compute at its points,
or lies across the vectors, is kept in scratch, in the order of axes that the vectors have. So are
vectors that several register tiles read, and find in bounds, or far away, each time anew: in panels
as wide as a register tile (`pack_panels`).

The instruction of a dot unit adds up groups of neighbours along k. The left operand is read row by
row, k innermost; the right one in panels of 16 columns, the elements of a group together (`PANEL`).
Memory that has this form is read as it is; anything else is packed. So are left bytes for an
instruction that takes them as unsigned ones: 128 is added to each in its copy.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis import affine, costs, kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.dots.records import ImplicitIm2col, OperandPlan, Spacing
from fuser.backend.cpu.dots.register_tile import evaluated_once
from fuser.backend.cpu.im2col.implicit_plan import find_implicit_im2col
from fuser.base.target import DotUnit
from fuser.graph import walks
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import in_range
from fuser.tilegen.ir import Op, View
from fuser.tilegen.value import TileType, Value

PANEL = 16
SIGN = -128
"""A byte of the highest bit alone."""
ROWS = 16
"""Rows of a tile register: tiles in scratch are padded to whole ones."""
TILE_BYTES = 64
"""Bytes of a row of a tile register, and of a line of memory."""
COPY, CHECK, FAR = 4.0, 2.0, 2.0
"""Instructions of a vector that is copied to scratch, and of a bound that a point is held against;
as which a vector counts that is not in L1."""
MOST_INLINE = 8
"""Instructions of an operand computed in the loop over k where nothing is computed twice; more take
the registers of sums."""


# by FMAs, at points -------------------------------------------------------------------------------


def widened(facts: Facts, op: ops.Dot, value: Value) -> Value:
    """An operand in the accumulator's dtype."""
    return value if value.dtype == op.result.dtype else _cast(facts, op, value)


def _cast(facts: Facts, op: ops.Dot, value: Value) -> Value:
    dtype = op.result.dtype
    return facts.derive(op, value, ops.Cast(x=value, dtype=dtype), dtype, "wide")


def broadcast_operand(
    facts: Facts, op: ops.Dot, value: Value, right: bool, width: int
) -> OperandPlan:
    """An operand whose elements are broadcast; it is kept where they are dear."""
    if broadcast_cost(facts, op, value, width) > 0:
        keep(facts, value)
    return OperandPlan(value, right)


def vector_operand(facts: Facts, op: ops.Dot, value: Value, axis: int, width: int) -> OperandPlan:
    """An operand that is loaded in vectors along an axis of its own; it is kept with this axis
    innermost where they would be gathered, or are dear."""
    order = (0, 1) if axis == 1 else (1, 0)
    if _movable(facts, value):
        facts.orders[value] = order
        facts.pinned.add(value)
    elif vector_cost(facts, op, value, axis, width) > 0:
        if facts.kind(value) != "inline":
            value = _cast(facts, op, value)
        keep(facts, value, order)
        facts.pinned.add(value)
    return OperandPlan(value, axis == 1, axis)


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


def reuse(facts: Facts, op: ops.Dot, value: Value) -> float:
    """How many runs of the dot share one copy of an operand."""
    owner = facts.producers.get(value)
    made = facts.iterations[owner] if owner else facts.iterations[op]
    return max(1.0, facts.iterations[op] / made)


def broadcast_cost(facts: Facts, op: ops.Dot, value: Value, width: int) -> float:
    """What copying the row operand costs; 0 if its elements can be broadcast where they are."""
    if facts.kind(value) != "inline" or _leaf_load(facts, value):
        return 0.0
    return value.type.size * costs.tree_cost(facts, value) / width / reuse(facts, op, value)


def vector_cost(facts: Facts, op: ops.Dot, value: Value, axis: int, width: int) -> float:
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
    return copy / reuse(facts, op, value) + 1


def _check_cost(facts: Facts, value: Value, axis: int) -> float:
    """Instructions by which an inline operand is found in bounds along an axis, at each point."""
    cost = 0.0
    for current in walks.reachable([value], facts.inline_operands):
        op = facts.producers.get(current)
        if not isinstance(op, ops.Load) or op.pad is None:
            continue
        for position, extent in zip(op.indices, op.view.shape, strict=True):
            if axis in position.axes() and not in_range(position, extent):
                cost += CHECK
        cost += CHECK if op.mask is not None else 0.0
    return cost


def _far_cost(facts: Facts, value: Value, axis: int) -> float:
    """What a vector along an axis costs beyond one in L1, where all register tiles read rows of an
    array of any pitch: they may lie in a few sets of L1, each in a page of its own."""
    op = facts.producers.get(value)
    if not isinstance(op, ops.Load):
        return 0.0
    steps = zip(op.indices, op.view.strides, strict=True)
    apart = any(is_symbolic(step) and 1 - axis in position.axes() for position, step in steps)
    return FAR if apart else 0.0


def pack_panels(facts: Facts, op: ops.Dot, plan: OperandPlan, width: int, passes: int) -> None:
    """Keep an operand that is loaded in vectors in panels of `width` elements, with all of k in
    each, where that pays. passes: register tiles that read a panel."""
    value, axis, depth = plan.value, plan.axis, op.a.shape[1]
    if facts.kind(value) != "inline":
        return
    again = _check_cost(facts, value, axis) + _far_cost(facts, value, axis)
    if passes * again <= COPY + again:
        return
    keep(facts, value, (0, 1) if axis == 1 else (1, 0))
    facts.pinned.add(value)
    room = list(value.shape)
    room[axis] = padded(room[axis], width)
    facts.extents[value] = tuple(room)
    facts.spaced[value] = Spacing(axis, width, depth * width)


# by dot units, in rows and panels -----------------------------------------------------------------


def padded(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def is_zero(facts: Facts, value: Value) -> bool:
    """Whether every element of a value is known to be 0."""
    made = facts.producers.get(value)
    return isinstance(made, ops.Full) and made.value == 0


def left_of_unit(facts: Facts, op: ops.Dot, unit: DotUnit, alone: bool) -> OperandPlan:
    """Rows. alone: no loop goes on with the sums."""
    zero, window = is_zero(facts, op.acc), None
    if zero or unit.name != "amx" or op.a.shape[0] % ROWS == 0:
        if step := _rows_in_place(facts, op.a, unit):
            return OperandPlan(op.a, False, unit=unit, step=step)
    if zero and alone:
        window = find_implicit_im2col(facts, op.a, unit)
    return _packed(facts, op, op.a, unit, False, window)


def right_of_unit(facts: Facts, op: ops.Dot, unit: DotUnit) -> OperandPlan:
    """Panels."""
    if step := _panels_in_place(facts, op.b, unit):
        return OperandPlan(op.b, True, unit=unit, step=step)
    return _packed(facts, op, op.b, unit, True)


def _packed(
    facts: Facts, op: ops.Dot, source: Value, unit: DotUnit, right: bool,
    window: ImplicitIm2col | None = None,
) -> OperandPlan:  # fmt: skip
    """A copy for a unit, as a value of its own; dots of one operand share it."""
    for plan in facts.packed.values():
        if (plan.source, plan.unit, plan.right, plan.window) == (source, unit, right, window):
            facts.users[plan.value].append(op)
            return plan
    flips = unit.unsigned_left and not right
    made = _unsigned(facts, source) if flips else ops.Cast(x=source, dtype=source.dtype)
    value = facts.derive(op, source, made, source.dtype, "packed")
    rows, columns = source.shape
    if window is not None:
        room, step = _room(window), window.channels * window.strides[1]
    elif right:
        room = (padded(rows, unit.depth), padded(columns, PANEL))
        step = room[0] * PANEL
    else:
        room = (padded(rows, ROWS), padded(columns, unit.depth))
        step = room[1]
    facts.kinds[value], facts.orders[value], facts.extents[value] = "memory", (0, 1), room
    facts.packed[value] = OperandPlan(
        value, right, unit=unit, step=step, source=source, window=window
    )
    return facts.packed[value]


def _unsigned(facts: Facts, value: Value) -> Op:
    """A byte and 128, as an unsigned one: its highest bit flips."""
    bit = ops.Full(value=SIGN, shape=value.shape, dtype=value.dtype)
    flip = Value(TileType(value.dtype, value.shape), f"{value.name}.sign")
    bit.results = (flip,)
    facts.producers[flip], facts.blocks[flip] = bit, facts.blocks[value]
    facts.parents[bit], facts.kinds[flip] = facts.blocks[value], "inline"
    made = ops.Map(fn="bitwise_xor", args=(value, flip))
    facts.users[flip] = [made]
    return made


def _room(window: ImplicitIm2col) -> tuple[int, int]:
    """Pixels and channels of a copy of an image. Tiles that hang over the last row of the result
    read on after the pixels under it."""
    pixels = window.copied // window.channels
    over = padded(window.rows, ROWS) - window.rows
    return pixels + over * window.strides[1], window.channels


def _plain_load(facts: Facts, value: Value, unit: DotUnit) -> ops.Load | None:
    """The load of the unit's dtype that a value is, if none of its elements is out of bounds."""
    op = kernel_facts.direct_load(facts, value, unit.dtype)
    inside = op is not None and (op.pad is None or all(map(in_range, op.indices, op.view.shape)))
    return op if inside else None


def _rows_in_place(facts: Facts, value: Value, unit: DotUnit) -> int:
    """Elements between the rows of a left operand that can be read where it is; 0 if it cannot."""
    load = _plain_load(facts, value, unit)
    rows, depth = value.shape
    if load is None or unit.unsigned_left or depth % unit.depth:
        return 0
    if unit.name == "amx" and rows < ROWS:
        return 0
    row, k = affine.any_counter(rows), affine.any_counter(depth)
    address = kernel_facts.address_of(facts, load, (row, k))
    steps = affine.steps_of(address, (row, k), (None, 1))
    return 0 if steps is None else max(steps[0], depth)


def _whole_panels(view: View, depth: int, columns: int, unit: DotUnit) -> bool:
    """Whether panels can be read to their ends: they have no padding, or belong to a constant that
    was packed with zeros there."""
    if depth % unit.depth == 0 and columns % PANEL == 0:
        return True
    packed = (padded(depth, unit.depth) // unit.group, PANEL, unit.group)
    return view.buffer.role == "constant" and tuple(view.shape[1:]) == packed


def _panels_in_place(facts: Facts, value: Value, unit: DotUnit) -> int:
    """Elements between the panels of a right operand that has them already; 0 if it has not."""
    load = _plain_load(facts, value, unit)
    depth, columns = value.shape
    if load is None or not _whole_panels(load.view, depth, columns, unit):
        return 0
    extents = (-(-columns // PANEL), -(-depth // unit.group), PANEL, unit.group)
    counters = panel, step, lane, part = [affine.any_counter(extent) for extent in extents]
    point = (step * unit.group + part, panel * PANEL + lane)
    address = kernel_facts.address_of(facts, load, point)
    steps = affine.steps_of(address, counters, (None, PANEL * unit.group, unit.group, 1))
    return 0 if steps is None else max(steps[0], padded(depth, unit.depth) * PANEL)
