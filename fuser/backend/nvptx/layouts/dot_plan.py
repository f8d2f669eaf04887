"""How a dot runs: on which unit of the target, and how warps and blocks share its result."""

from __future__ import annotations

import dataclasses

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.analysis.decisions import Decision
from fuser.backend.nvptx.cluster.cluster import NeedsOneBlock
from fuser.backend.nvptx.cluster.reduction_merge import mergeable_loop
from fuser.backend.nvptx.layouts.access_layout import choose_blocked, distinct_bytes, repeat_of
from fuser.backend.nvptx.layouts.assignment import (
    Assignment,
    DotKind,
    DotPlan,
    feeds_rows,
    lone_dot,
    made_of_dot,
    summing_dots,
    trip_count,
)
from fuser.backend.nvptx.layouts.layout import WarpGrid, blocked, next_power
from fuser.backend.nvptx.layouts.mma_units import TF32, Unit, known_unit, unit_of
from fuser.backend.nvptx.layouts.tensor_grid import DEPTH, tensor_grid
from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel


def plan_dot(
    op: ops.Dot, plan: Assignment, target: Target, tf32x3: bool = False, row_order: bool = False
) -> DotPlan:
    """The unit and warp grid of a dot. tf32x3: see `assign`. row_order: see `Kernel`; warps do not
    share k then."""
    m, k = op.a.shape
    n = op.b.shape[1]
    warps = plan.warps
    kind = dot_kind(op, warps, target)
    if kind == "fma":
        order = (1, 0)
        vector = min(4, next_power(max(1, m * n // plan.threads)), next_power(n))
        layout = blocked((m, n), warps, order, vector)
        return DotPlan(kind, None, layout, layout)
    loop = plan.loops.get(plan.home[op.result])
    sums = [] if loop is None else summing_dots(loop, plan)
    lone = sums == [op]
    unit = unit_of(op)
    # where sums have one order for any number of rows, they have one unit, that of few rows
    if target.tcgen05 and not row_order and (op in sums or _is_done_once(op, loop, plan)):
        known = unit is not None and unit.depth == DEPTH
        tensor = tensor_grid(m, n, k, warps) if known else None
        if tensor is not None:
            return DotPlan("wgmma", tensor, tensor.accumulator(), tensor.accumulator())
    if kind == "tf32" and tf32x3 and lone and op.precision == "exact" and target.wgmma:
        if (m, k, warps) == (64, 32, 4) and n % 32 == 0 and n <= 128:
            kind = "wide"
    chained = feeds_rows(op.result, plan) or made_of_dot(op.a, plan)
    grid = warp_grid(m, n, warps, chained=chained, wgmma=kind in ("wgmma", "wide"))
    result = grid.accumulator()
    if unit is not None:
        grid = dataclasses.replace(grid, depth=unit.depth)
    if kind == "mma" and op in sums and not row_order:
        decoded = _decoded_grid(op, plan, grid)
        if decoded is not None:
            found = decoded.accumulator()
            return DotPlan(kind, decoded, found, result if decoded.warps_k > 1 else found)
        grid = split_warps(grid, -(-k // grid.depth), LONE if lone else ONE_OF_SEVERAL)
    return DotPlan(kind, grid, grid.accumulator(), result)


def _is_done_once(op: ops.Dot, loop: ops.For | None, plan: Assignment) -> bool:
    """Whether no loop carries the sums of a dot, which would be moved in each of its iterations."""
    return op.acc in plan.makers if loop is None else trip_count(loop) == 1


def _decoded_grid(op: ops.Dot, plan: Assignment, grid: WarpGrid) -> WarpGrid | None:
    """The grid of a dot of few rows whose right operand is decoded, element by element, of words
    that hold neighbours along k: threads decode what they multiply, and share k, so that nobody
    decodes what another one does. None for others."""
    run = _decoded_run(op, plan)
    if not run or grid.bands * grid.warps_m > 1:
        return None
    k, n = op.b.shape
    warps_k = plan.warps
    while warps_k > 1 and k % (4 * run * warps_k):
        warps_k //= 2
    found = dataclasses.replace(grid, warps_n=plan.warps // warps_k, warps_k=warps_k, run=run)
    return found if k % found.k_block == 0 and found.covered[1] == n else None


def _decoded_run(op: ops.Dot, plan: Assignment) -> int:
    """How many neighbours along k a word of the right operand has, of 16 bits; 0 where it is not
    decoded of words that a thread loads."""
    if op.b.dtype.bits != 16:
        return 0
    pending, seen = [op.b], {op.b}
    words: list[Access] = []
    while pending:
        maker = plan.makers.get(pending.pop())
        match maker:
            case ops.Map() | ops.Cast() | ops.Bitcast() | ops.Broadcast():
                more = [value for value in maker.operands() if value not in seen]
                seen.update(more)
                pending += more
            case ops.Load() if maker.shape == op.b.shape:
                words.append(plan.accesses[maker])
            case ops.Load() | ops.Full() | ops.IndexTile():
                pass
            case _:
                return 0
    if not words:
        return 0
    run = repeat_of(max(words, key=distinct_bytes), 0)
    return run if 4 <= run <= MAX_IN_A_WORD else 0


MAX_IN_A_WORD = 8
"""Codes of 4 bits."""


def split_iterations(kernel: Kernel, plan: Assignment) -> None:
    """Share the iterations of a kernel's loop among the blocks of a cluster: of a matmul, or of one
    whose carried values can be merged. Raises NeedsOneBlock."""
    found = mergeable_loop(kernel)
    if found is None or lone_dot(found[0], plan) is not None:
        spread_dot(kernel, plan)
    else:
        plan.reduction_merges[found[0]] = found[1]


def spread_dot(kernel: Kernel, plan: Assignment) -> None:
    """Share the one dot of a kernel among the blocks of a cluster: each takes a range of the loop's
    iterations, and the sums are spread over all of them. Raises NeedsOneBlock."""
    loops = [op for op in kernel.walk() if isinstance(op, ops.For)]
    dot = lone_dot(loops[0], plan) if len(loops) == 1 and loops[0] in kernel.body.ops else None
    if dot is None or len(plan.dots) > 1 or plan.dots[dot].kind not in ("wgmma", "mma"):
        raise NeedsOneBlock("more than one accumulating dot")
    loop = loops[0]
    if not trip_count(loop):
        raise NeedsOneBlock("a loop of unknown length")
    if trip_count(loop) < plan.cluster:
        raise NeedsOneBlock("a short loop")
    for op in loop.body.ops:
        bare = isinstance(op, ops.Dot | ops.Permute | ops.Full | ops.IndexTile | ops.Yield)
        if not bare and op not in plan.staged:
            raise NeedsOneBlock("operands that are computed")
    old = plan.dots[dot]
    shape = dot.result.shape
    found = [a for op, a in plan.accesses.items() if a.shape == shape and op not in plan.staged]
    spare = ((0, 0),) * (plan.cluster.bit_length() - 1)
    plan.dots[dot] = dataclasses.replace(
        old,
        accumulator=dataclasses.replace(old.accumulator, warps=old.accumulator.warps + spare),
        result=choose_blocked(shape, found, set(), plan.spread),
        blocks=plan.cluster,
    )


LONE, ONE_OF_SEVERAL = 16 * 64, 16 * 16
"""Elements of a warp's share of a dot that is alone in its loop, and of one beside others."""


def split_warps(grid: WarpGrid, steps: int, least: int = LONE) -> WarpGrid:
    """Turn warps along n into warps along k where a warp's share of the tile is too small to keep
    its tensor core busy: chains of dependent matmuls are short, operands are read less often.
    least: elements of a share that is large enough."""
    while (
        grid.warps_n > 1
        and (grid.rows * grid.columns < least or grid.covered[1] > grid.n)
        and grid.columns * 2 <= 64
        and steps % (grid.warps_k * 2) == 0
    ):
        grid = dataclasses.replace(grid, warps_n=grid.warps_n // 2, warps_k=grid.warps_k * 2)
    return grid


def dot_kind(op: ops.Dot, warps: int, target: Target) -> DotKind:
    """Which unit can multiply a dot's operands. Raises LoweringError."""
    (m, k), n = op.a.shape, op.b.shape[1]
    unit = unit_of(op)
    if unit is not None and target.sm >= unit.least_sm:
        return "wgmma" if target.wgmma and _fits_wgmma(unit, m, n, k, warps) else "mma"
    if op.codes:
        raise LoweringError(f"{target.arch} does not multiply {op.codes}", hint="decode it before")
    if op.a.dtype.name == op.acc.dtype.name == "f32" and target.sm >= TF32:
        return "tf32"
    return "fma"


UNIT_NAMES = {
    "tcgen05": "tcgen05", "wgmma": "wgmma", "wide": "wgmma of float32 in two parts",
    "mma": "mma.sync", "tf32": "mma.sync of float32 in two parts", "fma": "multiply-adds",
}  # fmt: skip
"""By what a plan calls its unit, the fastest first."""


def decide_unit(op: ops.Dot, plan: DotPlan, warps: int, target: Target) -> Decision:
    """Which unit a dot has, and why not a faster one."""
    (m, k), n = op.a.shape, op.b.shape[1]
    shape, unit = f"[{m}, {k}] x [{k}, {n}] of {op.a.dtype}", unit_of(op)
    found = UNIT_NAMES[plan.unit]
    if plan.grid is not None and plan.grid.run:
        found += ", the right operand decoded by the threads that multiply it"
    if plan.kind in ("wgmma", "wide"):
        return Decision("matrix unit", True, f"{found}: {shape}")
    if plan.kind == "fma":
        return Decision("matrix unit", False, f"{target.arch} has none for {op.a.dtype}: {shape}")
    why = f"{target.arch} has no wgmma" if not target.wgmma else ""
    if target.tcgen05:
        why = f"tcgen05 takes sums of 128 rows of 16-bit operands, and {warps} warps in fours"
    if not why:
        why = f"wgmma does not fit {warps} warps" if unit else "wgmma takes one float32 loop of 64"
    return Decision("matrix unit", True, f"{found}: {shape}; {why}")


def runs_on(op: ops.Dot, plan: DotPlan) -> bool:
    """Whether the matmuls of a dot may stay in flight until the next iteration of its loop."""
    return plan.kind == "wgmma" and not known_unit(op).truncates


def _fits_wgmma(unit: Unit, m: int, n: int, k: int, warps: int) -> bool:
    if warps % 4 or m % 64 or n % 8 or k % unit.depth:
        return False
    grid = warp_grid(m, n, warps, chained=False, wgmma=True)
    if unit.is_integer and grid.columns % 16 and grid.columns not in (8, 24):
        return False
    if warps & (warps - 1) and grid.warps_m != warps:
        return False
    aligned = grid.warps_n == 1 or grid.columns % 64 == 0
    return grid.covered == (m, n) and grid.columns <= 256 and aligned


def warp_grid(m: int, n: int, warps: int, *, chained: bool, wgmma: bool) -> WarpGrid:
    """Split [m, n] over warps: whole rows where rows are reduced or feed another dot, otherwise
    the squarest warp tile, which reads the fewest operand bytes from shared memory."""
    if wgmma:
        groups = warps // 4
        parts = groups
        while m % (64 * parts):
            parts //= 2
        return WarpGrid(m, n, 4 * parts, groups // parts, wgmma=True)
    if warps & (warps - 1):
        raise LoweringError(
            f"a [{m}, {n}] dot cannot be shared by {warps} warps", hint="use a power of two"
        )
    splits = [1 << power for power in range(warps.bit_length())]

    def cost(split: int) -> tuple[int, int]:
        grid = WarpGrid(m, n, split, warps // split)
        waste = grid.covered[0] * grid.covered[1]
        return waste, -split if chained else grid.rows + grid.columns

    split = min(splits, key=cost)
    return WarpGrid(m, n, split, warps // split)
