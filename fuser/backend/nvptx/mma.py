"""Dots on mma.sync of operands of 8 or 16 bits: fragments by ldmatrix, matmuls of 16 rows by 8
columns and 32 bytes of k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.backend.nvptx.assignment import DotPlan
from fuser.backend.nvptx.emit.operands import load_matrices, packed_words
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layout import Coordinates, Layout
from fuser.backend.nvptx.stage import SharedAddress
from fuser.backend.nvptx.units import Unit, known_unit
from fuser.backend.nvptx.values import literal
from fuser.tilegen import ops

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def mma_dot(
    low: Lowering,
    op: ops.Dot,
    plan: DotPlan,
    left: SharedTile | Tile,
    right: SharedTile | Tile,
    acc: Tile,
) -> Tile:
    """acc + the matmuls of a dot; sums that truncate start afresh in each dot."""
    grid, e = plan.grid, low.emitter
    assert grid is not None and isinstance(right, SharedTile)
    unit = known_unit(op)
    steps = -(-op.a.shape[1] // unit.depth)
    blocks = grid.columns // 8
    zero = literal(0, acc.dtype)
    regs = [zero] * len(acc.regs) if unit.truncates else list(acc.regs)
    lefts = _LeftFragments(low, plan, left, op.a.shape[1])
    rights = _RightFragments(low, plan, right)
    for step in range(0, steps, grid.warps_k):
        b = rights.step(step)
        for band in range(grid.bands):
            a = lefts.fragment(band, step)
            for block in range(blocks):
                at = (band * blocks + block) * 4
                regs[at : at + 4] = _product(low, unit, [*a, *b[block]], regs[at : at + 4])
    if unit.truncates:
        regs = [e.value(f"fadd float {a}, {b}") for a, b in zip(acc.regs, regs, strict=True)]
    return Tile(acc.dtype, acc.shape, acc.layout, regs)


def _product(low: Lowering, unit: Unit, words: list[str], sums: list[str]) -> list[str]:
    """One instruction: four words of A, two of B, four sums."""
    e, type = low.emitter, unit.llvm_sum
    pack = "{" + ", ".join([type] * 4) + "}"
    added = ", ".join(f"{type} {item}" for item in sums)
    if unit.depth == 32 and not unit.is_integer:  # LLVM has no intrinsic of these
        text = (
            f"mma.sync.aligned.m16n8k32.row.col.f32.{unit.name}.{unit.name}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        listed = ", ".join(f"i32 {word}" for word in words)
        result = e.value(
            f'call {pack} asm sideeffect "{text}", "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"'
            f"({listed}, {added}) #1"
        )
    else:
        kind = "<2 x half>" if unit.name == "f16" else "i32"
        name = "f32.f32" if unit.name == "f16" else unit.name
        listed = ", ".join(f"{kind} {_as(low, word, kind)}" for word in words)
        result = e.value(
            f"call {pack} @llvm.nvvm.mma.m16n8k{unit.depth}.row.col.{name}({listed}, {added})"
        )
    return [e.value(f"extractvalue {pack} {result}, {i}") for i in range(4)]


def _as(low: Lowering, word: str, type: str) -> str:
    return word if type == "i32" else low.emitter.value(f"bitcast i32 {word} to {type}")


class _LeftFragments:
    """Fragments of an A operand: four words for 16 rows and 32 bytes of k."""

    def __init__(self, low: Lowering, plan: DotPlan, source: SharedTile | Tile, k: int) -> None:
        assert plan.grid is not None
        self.low, self.source, self.grid = low, source, plan.grid
        self.depth = plan.grid.depth
        self.steps = -(-k // self.depth)
        if isinstance(source, SharedTile):
            k_inner = source.inner == 1
            lanes: tuple[Coordinates, ...] = (
                (1, 0), (2, 0), (4, 0), (8, 0), (0, self.depth // 2)
            )  # fmt: skip
            if not k_inner:
                lanes = ((0, 1), (0, 2), (0, 4), (8, 0), (0, 8))
            layout = Layout(source.shape, ((0, 0),), lanes, self.grid.warp_bits(True, False, 1))
            self.address = SharedAddress(low, source, layout)
            self.turn = "" if k_inner else ".trans"
        self._known: dict[tuple[int, int], list[str]] = {}

    def fragment(self, band: int, step: int) -> list[str]:
        key = (band, step)
        if key not in self._known:
            if isinstance(self.source, SharedTile):
                pointer = self.address.pointer((band * 16, step * self.depth))
                self._known[key] = load_matrices(self.low, pointer, 4, self.turn)
            else:
                count = self.depth // 2
                at = (band * self.steps + step) * count
                regs = self.source.regs[at : at + count]
                self._known[key] = packed_words(self.low, regs, self.source.type)
        return self._known[key]


class _RightFragments:
    """Fragments of a B operand in shared memory: two words for 32 bytes of k and 8 columns."""

    def __init__(self, low: Lowering, plan: DotPlan, source: SharedTile) -> None:
        assert plan.grid is not None
        self.low, self.grid = low, plan.grid
        self.depth = plan.grid.depth
        k_inner = source.inner == 0
        self.turn = "" if k_inner else ".trans"
        bits = self.grid.warp_bits(False, True, 0)
        lanes: tuple[Coordinates, ...] = ((0, 1), (0, 2), (0, 4), (self.depth // 2, 0), (0, 8))
        if not k_inner:
            lanes = ((1, 0), (2, 0), (4, 0), (8, 0), (0, 8))
        self.two = SharedAddress(low, source, Layout(source.shape, ((0, 0),), lanes, bits))
        lanes = (*lanes[:4], (0, 0))
        self.one = SharedAddress(low, source, Layout(source.shape, ((0, 0),), lanes, bits))

    def step(self, step: int) -> list[list[str]]:
        """Words of every 8-column block of the warp at a step of an instruction along k."""
        found: list[list[str]] = []
        blocks = self.grid.columns // 8
        for block in range(0, blocks - 1, 2):
            pointer = self.two.pointer((step * self.depth, block * 8))
            words = load_matrices(self.low, pointer, 4, self.turn)
            found += [words[:2], words[2:]]
        if blocks % 2:
            pointer = self.one.pointer((step * self.depth, (blocks - 1) * 8))
            found.append(load_matrices(self.low, pointer, 2, self.turn))
        return found
