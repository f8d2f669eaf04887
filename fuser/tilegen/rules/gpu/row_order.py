"""The schedule rules of a GPU for batch invariant numerics: what orders the terms of a row's sums
is decided without the number of rows, the batch, or the example of an open size.

    matmul [1, 4096] x [4096, 4096]       wgmma of 64 rows, k from the first step to the last
    matmul [4096, 4096] x [4096, 4096]    the same, in larger tiles

By the other rules the first is mma.sync of 16 rows whose warps share k, others cut k among blocks.
Tensor cores of one kind add the terms of a step of k in one order in a tile of any size, so tiles
may still follow the sizes. Few rows cost what 64 do, which is little where weights are streamed.
"""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import DotUnit, Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.row_order import SAME
from fuser.tilegen.rules.common import (
    MOST_SYMBOLIC_DEPTH,
    MOST_SYMBOLIC_KEYS,
    block_of,
    blocks_of,
    ceildiv,
    cover,
    power_of_two,
    reduced_extents,
)
from fuser.tilegen.rules.gpu.attention import shared_bytes
from fuser.tilegen.rules.gpu.conv import DEEP
from fuser.tilegen.rules.gpu.matmul import CODE_TILE
from fuser.tilegen.rules.gpu.one_wave import warps_of
from fuser.tilegen.rules.gpu.ping_pong import ping_pong_schedule
from fuser.tilegen.rules.gpu.rows import ROW_ELEMENTS, row_blocks
from fuser.tilegen.rules.gpu.tiles import deep_stages, gpu_tile
from fuser.tilegen.rules.record import Reads, Rules, Window
from fuser.tilegen.schedule import Schedule

UNIT_ROWS = 64
"""Rows of a tile of wgmma: fewer would be another unit, with sums of its own."""
OPEN_ROW = 1024
"""Elements of a tile of rows whose length is open."""


def dot_schedule(
    target: Target, m: int, n: int, k: int, bits: int, accumulators: int = 1, batch: int = 1,
    unit: DotUnit | None = None, *, streamed: bool = True, folded: bool = True,
    crooked: tuple[bool, bool] = (False, False), codes: bool = False, packed: bool = False,
    panel: int = 0, decoded: int = 0,
) -> Schedule:  # fmt: skip
    """Blocks of a matmul: see `MatmulRule`. Nobody shares the k of a tile."""
    m, n, batch = size_hint(m), size_hint(n), size_hint(batch)
    k = block_of(k, MOST_SYMBOLIC_DEPTH) if is_symbolic(k) else k
    narrow = bits <= 16
    least = UNIT_ROWS if narrow and target.wgmma else 0
    m = max(m, least)
    most = CODE_TILE if codes else 1 << 15
    rows, columns, waves, reason = gpu_tile(
        target, m, n, min(bits, 16) if narrow else bits, accumulators, batch, most, least=least
    )  # fmt: skip
    depth = 128 if bits == 8 else 64 if narrow else 32 if bits < 64 else 16
    while depth > 16 * (2 if bits == 8 else 1) and depth >= 2 * k:
        depth //= 2
    if narrow and streamed and target.wgmma and not codes and bits == 16 and k >= 128:
        plain = rows, columns, waves
        paired = ping_pong_schedule(target, m, n, k, accumulators, batch, plain, fixed=False)
        if paired is not None:
            return replace(paired, reason=f"{paired.reason}; {_order(depth)}")
    lines, stages = rows + columns * accumulators, 4 if narrow else 3
    if bits == 16 and waves == 1 and lines <= 192:
        stages = deep_stages(lines, depth, ceildiv(k, depth), 216 << 10, 18)
    return blocks_of(
        warps=warps_of(rows * columns * accumulators, accumulators, short=False), stages=stages,
        group=8 if batch == 1 else 0, reason=f"{reason}; {_order(depth)}",
        m=rows, n=columns, k=depth,
    )  # fmt: skip


def _order(depth: int) -> str:
    return f"k in steps of {depth}, {SAME}"


def conv_schedule(
    target: Target, m: int, n: int, channels: int, taps: int, bits: int, groups: int,
    unit: DotUnit | None = None, *, staged: bool = False, window: Window | None = None,
    run: int = 1, pitch: int = 0,
) -> Schedule:  # fmt: skip
    """Blocks of a convolution: see `ConvRule`. Nobody shares the taps or channels of a tile."""
    m, n, groups = size_hint(m), size_hint(n), size_hint(groups)
    channels, half = cover(channels), bits == 16
    least = UNIT_ROWS if half and target.wgmma else 0
    m = max(m, least)
    rows, columns, _, reason = gpu_tile(
        target, m, n, bits, 1, groups, 3 << 13, row_cost=60, least=least
    )  # fmt: skip
    if channels < 16:
        depth = 64 if half and channels * taps >= DEEP else 16
        rows, columns = (64, 64) if half else (min(rows, 64), min(columns, 64))
        return blocks_of(stages=3, reason=f"{reason}; {_order(depth)}", m=rows, n=columns, k=depth)
    depth = 64 if half else 32 if bits < 64 else 16
    while depth > 16 and channels % depth and depth > channels % depth:
        depth //= 2
    found = blocks_of(
        warps=8 if rows * columns >= 128 * 128 else 4, stages=4 if half else 3,
        reason=f"{reason}; {_order(depth)}", m=rows, n=columns, k=depth,
    )  # fmt: skip
    return found if depth >= 64 else replace(found, im2col=False)


def attention_schedule(
    target: Target, batch: int, m: int, n: int, depth: int, columns: int, bits: int,
    reads: Reads = "nothing", *, by_unit: bool = False, bounded: bool = False,
    causal: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks of attention: see `AttentionRule`. Nobody shares the keys of a row."""
    depth, columns = size_hint(depth), size_hint(columns)
    rows, keys = 64, 64 if bits <= 16 else 32
    while max(rows, keys) > 16 and 0 < target.shared_bytes < shared_bytes(
        target, rows, keys, depth, columns, bits
    ):
        if keys >= rows or rows == 16:
            keys //= 2
        else:
            rows //= 2
    return blocks_of(
        warps=rows // 16, stages=2, reason=f"keys in blocks of {keys}, {SAME}", m=rows, n=keys
    )


def reduce_schedule(
    target: Target, rows: int, total: int, columns: int, item_bytes: int = 4, reads: int = 0,
    held: tuple[int, int, int] = (0, 0, 0),
) -> Schedule:  # fmt: skip
    """Blocks of a reduction: see `ReduceRule`. A block has one row: of a single one there is no
    tile of several, and what threads add up follows from the shape of the tile."""
    is_open = is_symbolic(total)
    _, total, columns = reduced_extents(1, total, columns)
    padded = power_of_two(total)
    if is_open:  # variants of other examples add up as this one
        padded = MOST_SYMBOLIC_KEYS if columns > 1 else OPEN_ROW
    if columns > 1:
        width = min(power_of_two(columns), 64)
        return blocks_of(rows=1, columns=width, total=min(padded, max(1, 8192 // width)))
    cluster = row_blocks(target, padded, reads, item_bytes) if reads else 1
    whole = min(padded, ROW_ELEMENTS * cluster)
    warps = max(1, min(16, whole // cluster // (512 if cluster == 1 else 1024)))
    schedule = blocks_of(
        warps=power_of_two(warps), rows=1, columns=1, total=whole,
        reason=f"a row of {whole} a block, {SAME}",
    )  # fmt: skip
    return replace(schedule, cluster=cluster)


def row_order_rules(rules: Rules) -> Rules:
    """A GPU's rules with these in the place of those that count rows."""
    return replace(
        rules,
        matmul=dot_schedule,
        conv=conv_schedule,
        attention=attention_schedule,
        reduce=reduce_schedule,
    )
