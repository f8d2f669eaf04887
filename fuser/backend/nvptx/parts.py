"""The merge of what the blocks of a cluster leave behind a loop whose iterations they shared.

Every block writes its values to its own shared memory; after one barrier of the cluster, each
thread reads what it goes on with from all of them, and puts it together in the order of the blocks,
as merges.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuser.backend.nvptx.access_layout import operand_layout
from fuser.backend.nvptx.convert import write_tile
from fuser.backend.nvptx.elementwise import apply
from fuser.backend.nvptx.emit.memory import from_memory, unpack
from fuser.backend.nvptx.ir.layouts import offset_of, row_major
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layout import Layout, next_power
from fuser.backend.nvptx.merges import Merge
from fuser.backend.nvptx.values import literal, memory_type, vectors
from fuser.dtypes import DType
from fuser.tilegen import ops
from fuser.tilegen.value import Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


@dataclass(eq=False)
class _Left:
    """A value that every block left. blocks: where it lies in each of them."""

    tile: Tile
    slot: Slot
    steps: list[int]
    blocks: list[str]


def merge_parts(low: Lowering, loop: ops.For, finals: list[Tile]) -> dict[Value, Tile]:
    """The loop's results that are used. finals: what this block has of each."""
    merges = low.assignment.merges[loop]
    used = [bool(low.assignment.uses.get(result)) for result in loop.results]
    needed = {m.top for m, use in zip(merges, used, strict=True) if use and m.top is not None}
    low.shared.before_write()
    left = {
        position: _write(low, tile)
        for position, tile in enumerate(finals)
        if used[position] or position in needed
    }
    low.cluster.share()
    for item in left.values():
        base = low.shared.pointer(item.slot)
        item.blocks = [low.cluster.of_block(base, n) for n in range(low.cluster.blocks)]
    found: dict[Value, Tile] = {}
    weights: dict[tuple[int, Layout], list[list[str]]] = {}
    for position, (result, merge) in enumerate(zip(loop.results, merges, strict=True)):
        if not used[position]:
            continue
        layout, tile = low.layout(result), finals[position]
        parts = _read(low, left[position], layout)
        if merge.top is not None:
            top = left[merge.top]
            narrow = operand_layout(layout, merge.axes, top.tile.shape)
            key = (merge.top, narrow)
            if key not in weights:
                weights[key] = _weights(low, _read(low, top, narrow), top.tile.dtype)
            parts = _weighted(low, parts, weights[key], layout, narrow, merge, tile.dtype)
        name = {"sum": "add"}.get(merge.fn, merge.fn)
        regs = parts[0]
        for part in parts[1:]:
            pairs = zip(regs, part, strict=True)
            regs = [apply(low.emitter, name, tile.dtype, [a, b]) for a, b in pairs]
        found[result] = Tile(tile.dtype, tile.shape, layout, regs)
    low.cluster.done_reading()  # the slots are not freed: others may still read them
    return found


def _write(low: Lowering, tile: Tile) -> _Left:
    # what reads may cover more than what writes; 32 spare bytes a row turn the banks
    cover = [max(a, next_power(b)) for a, b in zip(tile.layout.shape, tile.shape, strict=True)]
    item = tile.dtype.bytes
    row = cover[-1] * item if len(cover) == 1 else -(-cover[-1] * item // 16) * 16 + 32
    size, steps = row_major((*cover[:-1], row // item), item)
    slot = low.shared.allocate(size)
    write_tile(low, tile, slot, steps, len(steps) - 1)
    return _Left(tile, slot, steps, [])


def _read(low: Lowering, left: _Left, layout: Layout) -> list[list[str]]:
    """The registers of a layout, of every block."""
    e, dtype = low.emitter, left.tile.dtype
    axis = layout.rank - 1
    width = min(layout.vector(axis), 16 // dtype.bytes)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    thread = e.thread_part([offset_of(basis, left.steps) for basis in layout.bits])
    parts = []
    for block in left.blocks:
        base = block
        if thread != 0:
            base = e.value(f"getelementptr i8, ptr addrspace(7) {block}, i32 {thread}")
        regs = [""] * len(layout.regs)
        for offset, members in vectors(layout, axis, width):
            at = offset_of(offset, left.steps)
            place = e.value(f"getelementptr i8, ptr addrspace(7) {base}, i32 {at}")
            name = e.value(f"load {type}, ptr addrspace(7) {place}, align {width * dtype.bytes}")
            items = (
                [from_memory(low, name, dtype)] if width == 1 else unpack(low, name, dtype, width)
            )
            for member, item in zip(members, items, strict=True):
                regs[member] = item
        parts.append(regs)
    return parts


def _weights(low: Lowering, tops: list[list[str]], dtype: DType) -> list[list[str]]:
    """exp(top of a block - the greatest), for each block; a greatest of -inf counts as 0."""
    e = low.emitter
    found: list[list[str]] = [[] for _ in tops]
    for column in zip(*tops, strict=True):
        greatest = column[0]
        for item in column[1:]:
            greatest = apply(e, "max", dtype, [greatest, item])
        none = apply(e, "eq", dtype, [greatest, literal(float("-inf"), dtype)])
        finite = apply(e, "select", dtype, [none, literal(0, dtype), greatest])
        for block, item in enumerate(column):
            found[block].append(apply(e, "exp", dtype, [apply(e, "sub", dtype, [item, finite])]))
    return found


def _weighted(
    low: Lowering, parts: list[list[str]], weights: list[list[str]], layout: Layout,
    narrow: Layout, merge: Merge, dtype: DType,
) -> list[list[str]]:  # fmt: skip
    """Every block's registers times the weight of their row."""
    rows = []
    for at in layout.regs:
        pairs = zip(merge.axes, narrow.shape, strict=True)
        rows.append(narrow.register_of[tuple(0 if dim == 1 else at[axis] for axis, dim in pairs)])
    return [
        [
            apply(low.emitter, "mul", dtype, [reg, weight[row]])
            for reg, row in zip(regs, rows, strict=True)
        ]
        for regs, weight in zip(parts, weights, strict=True)
    ]
