"""Dots on Hopper's asynchronous tensor cores: when matmuls are issued and waited for. What one wait
gives is a group (schedule/wgmma_groups.py)."""

from __future__ import annotations

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import SharedTile, Tile
from fuser.backend.nvptx.layouts.assignment import DotPlan
from fuser.backend.nvptx.layouts.layout import Layout, WarpGrid
from fuser.backend.nvptx.layouts.mma_units import known_unit, unit_name
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.schedule import consumer_warps
from fuser.dtypes import u32
from fuser.errors import LoweringError
from fuser.tilegen import ops


def wgmma_dot(
    low: Builder,
    op: ops.Dot,
    plan: DotPlan,
    left: SharedTile | Tile,
    right: SharedTile | Tile,
    acc: Tile,
) -> Tile:
    """Issue every matmul of the dot as one group, and wait for it.

    Dots of one group are waited for after the last of them; what this returns for the others is in
    flight, and `lower_dot` waits for all.
    """
    assert isinstance(right, SharedTile)
    source = pack_fragments(low, left) if isinstance(left, Tile) else left
    group = consumer_warps.group_of(low, op)
    sums = issue(low, op, plan, source, right, acc)
    if group:
        return sums
    (sums,) = wait(low, [sums], 0)
    return accumulate(low, acc, sums) if known_unit(op).truncates else sums


def pack_fragments(low: Recording, x: Tile) -> Tile:
    """Register fragments of a left operand as words, which are written before any is issued."""
    layout = x.layout
    words = Layout(layout.shape, layout.regs[:: 4 // x.dtype.bytes], layout.lanes, layout.warps)
    made = low.new(u32, x.shape, words, "words")
    return low.add(gpu.PackFragments(x=x, results=(made,)))


def issue(
    low: Builder,
    op: ops.Dot,
    plan: DotPlan,
    left: SharedTile | Tile,
    right: SharedTile,
    acc: Tile,
) -> Tile:
    """Issue the matmuls of a dot; its sums, in flight. left: in shared memory or as words of
    register fragments."""
    assert plan.grid is not None
    fresh = known_unit(op).truncates or consumer_warps.is_zero(low, op.acc)
    _check_slices(right, plan.grid, left=False)
    if isinstance(left, SharedTile):
        _check_slices(left, plan.grid, left=True)
    made = low.new(acc.dtype, acc.shape, acc.layout, "flying")
    return low.add(gpu.Wgmma(
        unit=unit_name(op), grid=plan.grid, k=op.a.shape[1], a=left, b=right,
        acc=None if fresh else acc, keeps=1 if fresh else consumer_warps.keeps_sums(low, op),
        results=(made,),
    ))  # fmt: skip


def wait(low: Recording, tiles: list[Tile], pending: int) -> list[Tile]:
    """Wait until at most `pending` groups are in flight; the tiles after it."""
    found = tuple(low.new(tile.dtype, tile.shape, tile.layout, "sum") for tile in tiles)
    low.do(gpu.WgmmaWait(values=tuple(tiles), pending=pending, results=found))
    return list(found)


def accumulate(low: Recording, acc: Tile, x: Tile) -> Tile:
    """Sums that started afresh, added to those of before."""
    made = low.new(acc.dtype, acc.shape, acc.layout, "sum")
    return low.add(gpu.Accumulate(acc=acc, x=x, results=(made,)))


def _check_slices(tile: SharedTile, grid: WarpGrid, *, left: bool) -> None:
    """Raises LoweringError where a warp group's share of an operand starts inside a block of the
    swizzle: it has no descriptor."""
    groups, extent = grid.group_slices(left)
    width = tile.span // tile.dtype.bytes
    k_inner = tile.inner == (1 if left else 0)
    if groups > 1 and not k_inner and extent % width:
        raise LoweringError(f"{extent} columns a warp group do not fill blocks of {width}")
