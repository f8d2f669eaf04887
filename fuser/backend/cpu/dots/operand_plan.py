"""Where the operands of a dot by tile or dot-product instructions lie.

Such an instruction adds up groups of neighbours along k. The left operand is read row by row, k
innermost; the right one in panels of 16 columns, the elements of a group together (`PANEL`).
Memory that has this form is read as it is; anything else is copied to scratch first. So are left
bytes for an instruction that takes them as unsigned ones: 128 is added to each in its copy.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import DotPlan, Facts, ImplicitIm2col, Packed
from fuser.backend.cpu.im2col.implicit_plan import find_implicit_im2col
from fuser.base.target import DotUnit
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar, in_range
from fuser.tilegen.ir import Op, View
from fuser.tilegen.value import INDEX, TileType, Value

PANEL = 16
SIGN = -128
"""A byte of the highest bit alone."""
ROWS = 16
"""Rows of a tile register: tiles in scratch are padded to whole ones."""


def padded(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def plan_unit_dot(facts: Facts, op: ops.Dot, unit: DotUnit) -> None:
    """Decide the operands' copies; the result is a tile in scratch of whole rows and panels."""
    window = None
    whole = unit.name != "amx" or op.a.shape[0] % ROWS == 0
    if rows_in_place(facts, op.a, unit) and (whole or is_zero(facts, op.acc)):
        a = op.a
    else:
        accumulators = _accumulators(facts, op)
        if accumulators == [op.result] and is_zero(facts, op.acc):
            window = find_implicit_im2col(facts, op.a, unit)
        a = _copy(facts, op, op.a, Packed(unit, False, window))
    b = op.b if panels_in_place(facts, op.b, unit) else _copy(facts, op, op.b, Packed(unit, True))
    for value in _accumulators(facts, op):
        facts.orders[value] = (0, 1)
        facts.pinned.add(value)
        rows = window.rows if window else value.shape[0]
        facts.extents[value] = (padded(rows, ROWS), padded(value.shape[1], PANEL))
        if window:
            facts.spaced[value] = (window.width, window.across)
    facts.dots[op] = DotPlan(a, b, 1, 0, 0, unit)


def is_zero(facts: Facts, value: Value) -> bool:
    """Whether every element of a value is known to be 0."""
    made = facts.producers.get(value)
    return isinstance(made, ops.Full) and made.value == 0


def _accumulators(facts: Facts, op: ops.Dot) -> list[Value]:
    """The result, and the carried tile of a loop that it is the next value of."""
    found = [op.result]
    for loop in facts.producers.values():
        if isinstance(loop, ops.For) and op.result in kernel_facts.yield_of(loop.body):
            slot = kernel_facts.yield_of(loop.body).index(op.result)
            found += [loop.body.params[1 + slot], loop.results[slot]]
    return list(dict.fromkeys(found))


def _copy(facts: Facts, op: ops.Dot, value: Value, packed: Packed) -> Value:
    """A copy for a unit, as a value of its own; dots of one operand share it."""
    found = facts.copies.get((value, packed))
    if found is not None:
        facts.users[found].append(op)
        return found
    made = _unsigned(facts, value) if _flips(packed) else ops.Cast(x=value, dtype=value.dtype)
    copy = Value(TileType(value.dtype, value.shape), f"{value.name}.packed")
    made.results = (copy,)
    facts.producers[copy] = made
    # It belongs where the operand is, so that what a loop does not change is copied once.
    facts.blocks[copy] = facts.blocks[value]
    owner = facts.producers.get(value)
    facts.iterations[made] = facts.iterations[owner] if owner else facts.iterations[op]
    facts.parents[made] = facts.blocks[value]
    facts.users.setdefault(value, []).append(made)
    facts.users[copy] = [op]
    facts.kinds[copy] = "memory"
    facts.orders[copy] = (0, 1)
    facts.packed[copy] = packed
    rows, columns = value.shape
    depth = packed.unit.depth
    if packed.window is not None:
        facts.implicit_im2col[copy] = packed.window
        facts.extents[copy] = _room(packed.window)
    elif packed.right:
        facts.extents[copy] = (padded(rows, depth), padded(columns, PANEL))
    else:
        facts.extents[copy] = (padded(rows, ROWS), padded(columns, depth))
    facts.copies[value, packed] = copy
    return copy


def _flips(packed: Packed) -> bool:
    return packed.unit.unsigned_left and not packed.right


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
    read on behind the pixels under it."""
    pixels = window.copied // window.channels
    over = padded(window.rows, ROWS) - window.rows
    return pixels + over * window.strides[1], window.channels


def _counter(extent: int) -> Index:
    value = Value(TileType(INDEX), "any", 0, max(0, extent - 1))
    return Index(0, ((Scalar(value), 1),)) if extent > 1 else Index(0)


def _linear(address: Index, steps: list[tuple[Index, int | None]]) -> list[int] | None:
    """The step of each counter in an address that is a sum of them; None if it is not, or if a
    step is not the one that is wanted (None: any)."""
    found = []
    for counter, wanted in steps:
        step = wanted or 0
        if counter.terms:
            step = address.coefficient(counter.terms[0][0])
            address = address - counter * step
        if wanted is not None and step != wanted:
            return None
        found.append(step)
    counters = {value for counter, _ in steps for value in counter.values()}
    return None if counters & set(address.values()) else found


def _plain_load(facts: Facts, value: Value, unit: DotUnit) -> ops.Load | None:
    """The load of the unit's dtype that a value is, if none of its elements is out of bounds."""
    op = facts.producers.get(value)
    if not isinstance(op, ops.Load) or facts.kind(value) != "inline":
        return None
    if op.mask is not None or any(kernel_facts.lookups(index) for index in op.indices):
        return None
    inside = op.pad is None or all(map(in_range, op.indices, op.view.shape))
    return op if inside and op.view.dtype.name == unit.dtype else None


def rows_in_place(facts: Facts, value: Value, unit: DotUnit) -> int:
    """Elements between the rows of a left operand that can be read where it is; 0 if it cannot."""
    if unit.unsigned_left:
        return 0
    load = _plain_load(facts, value, unit)
    rows, depth = value.shape
    if load is None or depth % unit.depth or (unit.name == "amx" and rows < ROWS):
        return 0
    row, k = _counter(rows), _counter(depth)
    steps = _linear(kernel_facts.address_of(facts, load, (row, k)), [(row, None), (k, 1)])
    return 0 if steps is None else max(steps[0], depth)


def _whole_panels(view: View, depth: int, columns: int, unit: DotUnit) -> bool:
    """Whether panels can be read to their ends: they have no padding, or belong to a constant that
    was packed with zeros there."""
    if depth % unit.depth == 0 and columns % PANEL == 0:
        return True
    packed = (padded(depth, unit.depth) // unit.group, PANEL, unit.group)
    return view.buffer.role == "constant" and tuple(view.shape[1:]) == packed


def panels_in_place(facts: Facts, value: Value, unit: DotUnit) -> int:
    """Elements between the panels of a right operand that has them already; 0 if it has not."""
    load = _plain_load(facts, value, unit)
    depth, columns = value.shape
    if load is None or not _whole_panels(load.view, depth, columns, unit):
        return 0
    step, part = _counter(-(-depth // unit.group)), _counter(unit.group)
    panel, lane = _counter(-(-columns // PANEL)), _counter(PANEL)
    point = (step * unit.group + part, panel * PANEL + lane)
    wanted = [(part, 1), (lane, unit.group), (step, PANEL * unit.group), (panel, None)]
    steps = _linear(kernel_facts.address_of(facts, load, point), wanted)
    return 0 if steps is None else max(steps[3], padded(depth, unit.depth) * PANEL)
