"""Operands of dots in shared memory: a swizzled tile, its addresses, and copies into it.

A tile is cut along its contiguous axis into blocks of `span` bytes; a block is rows of `span` bytes
whose 16-byte chunks are permuted by the row number, so that eight rows at one column fall into
eight different bank groups. It is the hardware's own swizzle (32, 64 or 128 bytes), which ldmatrix
does not care about and which wgmma and TMA name in their descriptors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.access import Access
from fuser.backend.nvptx.emit.memory import Guard, Pointers, from_memory, only_once, pack, unpack
from fuser.backend.nvptx.emitter import Linear, Operand
from fuser.backend.nvptx.ir.values import SharedTile, Tile, tile_bytes
from fuser.backend.nvptx.layout import Coordinates, Layout, blocked
from fuser.backend.nvptx.values import memory_type, vectors
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


class SharedAddress:
    """Byte offsets in a shared tile of the registers of a layout over it.

    The permuted chunk number is (chunk ^ f(row)); with the thread's bits and the register's bits of
    the column disjoint, only an xor with a constant depends on the register.
    """

    def __init__(self, low: Lowering, tile: SharedTile, layout: Layout) -> None:
        self.low, self.tile, self.layout = low, tile, layout
        size = tile.dtype.bytes
        self.row: Operand = 0
        if not tile.flat:
            self.row = low.emitter.thread_coordinate(layout.bits, 1 - tile.inner)
        steps = [basis[tile.inner] * size for basis in layout.bits]
        self.column = low.emitter.thread_part(steps)
        mask = 0
        for step in steps:
            mask |= step
        self.column_mask = mask if mask == sum(steps) else None
        self._known: dict[tuple[int, ...], Operand] = {}

    def at(self, offset: Coordinates) -> Linear:
        """The byte offset in the slot of the element at a register's coordinates."""
        tile = self.tile
        column = offset[tile.inner] * tile.dtype.bytes
        if tile.flat:
            dynamic = self.low.emitter.plus(self.column, tile.stage)
            if isinstance(dynamic, int):
                return Linear(None, dynamic + column)
            return Linear(dynamic, column)
        row = offset[1 - tile.inner]
        if self.column_mask is None or self.column_mask & column:
            key = (1, row % 8, column)
            if key not in self._known:
                moved = self.low.emitter.plus(self.column, column)
                self._known[key] = self._place(moved, row % 8, 0)
            constant = (row - row % 8) * tile.span
        else:
            chunk = column % tile.span // 16
            key = (0, row % 8, chunk)
            if key not in self._known:
                self._known[key] = self._place(self.column, row % 8, chunk)
            block = column // tile.span * tile.block_bytes
            constant = (row - row % 8) * tile.span + column % 16 + block
        dynamic = self._known[key]
        if isinstance(dynamic, int):
            return Linear(None, dynamic + constant)
        return Linear(dynamic, constant)

    def _place(self, column: Operand, row_rest: int, chunk: int) -> Operand:
        """Offset of (thread row + row_rest, column bytes with chunk number ^ chunk)."""
        e, span = self.low.emitter, self.tile.span
        row = e.plus(self.row, row_rest)
        # rows per 128 bytes decide which row bits take part in the permutation
        shift = {128: 0, 64: 1, 32: 2}[span]
        twist = e.bitwise("and", e.shift("lshr", row, shift), span // 16 - 1)
        number = e.bitwise("and", e.shift("lshr", column, 4), span // 16 - 1)
        number = e.bitwise("xor", e.bitwise("xor", number, twist), chunk)
        total = e.plus(e.times(row, span), e.shift("shl", number, 4))
        total = e.plus(total, e.bitwise("and", column, 15))
        block = e.shift("lshr", column, span.bit_length() - 1)
        total = e.plus(total, e.times(block, self.tile.block_bytes))
        return e.plus(total, self.tile.stage)

    def pointer(self, offset: Coordinates) -> str:
        """A shared pointer to the element at a register's coordinates."""
        dynamic, constant = self.at(offset)
        shared = self.low.shared
        if dynamic is None:
            return shared.pointer(self.tile.slot, constant)
        base = shared.pointer(self.tile.slot, dynamic)
        if constant == 0:
            return base
        return self.low.emitter.value(f"getelementptr i8, ptr addrspace(3) {base}, i32 {constant}")


# registers <-> shared -----------------------------------------------------------------------------


def read(low: Lowering, tile: SharedTile, layout: Layout, numbers: list[int]) -> dict[int, str]:
    """Load the given registers of a layout over a shared tile, in vectors where adjacent."""
    emitter, dtype = low.emitter, tile.dtype
    address = SharedAddress(low, tile, layout)
    width = min(layout.vector(tile.inner), 16 // dtype.bytes)
    wanted = set(numbers)
    found: dict[int, str] = {}
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    for offset, members in vectors(layout, tile.inner, width):
        if not wanted.intersection(members):
            continue
        pointer = address.pointer(offset)
        name = emitter.value(
            f"load {type}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}"
        )
        items = [from_memory(low, name, dtype)] if width == 1 else unpack(low, name, dtype, width)
        found.update(zip(members, items, strict=True))
    return found


def write(low: Lowering, source: Tile, target: SharedTile) -> None:
    """Store a tile from registers into a shared tile that is at least as large."""
    emitter, dtype, layout = low.emitter, source.dtype, source.layout
    address = SharedAddress(low, target, layout)
    indexer = low.indexer(layout)
    width = min(layout.vector(target.inner), 16 // dtype.bytes)
    type = memory_type(dtype) if width == 1 else f"<{width} x {memory_type(dtype)}>"
    for offset, members in vectors(layout, target.inner, width):
        condition = indexer.inside(target.shape, offset)
        if condition == 0:
            continue
        value = pack(low, [source.regs[m] for m in members], dtype)
        pointer = address.pointer(offset)
        text = f"store {type} {value}, ptr addrspace(3) {pointer}, align {width * dtype.bytes}"
        if condition is None:
            emitter.do(text)
        else:
            with emitter.where(condition):
                emitter.do(text)


# global -> shared ---------------------------------------------------------------------------------


def copy_layout(access: Access, tile: SharedTile, warps: int) -> Layout:
    """How threads share the copy: 16-byte pieces, lanes along rows."""
    order = (0,) if tile.flat else (tile.inner, 1 - tile.inner)
    return blocked(tile.shape, warps, order, access.width)


def copy_async(low: Lowering, op: ops.Load, tile: SharedTile) -> None:
    """Issue the copies of a load into a shared tile: zeros where it is out of bounds."""
    access = low.assignment.accesses[op]
    emitter = low.emitter
    layout = copy_layout(access, tile, low.warps)
    indexer = low.indexer(layout)
    at = low.place(access, layout)
    pointers = Pointers(low.code, at, indexer)
    guard = Guard(low.code, at, layout, indexer)
    address = SharedAddress(low, tile, layout)
    size = access.width * tile.dtype.bytes
    mode = "cg" if size == 16 else "ca"
    # Copies of one element by two threads would race, though with one value.
    single = only_once(low, layout)
    for offset, _ in vectors(layout, tile.inner, access.width):
        allocated = emitter.both(single, indexer.inside(tile.shape, offset))
        if allocated == 0:
            continue
        condition = guard.at(offset)
        pointer = pointers.at(offset)
        target = address.pointer(offset)
        name = f"@llvm.nvvm.cp.async.{mode}.shared.global.{size}"
        operands = f"ptr addrspace(3) {target}, ptr addrspace(1) {pointer}"
        text = f"call void {name}({operands})"
        if condition is not None:
            count = emitter.pick(condition, size, 0)
            text = f"call void {name}.s({operands}, i32 {count})"
        if allocated is None:
            emitter.do(text)
        else:
            with emitter.where(allocated):
                emitter.do(text)


def shared_tile_for(low: Lowering, op: ops.Load, stages: int = 1) -> SharedTile:
    """Allocate a load's tile, large enough for every dot that reads it."""
    access = low.assignment.accesses[op]
    inner = access.axis
    shape = _cover(low, op)
    slot = low.shared.allocate(tile_bytes(shape, inner, op.view.dtype) * stages, 1024)
    return SharedTile(op.view.dtype, shape, inner, slot)


def _cover(low: Lowering, op: ops.Load) -> tuple[int, ...]:
    """The extents that the dots read, garbage-free: warps may cover more than the tile."""
    if len(op.shape) == 1:
        return op.shape
    rows, columns = op.shape
    table = low.assignment.uses
    todo = [(op.result, False)]
    while todo:
        value, turned = todo.pop()
        for use in table.get(value, ()):
            if isinstance(use, ops.Permute):
                todo.append((use.result, turned ^ (tuple(use.axes) == (1, 0))))
            elif isinstance(use, ops.Dot):
                for role in ("a", "b"):
                    if getattr(use, role) is not value:
                        continue
                    need = operand_cover(low, use, role)
                    if turned:
                        need = need[::-1]
                    rows, columns = max(rows, need[0]), max(columns, need[1])
    return rows, columns


def operand_cover(low: Lowering, op: ops.Dot, role: str) -> tuple[int, int]:
    """The shape of the operand that the dot's instructions read."""
    plan = low.assignment.dots[op]
    assert plan.grid is not None
    step = 8 if plan.kind in ("tf32", "wide") else plan.grid.depth
    k = -(-op.a.shape[1] // step) * step
    m, n = plan.grid.covered
    return (m, k) if role == "a" else (k, n)


def stage_once(low: Lowering, op: ops.Load) -> None:
    """Copy a load into shared memory where it stands; the first dot after it waits."""
    tile = shared_tile_for(low, op)
    low.shared.before_write()
    copy_async(low, op, tile)
    low.emitter.do("call void @llvm.nvvm.cp.async.commit.group()")
    low.copies_pending = True
    low.env[op.result] = tile


def land_copies(low: Lowering) -> None:
    """Wait for copies that were issued outside of a pipeline."""
    if low.copies_pending:
        low.emitter.do("call void @llvm.nvvm.cp.async.wait.group(i32 0)")
        fence_async(low)
        low.copies_pending = False


def fence_async(low: Lowering) -> None:
    """Make this thread's shared-memory writes visible to wgmma and TMA."""
    if any(plan.kind in ("wgmma", "wide") for plan in low.assignment.dots.values()):
        low.emitter.do("call void @llvm.nvvm.fence.proxy.async.shared_cta()")
