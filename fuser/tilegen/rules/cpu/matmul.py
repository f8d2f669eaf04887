"""Schedules of matmuls on a CPU: register tiles and sweeps, or what a dot unit wants."""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.graph.sizes import size_hint
from fuser.tilegen.rules.common import blocks_of, ceildiv
from fuser.tilegen.rules.cpu import units
from fuser.tilegen.rules.cpu.cost import cost
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule


def dot_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a matmul: see `MatmulRule`. Caches load operands wherever they begin. Rows of the
    left operand are taken to follow each other, as nearly all do."""
    p = problem.closed()
    return units.schedule(target, p) if p.unit is not None else candidates(target, p)[0]


def candidates(target: Target, problem: Problem) -> list[Schedule]:
    """Matmuls of known sizes in the register tiles that fit, those of the least cost first. With
    few rows, whole rows of a right operand or vectors along k take the place of packed panels."""
    few = row_schedule(target, problem)
    along_k = problem.pitch == 0 and problem.m <= ROWS_ALONG_K
    packs = problem.pitch is not None and few is None and not along_k and pays(target, problem)
    found = _tiled(target, problem, packs) + ([few] if few is not None else [])
    return sorted(found, key=lambda schedule: cost(target, problem, schedule))


def pays(target: Target, problem: Problem) -> bool:
    """Whether right operands are packed, as all cores would have it. Their sums have another order,
    so that the threads of a plan would choose its bits."""
    cores = replace(target, threads=0)
    plain, packed = (
        min(cost(cores, problem, schedule) for schedule in _tiled(cores, problem, packs))
        for packs in (False, True)
    )
    return packed < plain


def _tiled(target: Target, problem: Problem, packs: bool) -> list[Schedule]:
    tiles = register_tiles(target, problem, packs)
    return [replace(matmul_schedule(target, problem, *tile), packs=packs) for tile in tiles]


ROWS_ALONG_K = 4
"""Rows up to which a right operand whose k is innermost is multiplied in vectors of k."""
STREAMED_ROWS = 16
"""Rows of a matmul up to which memory is slower than its products."""
STREAMED_STEPS = 8
"""Rows of the right operand that are read side by side: the processor follows some 16. With more
than as many rows on the left, twice as many, as sums pass through a cache once for all of them."""


def row_schedule(target: Target, problem: Problem) -> Schedule | None:
    """A CPU matmul of few rows by whole rows of the right operand, a few steps of k at a time, with
    the sums in cache: memory is read in order, where a register tile reads a piece of each row,
    that lie apart. None where the right operand is not an array of rows. The order of sums is that
    of k, as in a register tile."""
    p = problem
    steps = STREAMED_STEPS if p.m <= STREAMED_STEPS else 2 * STREAMED_STEPS
    if not p.pitch or p.m > STREAMED_ROWS or p.k <= steps or p.panel or p.folded:
        return None
    lanes, bits = target.lanes(64 if p.bits == 64 else 32), max(p.bits, 32)
    most = target.l2_bytes // 4 // (p.m * p.accumulators * bits // 8)
    parts = max(ceildiv(p.n, most), ceildiv(target.workers, p.batch))
    columns = ceildiv(ceildiv(p.n, parts), MAX_VECTORS * lanes) * MAX_VECTORS * lanes
    return blocks_of(m=p.m, n=columns, k=steps, reason="rows of the right operand in order")


MAX_VECTORS = 4
"""Maximum vectors of a row of a register tile."""


def register_tiles(target: Target, problem: Problem, packs: bool = False) -> list[tuple[int, int]]:
    """(rows, columns) of the register tiles that fit, those of the least cost first: rows * vectors
    accumulators a dot, a row of B and one broadcast fit the registers. packs: as Schedule has it.
    """
    p, lanes = problem, target.lanes(64 if problem.bits == 64 else 32)
    found: dict[tuple[int, int], float] = {}
    for vectors in range(1, MAX_VECTORS + 1):
        most = (target.vector_registers - 1 - vectors) // (vectors * p.accumulators)
        most = min(most, target.tile_vectors // vectors)
        for rows in range(max(1, most // 2), most + 1):
            tile = min(rows, p.m), vectors * lanes
            found[tile] = cost(target, p, replace(blocks_of(m=tile[0], n=tile[1]), packs=packs))
    return sorted(found, key=lambda tile: found[tile])


def matmul_schedule(target: Target, problem: Problem, rows: int, columns: int) -> Schedule:
    """The schedule of a CPU matmul with a register tile."""
    p, line = problem, problem.k * problem.bits // 8
    group = swept_rows(
        target, ceildiv(p.m, rows), ceildiv(p.n, columns), rows, line,
        columns * p.accumulators * line, p.m * p.n * p.bits // 8,
    )  # fmt: skip
    return blocks_of(group=group, m=rows, n=columns, k=p.k, reason="register tile of least cost")


SWEPT_ROWS = 64
"""Rows that share one read of large weights at least. At full speed n rows ask for 128 / n bytes of
weights a cycle, and from beyond L2 a core gets 4: 128x3072x768 as sweeps of 32 rows runs at 70 % of
the peak, of 48 and more at 89 to 91 %."""


def swept_rows(
    target: Target, tiles: int, panels: int, rows: int, row_bytes: int, panel_bytes: int,
    result_bytes: int,
) -> int:  # fmt: skip
    """How many tiles of `rows` rows of a CPU matmul to take through all panels of the right
    operand before the next ones; 0: all of them.

    Without, every panel reads all rows, from beyond L2 where they are large; with, every sweep
    reads all panels. Weights that stay in L2 while much streams through it take one tile of rows
    after the other: rows, results and residuals pass once, in the order of memory. Else cores take
    neighbouring programs: a sweep each where weights are the smaller side, so that a core finds the
    rows it wrote in its own cache; else some panels each.
    """
    if panels < 2:
        return 0
    left, weights = tiles * rows * row_bytes, panels * panel_bytes
    if weights <= target.l2_bytes // 4 and left + result_bytes > target.l2_bytes // 8:
        return 1 if tiles > 1 else 0
    budget = target.l2_bytes * 3 // 10  # beside a panel in use and one under way
    sweeps = 1
    least, most = ceildiv(SWEPT_ROWS, rows), budget // (rows * row_bytes)
    if least <= most < tiles and budget + 2 * panel_bytes <= target.l2_bytes:
        wanted = ceildiv(tiles, most)
        if (wanted - 1) * weights < (panels - 1) * left:
            several = [s for s in range(wanted, wanted + 4) if ceildiv(tiles, s) >= least]
            sweeps = min(several, key=lambda s: ceildiv(tiles, s) * s, default=1)
    if weights < min(left, target.l2_bytes // 2) and sweeps < target.workers:
        share = ceildiv(tiles, target.workers)
        if share * target.workers <= 1.03 * tiles:
            sweeps = target.workers
    return ceildiv(tiles, sweeps) if sweeps > 1 else 0


FEW_ROWS = 12
"""Rows of a CPU matmul up to which its sums are scaled block by block, not its weights."""
DECODED_ROWS = 96
DECODED_DEPTH = 512
"""Rows and steps of k of a CPU matmul whose weights are decoded once for all of its rows."""


def packed_schedule(
    target: Target, m: int, n: int, k: int, block: int | None, accumulators: int,
    narrow: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks of a CPU matmul [m, k] x [k, n] whose weights are decoded on the way. block: steps of
    k that share a scale; 0: all of them; None: unknown. narrow: codes have 4 bits, and a row may be
    split into digits."""
    rows = size_hint(m)
    if narrow and block and target.dp4a:
        # each column has a sum a digit beside the scaled one
        tile = decoded_tile(target, 1, n, accumulators * 4)
        schedule = blocks_of(m=1, n=tile[1], k=block, reason="a row in three digits")
        return replace(schedule, late_scales=True, digits=True)
    if rows <= FEW_ROWS and block is not None:
        tile = decoded_tile(target, rows, n, accumulators * (2 if block else 1))
        schedule = blocks_of(m=tile[0], n=tile[1], k=block or k, reason="sums of blocks are scaled")
        return replace(schedule, late_scales=True)
    depth = min(k, max(1, DECODED_DEPTH // (block or 1)) * (block or 1))
    tile = decoded_tile(target, rows, n)
    even = ceildiv(rows, ceildiv(rows, DECODED_ROWS))
    return blocks_of(
        m=min(rows, ceildiv(even, tile[0]) * tile[0]), n=tile[1], k=depth,
        reason="weights are decoded once a block",
    )  # fmt: skip


def decoded_tile(target: Target, m: int, n: int, accumulators: int = 1) -> tuple[int, int]:
    """The register tile of a matmul whose weights are decoded on the way."""
    return register_tiles(target, Problem(m, n, 1, 32, accumulators, decoded=8))[0]
