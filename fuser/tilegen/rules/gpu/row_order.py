"""The schedule rules of a GPU for batch invariant numerics: what orders the terms of a row's sums
is decided without the number of rows, the batch, or the example of an open size.

    matmul [1, 4096] x [4096, 4096]       wgmma of 64 rows, k from the first step to the last
    matmul [4096, 4096] x [4096, 4096]    the same, in larger tiles

By the other rules the first is mma.sync of 16 rows whose warps share k, others cut k among blocks.
Tensor cores of one kind add the terms of a step of k in one order in a tile of any size, so tiles
may still follow the sizes. Few rows cost what 64 do, which is little where weights are streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.row_order import SAME
from fuser.tilegen.rules.common import (
    MAX_SYMBOLIC_KEYS,
    blocks_of,
    power_of_two,
    reduced_extents,
)
from fuser.tilegen.rules.gpu import conv, matmul
from fuser.tilegen.rules.gpu.attention import shared_bytes
from fuser.tilegen.rules.gpu.conv import DEEP
from fuser.tilegen.rules.gpu.cost import UNIT_ROWS
from fuser.tilegen.rules.gpu.rows import ROW_ELEMENTS, row_blocks
from fuser.tilegen.rules.problem import MIN_CHANNELS, Problem
from fuser.tilegen.rules.record import Reads, Rules
from fuser.tilegen.schedule import Schedule

OPEN_ROW = 1024
"""Elements of a tile of rows whose length is open."""


def dot_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a matmul: see `MatmulRule`. Nobody shares the k of a tile."""
    return _whole(target, problem.closed(), matmul.candidates)


def _whole(
    target: Target, problem: Problem, candidates: Callable[[Target, Problem], Iterator[Schedule]]
) -> Schedule:
    """The candidate of least cost among those that multiply by one unit, and k from its first step
    to its last."""
    rows = UNIT_ROWS if problem.bits <= 16 and target.wgmma else 0
    p = replace(problem, m=max(problem.m, rows), folded=True, open=True, misaligned=(False, False))
    options = [s for s in candidates(target, p) if s.block("m") >= rows and not s.tf32x3]
    depth = min(s.block("k") for s in options)  # few blocks may have longer steps
    found = matmul.least(target, p, (s for s in options if s.block("k") == depth))
    return replace(found, reason=f"{found.reason}; k in steps of {found.block('k')}, {SAME}")


def conv_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a convolution: see `MatmulRule`. Nobody shares the taps or channels of a tile."""
    p, half = problem.closed(), problem.bits == 16
    assert p.image is not None
    if p.image.channels < MIN_CHANNELS:
        depth, side = 64 if half and p.k >= DEEP else 16, 64
        return blocks_of(stages=3, reason=f"k in steps of {depth}, {SAME}", m=side, n=side, k=depth)
    found = _whole(target, p, conv.candidates)
    return found if found.block("k") >= 64 else replace(found, im2col=False)


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
        padded = MAX_SYMBOLIC_KEYS if columns > 1 else OPEN_ROW
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
