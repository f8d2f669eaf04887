"""Hopper's asynchronous tensor cores: m64nN and 32 bytes of k, operands described in shared memory.

A descriptor holds a start address, two strides and the swizzle mode; stepping along k or to the
next 64 rows only adds to its low word. Accumulators go in and out of every call as tied operands,
so LLVM keeps them in place; the wait is tied to them too, and nothing touches them in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, SharedTile
from fuser.backend.nvptx.layouts.layout import WarpGrid
from fuser.backend.nvptx.layouts.mma_units import UNITS, Unit

_MODE = {128: 1, 64: 2, 32: 3}


def fence(code: Code, op: ops.WgmmaFence) -> None:
    """One instruction."""
    write_fence(code)


def commit(code: Code, op: ops.WgmmaCommit) -> None:
    """One instruction."""
    write_commit(code)


def wait(code: Code, op: ops.WgmmaWait) -> None:
    """One instruction, which all registers of the tiles go through."""
    if not op.values:
        text = f"wgmma.wait_group.sync.aligned {op.pending};"
        code.emitter.do(f'call void asm sideeffect "{text}", "~{{memory}}"() #1')
        return
    regs = [reg for value in op.values for reg in value.regs]
    found = iter(write_wait(code, regs, op.pending, op.values[0].type))
    for made in op.results:
        made.assign(next(found) for _ in made.layout.regs)


def wgmma(code: Code, op: ops.Wgmma) -> None:
    """An instruction for every 64 rows and 32 bytes of k, all of k in one piece of assembly."""
    grid, unit = op.grid, UNITS[op.unit]
    count = grid.columns // 2
    b = Descriptor(code, op.b, 0, grid)
    a = Descriptor(code, op.a, 1, grid) if isinstance(op.a, SharedTile) else None
    words = [] if isinstance(op.a, SharedTile) else op.a.regs
    steps = op.k // unit.depth
    regs: list[str] = []
    for band in range(grid.bands):
        sums = ["poison"] * count
        if op.acc is not None:
            sums = op.acc.regs[band * count : (band + 1) * count]
        matmuls = []
        for step in range(steps):
            keep = "true" if step else _condition(op)
            b_word = b.at(0, step)
            if a is not None:
                source = [f"i64 {a.at(band, step)}"]
                transposes = f"{a.transposed}, {b.transposed}"
            else:
                at = (band * steps + step) * 4
                source = [f"i32 {word}" for word in words[at : at + 4]]
                transposes = f"{b.transposed}"
            matmuls.append(_Matmul(source, b_word, keep, transposes))
        regs += _issue(code, unit, grid.columns, sums, matmuls)
    op.tile.assign(regs)


def _condition(op: ops.Wgmma) -> str:
    """Where the first matmul adds to its sums."""
    if op.acc is None or op.keeps == 0:
        return "false"
    return "true" if op.keeps == 1 else str(op.keeps)


class _Matmul(NamedTuple):
    """One instruction. left: its operand, a descriptor or four words of fragments; right: a
    descriptor; keep: whether it adds to the sums; transposes: which operands are transposed."""

    left: list[str]
    right: str
    keep: str
    transposes: str


def _issue(
    code: Code, unit: Unit, columns: int, sums: list[str], matmuls: list[_Matmul]
) -> list[str]:
    """Asynchronous matmuls that add to the same sums; the accumulator registers after them. They
    are one piece of assembly: LLVM need not take the sums apart between them."""
    n = len(sums)
    outputs = "{" + ", ".join(f"${i}" for i in range(n)) + "}"
    shape = f"m64n{columns}k{unit.depth}.{unit.ptx_sum}.{unit.name}.{unit.name}"
    type, place = unit.llvm_sum, 2 * n
    lines, kinds, operands = [], [], [f"{type} {item}" for item in sums]
    for matmul in matmuls:
        after = place + len(matmul.left)
        left = ", ".join(f"${at}" for at in range(place, after))
        left = left if len(matmul.left) == 1 else f"{{{left}}}"
        # integers have no signs to turn, and 8-bit operands only one way to lie
        ends = "" if unit.is_integer else ", 1, 1"
        ends += f", {matmul.transposes}" if unit.either_way else ""
        lines.append(
            f"wgmma.mma_async.sync.aligned.{shape} {outputs}, {left}, ${after}, ${after + 1}{ends};"
        )
        kinds += [*(["l"] if len(matmul.left) == 1 else ["r"] * 4), "l", "b"]
        operands += [*matmul.left, f"i64 {matmul.right}", f"i1 {matmul.keep}"]
        place = after + 2
    return tied(code, "\\0A\\09".join(lines), n, kinds, operands, type)


def tied(
    code: Code,
    text: str,
    count: int,
    constraints: list[str],
    operands: list[str],
    type: str = "float",
) -> list[str]:
    """Inline assembly whose first `count` operands are its results, in place: floats or i32."""
    e = code.emitter
    pack = "{" + ", ".join([type] * count) + "}"
    result = "=f" if type == "float" else "=r"
    listed = ",".join([result] * count + [str(i) for i in range(count)] + constraints)
    found = e.value(f'call {pack} asm sideeffect "{text}", "{listed}"({", ".join(operands)}) #1')
    return [e.value(f"extractvalue {pack} {found}, {i}") for i in range(count)]


def write_fence(code: Code) -> None:
    """Registers written so far may be read by the matmuls that follow."""
    code.emitter.do("call void @llvm.nvvm.wgmma.fence.sync.aligned()")


def write_commit(code: Code) -> None:
    """Close a group of matmuls, which `write_wait` counts."""
    code.emitter.do("call void @llvm.nvvm.wgmma.commit_group.sync.aligned()")


def write_wait(code: Code, regs: list[str], pending: int, type: str = "float") -> list[str]:
    """Wait until at most `pending` groups are in flight; use only what this returns. type: of the
    sums, float or i32."""
    text = f"wgmma.wait_group.sync.aligned {pending};"
    return tied(code, text, len(regs), [], [f"{type} {reg}" for reg in regs], type)


class Descriptor:
    """Matrix descriptors into a shared operand. k_axis: which of its axes is k: 1 for the left
    operand, 0 for the right. version: bits of the high word that later architectures want."""

    def __init__(
        self, code: Code, tile: SharedTile, k_axis: int, grid: WarpGrid, version: int = 0
    ) -> None:
        self.code, self.tile, self.rows = code, tile, grid.band
        self.k_inner = tile.inner == k_axis
        self.transposed = 0 if self.k_inner else 1
        e = code.emitter
        span = tile.span
        stride = 8 * span
        leading = 16 if self.k_inner else tile.block_bytes
        self.high = (stride >> 4) | version | (_MODE[span] << 30)
        if self.high >= 1 << 31:
            self.high -= 1 << 32
        # the part of the tile that belongs to this warp group
        groups, extent = grid.group_slices(k_axis == 1)
        start: Operand = 0
        if groups > 1:
            start = self._group(grid, left=k_axis == 1, extent=extent)
        base = e.value(f"ptrtoint ptr addrspace(3) {code.place(tile.slot)} to i32")
        if code.clustered:  # the number of the block in its cluster is in the high bits
            base = str(e.bitwise("and", base, 0x3FFFF))
        address = e.plus(e.plus(base, tile.stage), start)
        self.low_word = e.bitwise("or", e.shift("lshr", address, 4), (leading >> 4) << 16)

    def _group(self, grid: WarpGrid, *, left: bool, extent: int) -> Operand:
        """Byte offset of this warp group's rows (or columns)."""
        e, tile = self.code.emitter, self.tile
        number = e.uniform(e.hoisted(f"lshr i32 {e.tid}, 7"))
        along_m = grid.warps_m // 4
        if left and grid.warps_n > 1:
            number = e.hoisted(f"and i32 {number}, {along_m - 1}")
        elif not left and along_m > 1:
            number = e.hoisted(f"udiv i32 {number}, {along_m}")
        if self.k_inner:
            return e.times(number, extent * tile.span)
        # blocks of span bytes along m or n
        width = tile.span // tile.dtype.bytes
        return e.times(number, extent // width * tile.block_bytes)

    def at(self, band: int, step: int) -> str:
        """The descriptor of a band of rows (0 for the right operand) and a step of k."""
        tile, e = self.tile, self.code.emitter
        span, size = tile.span, tile.dtype.bytes
        if self.k_inner:
            column = step * 32  # bytes of an instruction's k
            offset = band * self.rows * span + column // span * tile.block_bytes + column % span
        else:
            across = band * self.rows * size
            offset = step * 16 * span + across // span * tile.block_bytes + across % span
        word = e.plus(self.low_word, offset >> 4)
        pair = e.value(f"insertelement <2 x i32> <i32 poison, i32 {self.high}>, i32 {word}, i32 0")
        return e.value(f"bitcast <2 x i32> {pair} to i64")


RULES: dict[type[Op], Callable[..., None]] = {
    ops.WgmmaFence: fence,
    ops.WgmmaCommit: commit,
    ops.WgmmaWait: wait,
    ops.Wgmma: wgmma,
}
