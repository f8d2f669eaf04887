"""Dots: operands from shared memory or registers, then mma.sync, split tf32, wgmma or FMAs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fuser.backend.nvptx import consumer, wgmma
from fuser.backend.nvptx.assignment import DotPlan
from fuser.backend.nvptx.convert import convert, write_tile
from fuser.backend.nvptx.elementwise import cast
from fuser.backend.nvptx.emit.code import shared_offset
from fuser.backend.nvptx.emit.memory import from_memory
from fuser.backend.nvptx.ir.layouts import in_registers, offset_of
from fuser.backend.nvptx.ir.values import SharedTile, Tile, tile_bytes
from fuser.backend.nvptx.layout import Layout
from fuser.backend.nvptx.mma import mma_dot
from fuser.backend.nvptx.reduce import fill_edge
from fuser.backend.nvptx.slices import dots_of_slices, slice_length, slice_of
from fuser.backend.nvptx.stage import fence_async, land_copies, operand_cover, write
from fuser.backend.nvptx.units import needs_inner_k
from fuser.backend.nvptx.values import literal, memory_type, vectors
from fuser.backend.text import real
from fuser.tilegen import ops
from fuser.tilegen.value import Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

Source = SharedTile | Tile


def lower_dot(low: Lowering, op: ops.Dot) -> Tile:
    """The result tile of a dot, in its accumulator layout."""
    plan = low.assignment.dots[op]
    if low.frugal:
        length = slice_length(low, op, plan)
        if length < op.a.shape[1]:
            return _sliced_dot(low, op, plan, length)
    acc = low.tile(op.acc, plan.accumulator)
    if plan.kind == "fma":
        return _fma_dot(low, op, plan, acc)
    low.scratch = []
    result = _on_tensor_cores(low, op, plan, acc)
    if not consumer.is_deferred(low, op):
        for slot in low.scratch:  # of operands that were in registers
            low.shared.free(slot)
    low.scratch = []
    return result


def _sliced_dot(low: Lowering, op: ops.Dot, plan: DotPlan, length: int) -> Tile:
    """A dot whose operands do not fit shared memory: slices of k, one after the other."""
    low.notes.append(f"a dot of {list(op.a.shape)} in slices of {length}")
    left, right = low.as_it_is(op.a), low.as_it_is(op.b)
    for number, dot in enumerate(dots_of_slices(low, op, plan, length)):
        low.env[dot.a] = slice_of(low, left, 1, number * length, length)
        low.env[dot.b] = slice_of(low, right, 0, number * length, length)
        result = lower_dot(low, dot)
        low.env[dot.result] = result
    return result


def _on_tensor_cores(low: Lowering, op: ops.Dot, plan: DotPlan, acc: Tile) -> Tile:
    left = operand(low, op, "a")
    right = operand(low, op, "b")
    land_copies(low)
    low.shared.before_read()
    consumer.before_dot(low, op)
    if plan.kind == "wgmma":
        result = wgmma.wgmma_dot(low, op, plan, left, right, acc)
        group = consumer.group_of(low, op)
        if group and not _land_group(low, op, group, result):
            return result
        consumer.after_dot(low, op)
        return low.tile(op.result) if group else result
    if plan.kind == "mma":
        return mma_dot(low, op, plan, left, right, acc)
    return _tf32_dot(low, op, plan, left, right, acc)


def _land_group(low: Lowering, op: ops.Dot, group: list[ops.Dot], result: Tile) -> bool:
    """Note a dot of a group; behind the last, leave this iteration's matmuls in flight and bind the
    results. Whether it was the last."""
    stream = next(s for s in low.streams.values() if op in s.group)
    stream.flying[op] = result
    if op is not group[-1]:
        return False
    wgmma.commit(low)
    for dot, tile in zip(group, wgmma.wait_all(low, [*stream.flying.values()], 1), strict=True):
        low.env[dot.result] = tile
    stream.flying = {}
    return True


# operands -----------------------------------------------------------------------------------------


def operand(low: Lowering, op: ops.Dot, role: str) -> Source:
    """The operand where the instructions can read it: shared memory, or fragments in registers."""
    value: Value = getattr(op, role)
    key = (value, role, low.assignment.dots[op])
    if key in low.operands:
        return low.operands[key]
    entry = low.env[value]
    if isinstance(entry, SharedTile):
        return entry
    plan = low.assignment.dots[op]
    assert plan.grid is not None
    fragment: Layout | None = None
    if role == "a":
        k = op.a.shape[1]
        grid = plan.grid
        fragment = grid.left_fragment32(k) if plan.kind == "tf32" else grid.left_fragment(k)
    if not isinstance(entry, Tile):
        wanted = fragment if fragment and plan.split_k == 1 else low.plain_layout(value.shape)
        entry = low.tile(value, wanted)
    axis = 1 if role == "a" else 0
    if plan.split_k == 1 and fragment is not None and in_registers(entry.layout, fragment):
        return fill_edge(low, convert(low, entry, fragment), (axis,))
    return _to_shared(low, op, role, entry, axis)


def _to_shared(low: Lowering, op: ops.Dot, role: str, tile: Tile, k_axis: int) -> SharedTile:
    """Write an operand that is in registers to shared memory, with zeros past the end of k."""
    shape = operand_cover(low, op, role)
    layout = tile.layout
    inner = max((0, 1), key=lambda axis: (layout.vector(axis), axis == k_axis))
    if needs_inner_k(op):
        inner = k_axis
    slot = low.shared.allocate(tile_bytes(shape, inner, tile.dtype), 1024)
    if low.caller and not low.streams:
        low.scratch.append(slot)
    target = SharedTile(tile.dtype, shape, inner, slot)
    if consumer.is_deferred(low, op):
        wgmma.wait_unbound(low)  # the matmuls of the iteration before read what is overwritten here
    low.shared.before_write()
    zero = literal(0, tile.dtype)
    if layout.shape[k_axis] < shape[k_axis]:
        filled = low.plain_layout(shape)
        write(low, Tile(tile.dtype, shape, filled, [zero] * len(filled.regs)), target)
        low.shared.barrier()
        low.shared.before_write()
    write(low, fill_edge(low, tile, (k_axis,)), target)
    fence_async(low)
    return target


# sums of parts ------------------------------------------------------------------------------------


def zeros(low: Lowering, op: ops.Dot) -> Tile:
    """What partial sums start from."""
    layout = low.assignment.dots[op].accumulator
    return Tile(op.acc.dtype, op.acc.shape, layout, [literal(0, op.acc.dtype)] * len(layout.regs))


def add_partials(low: Lowering, op: ops.Dot, partial: Tile, start: Tile) -> Tile:
    """start plus the partial sums of the groups of warps, and blocks, that shared k, through shared
    memory."""
    plan, e = low.assignment.dots[op], low.emitter
    assert plan.grid is not None
    source, size, type = partial.layout, op.acc.dtype.bytes, partial.type
    add = "fadd" if op.acc.dtype.is_float else "add"
    pitch = source.shape[1] * size + 16
    whole = source.shape[0] * pitch
    groups = plan.split_k
    # the part of a group lies `whole` bytes after the part before it
    first = len(source.bits) - low.cluster.bits - groups.bit_length() + 1
    parts = [0] * first + [whole << bit for bit in range(groups.bit_length() - 1)]
    slot = low.shared.allocate(whole * groups)
    low.shared.before_write()
    threads = [r * pitch + c * size for r, c in source.bits]
    base = low.shared.pointer(slot, e.plus(e.thread_part(threads), e.thread_part(parts)))
    for (row, column), (even, odd) in zip(
        source.regs[::2], zip(partial.regs[::2], partial.regs[1::2], strict=True), strict=True
    ):
        pair = e.value(f"insertelement <2 x {type}> poison, {type} {even}, i32 0")
        pair = e.value(f"insertelement <2 x {type}> {pair}, {type} {odd}, i32 1")
        pointer = shared_offset(low, base, row * pitch + column * size)
        e.do(f"store <2 x {type}> {pair}, ptr addrspace(3) {pointer}, align 8")
    layout = start.layout
    threads = [r * pitch + c * size for r, c in layout.bits]
    base = low.shared.pointer(slot, e.thread_part(threads))
    bases, space = [base], 3
    if plan.blocks > 1:
        low.cluster.share()
        bases, space = [low.cluster.of_block(base, n) for n in range(plan.blocks)], 7
    else:
        low.shared.before_read()
    regs = list(start.regs)
    width = min(4, layout.vector(1))
    for at, group in itertools.product(bases, range(groups)):
        for (row, column), members in vectors(layout, 1, width):
            offset = group * whole + row * pitch + column * size
            pointer = e.value(f"getelementptr i8, ptr addrspace({space}) {at}, i32 {offset}")
            sums = e.value(
                f"load <{width} x {type}>, ptr addrspace({space}) {pointer}, align {4 * width}"
            )
            for place, number in enumerate(members):
                part = e.value(f"extractelement <{width} x {type}> {sums}, i32 {place}")
                regs[number] = e.value(f"{add} {type} {regs[number]}, {part}")
    if plan.blocks > 1:
        low.cluster.done_reading()  # the slot is not freed: others may still read it
    else:
        low.shared.free(slot)
    return Tile(start.dtype, start.shape, layout, regs)


# mma.sync, float32 as split tf32 ------------------------------------------------------------------


def _tf32_dot(
    low: Lowering, op: ops.Dot, plan: DotPlan, left: Source, right: Source, acc: Tile
) -> Tile:
    """float32 matmuls on tf32 units: x = big + small, and big*big + big*small + small*big keeps
    about 21 bits of each operand; precision "tf32" keeps big*big alone."""
    grid = plan.grid
    assert grid is not None and isinstance(right, SharedTile)
    k = op.a.shape[1]
    steps, blocks = -(-k // 8), grid.columns // 8
    left_layout, right_layout = grid.left_fragment32(k), grid.right_fragment32(k)
    split = op.precision != "tf32"
    # the unit truncates its sums: a fresh start each dot, added in float32, keeps that from growing
    regs = [real(0.0).ref] * len(acc.regs) if split else list(acc.regs)
    for step in range(steps):
        b = _step_registers(
            low, right, right_layout, [(step * blocks + i) * 2 for i in range(blocks)], 2
        )
        parts_b = [_split(low, words, split) for words in b]
        starts = [(band * steps + step) * 4 for band in range(grid.bands)]
        a = _step_registers(low, left, left_layout, starts, 4)
        for band in range(grid.bands):
            big_a, small_a = _split(low, a[band], split)
            for block in range(blocks):
                big_b, small_b = parts_b[block]
                at = (band * blocks + block) * 4
                sums = regs[at : at + 4]
                if split:
                    sums = _tf32_mma(low, small_a, big_b, sums)
                    sums = _tf32_mma(low, big_a, small_b, sums)
                regs[at : at + 4] = _tf32_mma(low, big_a, big_b, sums)
    if split:
        regs = [
            low.emitter.value(f"fadd float {a}, {b}") for a, b in zip(acc.regs, regs, strict=True)
        ]
    return Tile(acc.dtype, acc.shape, acc.layout, regs)


def _step_registers(
    low: Lowering, source: Source, layout: Layout, starts: list[int], count: int
) -> list[list[str]]:
    """Registers [start, start + count) of a fragment layout, for each start."""
    if isinstance(source, Tile):
        return [source.regs[start : start + count] for start in starts]
    numbers = [start + i for start in starts for i in range(count)]
    found = low.shared_registers(source, layout, numbers)
    return [[found[start + i] for i in range(count)] for start in starts]


def _split(low: Lowering, regs: list[str], split: bool) -> tuple[list[str], list[str]]:
    """(big, small) tf32 words of float32 registers."""
    e = low.emitter
    big = [e.value(f"call i32 @llvm.nvvm.f2tf32.rna(float {reg})") for reg in regs]
    if not split:
        return big, []
    small = []
    for reg, word in zip(regs, big, strict=True):
        rounded = e.value(f"bitcast i32 {word} to float")
        rest = e.value(f"fsub float {reg}, {rounded}")
        small.append(e.value(f"call i32 @llvm.nvvm.f2tf32.rna(float {rest})"))
    return big, small


def _tf32_mma(low: Lowering, a: list[str], b: list[str], sums: list[str]) -> list[str]:
    e = low.emitter
    words = ", ".join(f"i32 {word}" for word in (*a, *b))
    floats = ", ".join(f"float {item}" for item in sums)
    result = e.value(
        "call {float, float, float, float} "
        f"@llvm.nvvm.mma.m16n8k8.row.col.tf32({words}, {floats})"
    )
    return [e.value(f"extractvalue {{float, float, float, float}} {result}, {i}") for i in range(4)]


# no tensor core -----------------------------------------------------------------------------------


def _fma_dot(low: Lowering, op: ops.Dot, plan: DotPlan, acc: Tile) -> Tile:
    """Any dtype, one multiply-add at a time: both operands in shared memory, a loop over k."""
    e, layout = low.emitter, plan.accumulator
    dtype = op.a.dtype
    size, k = dtype.bytes, op.a.shape[1]
    sources = []
    low.shared.before_write()
    for value, axis in ((op.a, 0), (op.b, 1)):
        entry = low.env[value]
        tile = (
            low.tile(value)
            if isinstance(entry, Tile)
            else low.tile(value, low.plain_layout(value.shape))
        )
        rows = max(tile.layout.shape[0], layout.shape[0] if axis == 0 else 0)
        columns = max(tile.layout.shape[1], layout.shape[1] if axis == 1 else 0)
        steps = [columns * size, size]
        slot = low.shared.allocate(rows * columns * size, 16)
        write_tile(low, tile, slot, steps, 1)
        sources.append((slot, steps, axis))
    low.shared.before_read()
    type, memory = op.acc.dtype.llvm, memory_type(dtype)
    before, head, done = e.at, e.block("k"), e.block("k.end")
    e.jump(head)
    e.enter(head)
    position = e.name_of()
    names = [e.name_of() for _ in layout.regs]
    mark = len(e.at.lines)
    columns_of: list[dict[int, str]] = []
    for slot, steps, axis in sources:
        thread = e.thread_part([basis[axis] * steps[axis] for basis in layout.bits])
        walk = e.times(position, steps[1 - axis])
        base = low.shared.pointer(slot, e.plus(thread, walk))
        found: dict[int, str] = {}
        for offset in layout.regs:
            at = offset[axis]
            if at not in found:
                spot = [0, 0]
                spot[axis] = at
                pointer = shared_offset(low, base, offset_of(tuple(spot), steps))
                raw = e.value(f"load {memory}, ptr addrspace(3) {pointer}, align {size}")
                found[at] = cast(e, from_memory(low, raw, dtype), dtype, op.acc.dtype)
        columns_of.append(found)
    sums = []
    for name, offset in zip(names, layout.regs, strict=True):
        a, b = columns_of[0][offset[0]], columns_of[1][offset[1]]
        if op.acc.dtype.is_float:
            suffix = "f64" if type == "double" else "f32"
            sums.append(
                e.value(f"call {type} @llvm.fma.{suffix}({type} {a}, {type} {b}, {type} {name})")
            )
        else:
            sums.append(e.value(f"add {type} {name}, {e.value(f'mul {type} {a}, {b}')}"))
    following = e.value(f"add i32 {position}, 1")
    more = e.value(f"icmp ult i32 {following}, {k}")
    latch = e.at
    phis = [f"{position} = phi i32 [ 0, %{before.label} ], [ {following}, %{latch.label} ]"]
    for name, start, total in zip(names, acc.regs, sums, strict=True):
        phis.append(
            f"{name} = phi {type} [ {start}, %{before.label} ], [ {total}, %{latch.label} ]"
        )
    head.lines[mark:mark] = phis
    e.branch(more, head, done)
    e.enter(done)
    for slot, _, _ in sources:
        low.shared.free(slot)
    return Tile(acc.dtype, acc.shape, acc.layout, sums)
