"""Move a tile from one layout to another: by renaming registers, or through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.layout import Coordinates, Layout
from fuser.backend.nvptx.memory import from_memory, pack, to_memory, unpack
from fuser.backend.nvptx.shared import Slot
from fuser.backend.nvptx.values import Tile, memory_type, vectors
from fuser.dtypes import DType

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def convert(low: Lowering, tile: Tile, layout: Layout) -> Tile:
    """The same tile in another layout."""
    source = tile.layout
    if source == layout:
        return tile
    if in_registers(source, layout):
        regs = [tile.regs[source.register_of[offset]] for offset in layout.regs]
        return Tile(tile.dtype, tile.shape, layout, regs)
    return _through_shared(low, tile, layout)


def in_registers(source: Layout, layout: Layout) -> bool:
    """Whether every thread already owns what it needs."""
    longest = max(len(source.bits), len(layout.bits))
    if _padded(source, longest) == _padded(layout, longest):
        return all(offset in source.register_of for offset in layout.regs)
    return False


def _padded(layout: Layout, count: int) -> tuple[Coordinates, ...]:
    """The bits of a layout; a layout of one block repeats in all blocks of a cluster."""
    return layout.bits + ((0,) * layout.rank,) * (count - len(layout.bits))


def _through_shared(low: Lowering, tile: Tile, layout: Layout) -> Tile:
    low.cluster.stay_in_block("a change of layout", tile.layout, layout)
    if low.frugal:
        return low.in_parts(tile, tile.shape, layout)
    source, rank = tile.layout, len(tile.shape)
    bytes_ = max(1, tile.dtype.bytes)
    axis = max(range(rank), key=lambda a: source.vector(a) + layout.vector(a) + (a == rank - 1))
    cover = [max(a, b) for a, b in zip(source.shape, layout.shape, strict=True)]
    order = [axis] + [a for a in reversed(range(rank)) if a != axis]
    steps = [0] * rank
    pitch = bytes_
    for position, a in enumerate(order):
        steps[a] = pitch
        pitch *= cover[a]
        if position == 0 and rank > 1:
            # 16 spare bytes a row: rows start in different banks, and vectors stay aligned
            pitch = -(-pitch // 16) * 16 + 16
    slot = low.shared.allocate(pitch)
    low.shared.before_write()
    write_tile(low, tile, slot, steps, axis)
    low.shared.before_read()
    regs = _read(low, tile, layout, slot, steps, axis)
    low.shared.free(slot)
    return Tile(tile.dtype, tile.shape, layout, regs)


def _address(low: Lowering, layout: Layout, steps: list[int], slot: Slot) -> str:
    thread = low.emitter.thread_part([offset_of(basis, steps) for basis in layout.bits])
    return low.shared.pointer(slot, thread)


def row_major(shape: Coordinates, item: int) -> tuple[int, list[int]]:
    """The size of a tile whose elements lie densely in order, and the step along each axis; both in
    the unit of `item`, the size of an element."""
    size, steps = item, []
    for dim in reversed(shape):
        steps.append(size)
        size *= dim
    return size, steps[::-1]


def offset_of(offset: Coordinates, steps: list[int]) -> int:
    """How far from a tile's beginning an element lies, with the given step along each axis."""
    return sum(o * s for o, s in zip(offset, steps, strict=True))


def write_tile(low: Lowering, tile: Tile, slot: Slot, steps: list[int], axis: int) -> None:
    emitter, layout, dtype = low.emitter, tile.layout, tile.dtype
    width = min(layout.vector(axis), 16 // dtype.bytes)
    base = _address(low, layout, steps, slot)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    for offset, members in vectors(layout, axis, width):
        value = pack(low, [tile.regs[m] for m in members], dtype)
        pointer = shared_offset(low, base, offset_of(offset, steps))
        emitter.do(f"store {type} {value}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}")


def _read(
    low: Lowering, tile: Tile, layout: Layout, slot: Slot, steps: list[int], axis: int
) -> list[str]:
    emitter, dtype = low.emitter, tile.dtype
    width = min(layout.vector(axis), 16 // dtype.bytes)
    base = _address(low, layout, steps, slot)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    regs = [""] * len(layout.regs)
    for offset, members in vectors(layout, axis, width):
        pointer = shared_offset(low, base, offset_of(offset, steps))
        name = emitter.value(
            f"load {type}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}"
        )
        items = [from_memory(low, name, dtype)] if width == 1 else unpack(low, name, dtype, width)
        for member, item in zip(members, items, strict=True):
            regs[member] = item
    return regs


def shared_offset(low: Lowering, pointer: str, offset: int) -> str:
    """A shared pointer plus constant bytes."""
    if offset == 0:
        return pointer
    return low.emitter.value(f"getelementptr i8, ptr addrspace(3) {pointer}, i32 {offset}")


def reshape(low: Lowering, tile: Tile, shape: Coordinates, layout: Layout) -> Tile:
    """The same elements in row-major order under another shape, in the given layout."""
    source = tile.layout
    flat = row_major_layout(source, tile.shape)
    wanted = row_major_layout(layout, shape)
    if in_registers(flat, wanted):
        regs = [tile.regs[flat.register_of[offset]] for offset in wanted.regs]
        return Tile(tile.dtype, shape, layout, regs)
    low.cluster.stay_in_block("a reshape", source, layout)
    dtype = tile.dtype
    if low.frugal:
        return low.in_parts(tile, shape, layout)
    slot = low.shared.allocate(tile_size(shape) * dtype.bytes)
    low.shared.before_write()
    write_dense(low, tile, slot, row_major(tile.shape, dtype.bytes)[1])
    low.shared.before_read()
    made = read_dense(low, dtype, shape, layout, slot)
    low.shared.free(slot)
    return made


def read_dense(low: Lowering, dtype: DType, shape: Coordinates, layout: Layout, slot: Slot) -> Tile:
    """Read a tile whose elements lie in order."""
    emitter, type = low.emitter, memory_type(dtype)
    steps = row_major(shape, dtype.bytes)[1]
    indexer = low.indexer(layout)
    start = low.shared.pointer(slot)
    thread = emitter.thread_part([offset_of(basis, steps) for basis in layout.bits])
    regs = []
    for offset in layout.regs:
        condition = indexer.inside(shape, offset)
        place = emitter.plus(thread, offset_of(offset, steps))
        if condition is not None:  # an element past the edge reads the first one: any value will do
            place = emitter.pick(condition, place, 0)
        pointer = emitter.value(f"getelementptr i8, ptr addrspace(3) {start}, i32 {place}")
        name = emitter.value(f"load {type}, ptr addrspace(3) {pointer}, align {dtype.bytes}")
        regs.append(from_memory(low, name, dtype))
    return Tile(dtype, shape, layout, regs)


def write_dense(low: Lowering, tile: Tile, slot: Slot, steps: list[int]) -> None:
    """Write the elements of a tile, and none past its edges, one by one."""
    emitter, dtype, source = low.emitter, tile.dtype, tile.layout
    type = memory_type(dtype)
    indexer = low.indexer(source)
    base = _address(low, source, steps, slot)
    for offset, reg in zip(source.regs, tile.regs, strict=True):
        condition = indexer.inside(tile.shape, offset)
        if condition == 0:
            continue
        value = to_memory(low, reg, dtype)
        pointer = shared_offset(low, base, offset_of(offset, steps))
        text = f"store {type} {value}, ptr addrspace(3) {pointer}, align {dtype.bytes}"
        if condition is None:
            emitter.do(text)
        else:
            with emitter.where(condition):
                emitter.do(text)


def row_major_layout(layout: Layout, shape: Coordinates) -> Layout:
    """The layout over the flat index. Exact only inside the tile's own shape."""
    size, steps = row_major(shape, 1)

    def flat(at: Coordinates) -> Coordinates:
        return (offset_of(at, steps),)

    return Layout(
        (size,),
        tuple(map(flat, layout.regs)),
        tuple(map(flat, layout.lanes)),
        tuple(map(flat, layout.warps)),
    )


def tile_size(shape: Coordinates) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size
