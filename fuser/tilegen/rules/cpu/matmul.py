"""Schedules of matmuls on a CPU: register tiles and sweeps, or what a dot unit wants."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fuser.base.target import DotUnit, Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen import units
from fuser.tilegen.rules.common import MOST_SYMBOLIC_DEPTH, block_of, blocks_of, ceildiv
from fuser.tilegen.schedule import Schedule

LINE_BYTES = 64
PAGE_BYTES = 4096
"""Bytes of a way of L1: the address within a page names the set."""


def dot_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int = 1, batch: int = 1,
    unit: DotUnit | None = None, *, streamed: bool = True, folded: bool = True,
    crooked: tuple[bool, bool] = (False, False), codes: bool = False, packed: bool = False,
    panel: int = 0, decoded: int = 0,
) -> Schedule:  # fmt: skip
    """Blocks of a matmul: see `MatmulRule`. Caches bring operands wherever they begin. Rows of the
    left operand are taken to follow each other, as nearly all do."""
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    k = block_of(k, MOST_SYMBOLIC_DEPTH) if is_symbolic(k) else k
    if unit is not None:
        return units.schedule(target, unit, m, n, k, accumulators, batch)
    tile = register_tile(target, m, n, bits, accumulators, k * bits // 8)
    return matmul_schedule(target, m, n, k, bits, accumulators, *tile)


def register_tile(
    target: Target, m: int, n: int, bits: int, accumulators: int = 1, pitch: int = 0
) -> tuple[int, int]:
    """(rows, columns) of the register tile of a CPU dot that covers [m, n] with the least work."""
    return register_tiles(target, m, n, bits, accumulators, pitch)[0][1:]


def register_tiles(
    target: Target, m: int, n: int, bits: int, accumulators: int = 1, pitch: int = 0
) -> list[tuple[float, int, int]]:
    """(cost, rows, columns) of the register tiles that fit, those of the least work first.

    rows * vectors accumulators a dot, a row of B and one broadcast fit the registers; tiles that
    fill them run at about the same speed, so what counts is what hangs over the edges of [m, n].
    Tiles of few rows wait for B: L2 gives a line in 2.7 cycles. So do tiles of rows that L1 cannot
    hold: pitch is the bytes from one to the next, 0 if unknown. Where a core begins one
    multiply-add a cycle, the other instructions of a step pass beside them.
    """
    lanes = target.lanes(64 if bits == 64 else 32)
    line = 2.7 * target.vector_fmas * target.vector_bits / 512  # multiply-adds while L2 gives one
    found: list[tuple[float, int, int]] = []
    for vectors in range(1, 5):
        most = (target.vector_registers - 1 - vectors) // (vectors * accumulators)
        most = min(most, target.tile_vectors // vectors)
        panels = ceildiv(n, vectors * lanes)
        for rows in range(max(1, most // 2), most + 1):
            height = min(rows, m)
            lines = vectors + _evicted(target, height, pitch)
            # multiply-adds of a step of k, its loads, and a share of the start and end of the tile
            step = max(height * vectors, lines * line)
            step += (0.15 * (height + vectors) + 2) * (0.1 if target.vector_fmas == 1 else 1)
            found.append((ceildiv(m, height) * panels * step, height, vectors * lanes))
    return sorted(dict.fromkeys(found), key=lambda item: item[0])


def _evicted(target: Target, rows: int, pitch: int) -> int:
    """Cache lines of `rows` rows that L1 evicts between two steps of k: all lines of a set that
    cannot hold them. Rows a multiple of 4 KiB apart share one set."""
    if not pitch:
        return 0
    crowds = Counter(row * pitch % PAGE_BYTES // LINE_BYTES for row in range(rows)).values()
    ways = target.l1_bytes // PAGE_BYTES
    return sum(crowd for crowd in crowds if crowd > ways)


def matmul_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int, rows: int, columns: int
) -> Schedule:
    """The schedule of a CPU matmul with a register tile."""
    group = swept_rows(
        target, ceildiv(m, rows), ceildiv(n, columns), rows, k * bits // 8,
        columns * accumulators * k * bits // 8, m * n * bits // 8,
    )  # fmt: skip
    return blocks_of(group=group, m=rows, n=columns, k=k, reason="register tile of least waste")


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
        tile = register_tile(target, 1, n, 32, accumulators * 4)
        schedule = blocks_of(m=1, n=tile[1], k=block, reason="a row in three digits")
        return replace(schedule, late_scales=True, digits=True)
    if rows <= FEW_ROWS and block is not None:
        tile = register_tile(target, rows, n, 32, accumulators * (2 if block else 1))
        schedule = blocks_of(m=tile[0], n=tile[1], k=block or k, reason="sums of blocks are scaled")
        return replace(schedule, late_scales=True)
    depth = min(k, max(1, DECODED_DEPTH // (block or 1)) * (block or 1))
    tile = register_tile(target, rows, n, 32)
    even = ceildiv(rows, ceildiv(rows, DECODED_ROWS))
    return blocks_of(
        m=min(rows, ceildiv(even, tile[0]) * tile[0]), n=tile[1], k=depth,
        reason="weights are decoded once a block",
    )  # fmt: skip
