"""Dots on Hopper's asynchronous tensor cores: m64nN and 32 bytes of k, operands described in
shared memory.

A descriptor holds a start address, two strides and the swizzle mode; stepping along k or to the
next 64 rows only adds to its low word. Accumulators go in and out of every call as tied operands,
so LLVM keeps them in place; the wait is tied to them too, and nothing touches them in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fuser.backend.nvptx import consumer
from fuser.backend.nvptx.assignment import DotPlan
from fuser.backend.nvptx.emit.operands import packed_words
from fuser.backend.nvptx.emitter import Operand
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layout import WarpGrid
from fuser.backend.nvptx.units import Unit, known_unit
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering

_MODE = {128: 1, 64: 2, 32: 3}


def wgmma_dot(
    low: Lowering,
    op: ops.Dot,
    plan: DotPlan,
    left: SharedTile | Tile,
    right: SharedTile | Tile,
    acc: Tile,
) -> Tile:
    """Issue every matmul of the dot as one group, and wait for it.

    Dots of one group are committed and waited for behind the last of them; what this returns for
    the others is in flight, and `lower_dot` waits for all.
    """
    assert isinstance(right, SharedTile)
    source = packed_words(low, left.regs, left.type) if isinstance(left, Tile) else left
    group = consumer.group_of(low, op)
    if not group or group[0] is op:
        fence(low)
    regs = issue(low, op, plan, source, right, acc)
    if group:
        return Tile(acc.dtype, acc.shape, acc.layout, regs)
    commit(low)
    pending = 1 if consumer.is_deferred(low, op) else 0
    regs = wait(low, regs, pending, acc.type)
    if known_unit(op).truncates:
        e = low.emitter
        regs = [e.value(f"fadd float {a}, {b}") for a, b in zip(acc.regs, regs, strict=True)]
    return Tile(acc.dtype, acc.shape, acc.layout, regs)


def wait_all(low: Lowering, tiles: list[Tile], pending: int) -> list[Tile]:
    """Wait until at most `pending` groups are in flight; the tiles after it."""
    regs = wait(low, [reg for tile in tiles for reg in tile.regs], pending, tiles[0].type)
    found, at = [], 0
    for tile in tiles:
        count = len(tile.regs)
        found.append(Tile(tile.dtype, tile.shape, tile.layout, regs[at : at + count]))
        at += count
    return found


def fence(low: Lowering) -> None:
    """Registers written so far may be read by the matmuls that follow."""
    low.emitter.do("call void @llvm.nvvm.wgmma.fence.sync.aligned()")


def commit(low: Lowering) -> None:
    """Close a group of matmuls, which `wait` counts."""
    low.emitter.do("call void @llvm.nvvm.wgmma.commit_group.sync.aligned()")


def wait_unbound(low: Lowering) -> None:
    """Wait until all groups are complete, wherever their sums are."""
    low.emitter.do('call void asm sideeffect "wgmma.wait_group.sync.aligned 0;", "~{memory}"() #1')


def issue(
    low: Lowering,
    op: ops.Dot,
    plan: DotPlan,
    left: SharedTile | Tile | list[str],
    right: SharedTile | Tile,
    acc: Tile,
) -> list[str]:
    """Issue the matmuls of a dot; the accumulator registers, in flight. left: in shared memory or
    as words of register fragments."""
    grid = plan.grid
    assert grid is not None and isinstance(right, SharedTile) and not isinstance(left, Tile)
    unit = known_unit(op)
    steps = op.a.shape[1] // unit.depth
    count = grid.columns // 2
    fresh = unit.truncates or consumer.is_zero(low, op.acc)
    keeps = consumer.keeps_sums(low, op)
    b = Descriptor(low, right, 0, grid)
    a = Descriptor(low, left, 1, grid) if isinstance(left, SharedTile) else None
    words = left if isinstance(left, list) else []
    regs = list(acc.regs)
    for band in range(grid.bands):
        sums = regs[band * count : (band + 1) * count]
        if fresh:
            sums = ["poison"] * count
        matmuls = []
        for step in range(steps):
            keep = "true" if step else "false" if fresh else keeps
            b_word = b.at(0, step)
            if a is not None:
                source = [f"i64 {a.at(band, step)}"]
                turns = f"{a.transposed}, {b.transposed}"
            else:
                at = (band * steps + step) * 4
                source = [f"i32 {word}" for word in words[at : at + 4]]
                turns = f"{b.transposed}"
            matmuls.append(Matmul(source, b_word, keep, turns))
        sums = _issue(low, unit, grid.columns, sums, matmuls)
        regs[band * count : (band + 1) * count] = sums
    return regs


class Matmul(NamedTuple):
    """One instruction. left: its operand, a descriptor or four words of fragments; right: a
    descriptor; keep: whether it adds to the sums; turns: which operands lie across."""

    left: list[str]
    right: str
    keep: str
    turns: str


def _issue(
    low: Lowering, unit: Unit, columns: int, sums: list[str], matmuls: list[Matmul]
) -> list[str]:
    """Asynchronous matmuls that add to the same sums; the accumulator registers after them. They
    are one piece of assembly: LLVM need not take the sums apart between them."""
    n = len(sums)
    outputs = "{" + ", ".join(f"${i}" for i in range(n)) + "}"
    shape = f"m64n{columns}k{unit.depth}.{unit.ptx_sum}.{unit.name}.{unit.name}"
    type, place = unit.llvm_sum, 2 * n
    lines, kinds, operands = [], [], [f"{type} {item}" for item in sums]
    for matmul in matmuls:
        behind = place + len(matmul.left)
        left = ", ".join(f"${at}" for at in range(place, behind))
        left = left if len(matmul.left) == 1 else f"{{{left}}}"
        # integers have no signs to turn, and 8-bit operands only one way to lie
        ends = "" if unit.is_integer else ", 1, 1"
        ends += f", {matmul.turns}" if unit.either_way else ""
        lines.append(
            f"wgmma.mma_async.sync.aligned.{shape} {outputs}, {left}, ${behind}, "
            f"${behind + 1}{ends};"
        )
        kinds += [*(["l"] if len(matmul.left) == 1 else ["r"] * 4), "l", "b"]
        operands += [*matmul.left, f"i64 {matmul.right}", f"i1 {matmul.keep}"]
        place = behind + 2
    return tied(low, "\\0A\\09".join(lines), n, kinds, operands, type)


def tied(
    low: Lowering,
    text: str,
    count: int,
    constraints: list[str],
    operands: list[str],
    type: str = "float",
) -> list[str]:
    """Inline assembly whose first `count` operands are its results, in place: floats or i32."""
    e = low.emitter
    pack = "{" + ", ".join([type] * count) + "}"
    result = "=f" if type == "float" else "=r"
    listed = ",".join([result] * count + [str(i) for i in range(count)] + constraints)
    found = e.value(f'call {pack} asm sideeffect "{text}", "{listed}"({", ".join(operands)}) #1')
    return [e.value(f"extractvalue {pack} {found}, {i}") for i in range(count)]


def wait(low: Lowering, regs: list[str], pending: int, type: str = "float") -> list[str]:
    """Wait until at most `pending` groups are in flight; use only what this returns. type: of the
    sums, float or i32."""
    text = f"wgmma.wait_group.sync.aligned {pending};"
    return tied(low, text, len(regs), [], [f"{type} {reg}" for reg in regs], type)


class Descriptor:
    """Matrix descriptors into a shared operand. k_axis: which of its axes is k."""

    def __init__(self, low: Lowering, tile: SharedTile, role_axis: int, grid: WarpGrid) -> None:
        """role_axis: the axis of k: 1 for the left operand, 0 for the right."""
        self.low, self.tile = low, tile
        self.k_inner = tile.inner == role_axis
        self.transposed = 0 if self.k_inner else 1
        e = low.emitter
        span = tile.span
        stride = 8 * span
        leading = 16 if self.k_inner else tile.block_bytes
        self.high = (stride >> 4) | (_MODE[span] << 30)
        if self.high >= 1 << 31:
            self.high -= 1 << 32
        # the part of the tile that belongs to this warp group
        count = (grid.warps_m // 4, grid.rows) if role_axis == 1 else (grid.warps_n, grid.columns)
        start: Operand = 0
        groups, extent = count
        if groups > 1:
            start = self._group(groups, grid, left=role_axis == 1, extent=extent)
        base = e.value(f"ptrtoint ptr addrspace(3) {low.shared.pointer(tile.slot)} to i32")
        if low.order.cluster > 1:  # the number of the block in its cluster is in the high bits
            base = str(e.bitwise("and", base, 0x3FFFF))
        address = e.plus(e.plus(base, tile.stage), start)
        self.low_word = e.bitwise("or", e.shift("lshr", address, 4), (leading >> 4) << 16)

    def _group(self, groups: int, grid: WarpGrid, *, left: bool, extent: int) -> Operand:
        """Byte offset of this warp group's rows (or columns). The warp number is the same in a
        warp; passing it through a shuffle tells the compiler so."""
        e, tile = self.low.emitter, self.tile
        number = e.hoisted(f"lshr i32 {e.tid}, 7")
        number = e.hoisted(
            f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {number}, i32 0, i32 31)"
        )
        along_m = grid.warps_m // 4
        if left and grid.warps_n > 1:
            number = e.hoisted(f"and i32 {number}, {along_m - 1}")
        elif not left and along_m > 1:
            number = e.hoisted(f"udiv i32 {number}, {along_m}")
        if self.k_inner:
            return e.times(number, extent * tile.span)
        # blocks of span bytes along m or n
        width = tile.span // tile.dtype.bytes
        if extent % width == 0:
            return e.times(number, extent // width * tile.block_bytes)
        raise_narrow(extent, width)
        return 0

    def at(self, band: int, step: int) -> str:
        """The descriptor of a band of 64 rows (0 for the right operand) and a step of k."""
        tile, e = self.tile, self.low.emitter
        span, size = tile.span, tile.dtype.bytes
        if self.k_inner:
            column = step * 32  # bytes of an instruction's k
            offset = band * 64 * span + column // span * tile.block_bytes + column % span
        else:
            across = band * 64 * size
            offset = step * 16 * span + across // span * tile.block_bytes + across % span
        word = e.plus(self.low_word, offset >> 4)
        pair = e.value(f"insertelement <2 x i32> <i32 poison, i32 {self.high}>, i32 {word}, i32 0")
        return e.value(f"bitcast <2 x i32> {pair} to i64")


def raise_narrow(extent: int, width: int) -> None:
    """A warp group's share that starts inside a swizzle block has no descriptor."""
    from fuser.errors import LoweringError

    raise LoweringError(f"{extent} columns a warp group do not fill blocks of {width}")
