"""Dots: which unit multiplies, where its operands are, how partial sums are added up."""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.layouts import in_registers
from fuser.backend.nvptx.ir.values import SharedTile, Slot, Tile, tile_bytes
from fuser.backend.nvptx.layouts.assignment import DotPlan
from fuser.backend.nvptx.layouts.convert import convert
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.layouts.mma_units import known_unit, needs_inner_k, unit_name
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.lowering.reduce import fill_edge
from fuser.backend.nvptx.memory.bank_conflicts import store_cycles
from fuser.backend.nvptx.memory.operand_staging import land_copies, operand_cover, write
from fuser.backend.nvptx.schedule import consumer_warps, wgmma
from fuser.backend.nvptx.schedule.wgmma import accumulate
from fuser.backend.nvptx.tiling.sliced_tiles import dots_of_slices, slice_length, slice_of
from fuser.dtypes import DType
from fuser.tilegen import ops
from fuser.tilegen.value import Value

Source = SharedTile | Tile


def lower_dot(low: Builder, op: ops.Dot) -> Tile:
    """The result tile of a dot, in its accumulator layout."""
    plan = low.assignment.dots[op]
    if low.attempt.frugal:
        length = slice_length(low, op, plan)
        if length < op.a.shape[1]:
            return _sliced_dot(low, op, plan, length)
    acc = low.tile(op.acc, plan.accumulator)
    if plan.kind == "fma":
        return _fma_dot(low, op, plan, acc)
    scratch: list[Slot] = []
    result = _on_tensor_cores(low, op, plan, acc, scratch)
    for slot in scratch:
        low.shared.free(slot)
    return result


def _sliced_dot(low: Builder, op: ops.Dot, plan: DotPlan, length: int) -> Tile:
    """A dot whose operands do not fit shared memory: slices of k, one after the other."""
    low.needs.notes.append(f"a dot of {list(op.a.shape)} in slices of {length}")
    left, right = low.as_it_is(op.a), low.as_it_is(op.b)
    for number, dot in enumerate(dots_of_slices(low.assignment, op, plan, length)):
        low.env[dot.a] = slice_of(low, left, 1, number * length, length)
        low.env[dot.b] = slice_of(low, right, 0, number * length, length)
        result = lower_dot(low, dot)
        low.env[dot.result] = result
    return result


def _on_tensor_cores(
    low: Builder, op: ops.Dot, plan: DotPlan, acc: Tile, scratch: list[Slot]
) -> Tile:
    """scratch: gets the slots of operands that were in registers, where they may be freed."""
    left = operand(low, op, "a", scratch)
    right = operand(low, op, "b", scratch)
    land_copies(low)
    consumer_warps.before_dot(low, op)
    if plan.kind == "wgmma":
        result = wgmma.wgmma_dot(low, op, plan, left, right, acc)
        group = consumer_warps.group_of(low, op)
        if group and not _land_group(low, op, group, result):
            return result
        consumer_warps.after_dot(low, op)
        return low.tile(op.result) if group else result
    if plan.kind == "mma":
        return _mma_dot(low, op, plan, left, right, acc)
    return _tf32_dot(low, op, plan, left, right, acc)


def _land_group(low: Builder, op: ops.Dot, group: list[ops.Dot], result: Tile) -> bool:
    """Note a dot of a group; after the last, wait for all and bind the results. Whether it was the
    last."""
    stream = next(s for s in low.producer.streams.values() if op in s.group)
    stream.flying[op] = result
    if op is not group[-1]:
        return False
    for dot, tile in zip(group, wgmma.wait(low, [*stream.flying.values()], 0), strict=True):
        low.env[dot.result] = tile
    stream.flying.clear()
    return True


# operands -----------------------------------------------------------------------------------------


def operand(low: Builder, op: ops.Dot, role: str, scratch: list[Slot] | None = None) -> Source:
    """The operand where the instructions can read it: shared memory, or fragments in registers."""
    value: Value = getattr(op, role)
    entry = low.env[value]
    plan = low.assignment.dots[op]
    known = low.env.prepared(entry, role, plan)
    if known is not None:
        return known
    if isinstance(entry, SharedTile):
        return entry
    assert plan.grid is not None
    fragment: Layout | None = None
    k, grid = op.a.shape[1], plan.grid
    if role == "b" and grid.run:
        return low.tile(value, grid.right_fragment(k))
    if role == "a":
        fragment = grid.left_fragment32(k) if plan.kind == "tf32" else grid.left_fragment(k)
    if not isinstance(entry, Tile):
        wanted = fragment if fragment and plan.split_k == 1 else low.plain_layout(value.shape)
        entry = low.tile(value, wanted)
    axis = 1 if role == "a" else 0
    if (
        (plan.split_k == 1 or grid.run)
        and fragment is not None
        and in_registers(entry.layout, fragment)
    ):
        return fill_edge(low, convert(low, entry, fragment), (axis,))
    made = _to_shared(low, op, role, entry, axis)
    if scratch is not None and low.caller and not low.producer.streams:
        scratch.append(made.slot)
    return made


def _inner_axis(tile: Tile, shape: tuple[int, ...], k_axis: int) -> int:
    """The axis along which a tile that threads write is contiguous in shared memory: that of their
    longest vectors; where both have some, the one whose stores have fewer bank conflicts."""
    vectors = [tile.layout.vector(axis) for axis in (0, 1)]
    if min(vectors) * tile.dtype.bytes < 8:
        return max((0, 1), key=lambda axis: (vectors[axis], axis == k_axis))
    tiles = [SharedTile(tile.dtype, shape, axis, Slot(0, 0, 0)) for axis in (0, 1)]
    cycles = [store_cycles(shared, tile.layout) for shared in tiles]
    return min((0, 1), key=lambda axis: (cycles[axis], axis != k_axis))


def _to_shared(low: Recording, op: ops.Dot, role: str, tile: Tile, k_axis: int) -> SharedTile:
    """Write an operand that is in registers to shared memory, with zeros past the end of k."""
    shape = operand_cover(low.assignment, op, role)
    layout = tile.layout
    inner = k_axis if needs_inner_k(op) else _inner_axis(tile, shape, k_axis)
    slot = low.shared.allocate(tile_bytes(shape, inner, tile.dtype), 1024)
    target = SharedTile(tile.dtype, shape, inner, slot)
    if layout.shape[k_axis] < shape[k_axis]:
        write(low, _zeros(low, tile.dtype, shape, low.plain_layout(shape)), target)
    write(low, fill_edge(low, tile, (k_axis,)), target)
    return target


# sums of parts ------------------------------------------------------------------------------------


def zeros(low: Recording, op: ops.Dot) -> Tile:
    """What partial sums start from."""
    layout = low.assignment.dots[op].accumulator
    return _zeros(low, op.acc.dtype, op.acc.shape, layout)


def _zeros(low: Recording, dtype: DType, shape: Coordinates, layout: Layout) -> Tile:
    return low.add(gpu.Full(value=0, results=(low.new(dtype, shape, layout, "zero"),)))


def add_partials(low: Builder, op: ops.Dot, partial: Tile, start: Tile) -> Tile:
    """start plus the partial sums of the groups of warps, and blocks, that shared k, through shared
    memory."""
    plan = low.assignment.dots[op]
    source, size = partial.layout, op.acc.dtype.bytes
    steps = (source.shape[1] * size + 16, size)
    whole = source.shape[0] * steps[0]
    groups = plan.split_k
    # the part of a group lies `whole` bytes after the part before it
    bits = groups.bit_length() - 1
    first = len(source.bits) - low.cluster.bits - bits
    parts = (0,) * first + tuple(whole << bit for bit in range(bits))
    # threads beyond the tile read, too, what nobody looks at
    rows, columns = start.layout.shape
    reach = (rows - 1) * steps[0] + columns * size
    slot = low.shared.allocate(whole * (groups - 1) + max(whole, reach))
    low.do(gpu.WritePartials(slot=slot, x=partial, steps=steps, parts=parts))
    if plan.blocks > 1:
        low.cluster.publish()
    made = low.new(start.dtype, start.shape, start.layout, "sum")
    offsets = tuple(group * whole for group in range(groups))
    low.do(gpu.AddPartials(
        slot=slot, acc=start, steps=steps, offsets=offsets, cluster=plan.blocks, results=(made,)
    ))  # fmt: skip
    if plan.blocks > 1:
        low.cluster.done_reading()  # the slot is not freed: others may still read it
    else:
        low.shared.free(slot)
    return made


# mma.sync -----------------------------------------------------------------------------------------


def _mma_dot(
    low: Recording, op: ops.Dot, plan: DotPlan, left: Source, right: Source, acc: Tile
) -> Tile:
    """A dot of operands of 8 or 16 bits; sums that truncate start afresh in each dot."""
    assert plan.grid is not None and isinstance(right, Tile) == bool(plan.grid.run)
    afresh = known_unit(op).truncates
    made = low.new(acc.dtype, acc.shape, acc.layout, "sum")
    low.do(gpu.Mma(
        unit=unit_name(op), grid=plan.grid, k=op.a.shape[1], a=left, b=right,
        acc=zeros(low, op) if afresh else acc, whole=low.target.sm >= known_unit(op).whole_sm,
        results=(made,),
    ))  # fmt: skip
    return accumulate(low, acc, made) if afresh else made


def _tf32_dot(
    low: Recording, op: ops.Dot, plan: DotPlan, left: Source, right: Source, acc: Tile
) -> Tile:
    """float32 matmuls on tf32 units: x = big + small, and big*big + big*small + small*big keeps
    about 21 bits of each operand; precision "tf32" keeps big*big alone."""
    assert plan.grid is not None and isinstance(right, SharedTile)
    # the unit truncates its sums: a fresh start each dot, added in float32, keeps that from growing
    split = op.precision != "tf32"
    made = low.new(acc.dtype, acc.shape, acc.layout, "sum")
    low.do(gpu.MmaTf32(
        grid=plan.grid, k=op.a.shape[1], a=left, b=right, acc=zeros(low, op) if split else acc,
        split=split, results=(made,),
    ))  # fmt: skip
    return accumulate(low, acc, made) if split else made


# no tensor core -----------------------------------------------------------------------------------


def _fma_dot(low: Builder, op: ops.Dot, plan: DotPlan, acc: Tile) -> Tile:
    """Any dtype, one multiply-add at a time: both operands in shared memory, a loop over k."""
    layout, size = plan.accumulator, op.a.dtype.bytes
    slots, steps = [], []
    for axis, value in enumerate((op.a, op.b)):
        tile = low.as_it_is(value)
        rows = max(tile.layout.shape[0], layout.shape[0] if axis == 0 else 0)
        columns = max(tile.layout.shape[1], layout.shape[1] if axis == 1 else 0)
        slots.append(low.shared.allocate(rows * columns * size, 16))
        steps.append((columns * size, size))
        low.do(gpu.WriteShared(slot=slots[-1], x=tile, steps=steps[-1], axis=1))
    made = low.new(acc.dtype, acc.shape, acc.layout, "sum")
    low.do(gpu.FmaDot(
        dtype=op.a.dtype, k=op.a.shape[1], a=slots[0], a_steps=steps[0], b=slots[1],
        b_steps=steps[1], acc=acc, results=(made,),
    ))  # fmt: skip
    for slot in slots:
        low.shared.free(slot)
    return made
