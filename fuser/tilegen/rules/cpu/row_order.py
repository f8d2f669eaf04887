"""The schedule rules of a CPU for batch invariant numerics: what orders the terms of a row's sums
is decided without the number of rows, the batch, or the example of an open size.

    matmul [1, 8192] x [8192, 512]      k in one piece, as the rules of few rows have it
    matmul [128, 8192] x [8192, 512]    k in one piece; by the other rules blocks of 1024

Tiles of rows and columns, sweeps and grids stay those of the other rules: a row's terms are added
up in the same order in a tile of any height.
"""

from __future__ import annotations

from dataclasses import replace

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.row_order import SAME
from fuser.tilegen.rules.common import MAX_BLOCK_ELEMENTS, block_of, cover
from fuser.tilegen.rules.cpu import attention, matmul
from fuser.tilegen.rules.cpu.rows import reduce_schedule as plain_reduce
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.rules.record import Reads, Rules
from fuser.tilegen.schedule import Schedule

KEYS = 128
"""Keys of a block of attention, whatever their number: the running maximum is taken block by
block."""


def attention_schedule(
    target: Target, batch: int, m: int, n: int, depth: int, columns: int, bits: int,
    reads: Reads = "nothing", *, by_unit: bool = False, bounded: bool = False,
    causal: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks of attention: see `AttentionRule`. Nobody shares the keys of a row."""
    found = attention.attention_schedule(
        target, batch, m, n, depth, columns, bits, reads, by_unit=by_unit, bounded=bounded,
        causal=causal,
    )  # fmt: skip
    keys = KEYS if is_symbolic(n) else min(n, KEYS)
    reason = f"keys in blocks of {KEYS}, {SAME}"
    return replace(found, blocks=(("m", found.block("m")), ("n", keys)), split_k=1, reason=reason)


def dot_schedule(target: Target, problem: Problem) -> Schedule:
    """Blocks of a matmul: see `MatmulRule`. A tile has all of k."""
    found = matmul.dot_schedule(target, problem)
    return replace(found, reason=f"{found.reason}; k in one piece, {SAME}")


def reduce_schedule(
    target: Target, rows: int, total: int, columns: int, item_bytes: int = 4, reads: int = 0,
    held: tuple[int, int, int] = (0, 0, 0),
) -> Schedule:  # fmt: skip
    """Blocks of a reduction: see `ReduceRule`. Rows are whole, or, where their length is open and
    long, in chunks of one size."""
    found = plain_reduce(target, rows, total, columns, item_bytes, reads, held)
    if not is_symbolic(total):
        return found
    whole = (
        total <= MAX_BLOCK_ELEMENTS
    )  # asked of a symbol, so that it holds for all of a variant's
    size = cover(total) if whole else block_of(total, MAX_BLOCK_ELEMENTS)
    blocks = tuple((name, size if name == "total" else n) for name, n in found.blocks)
    return replace(found, blocks=blocks)


def packed_schedule(
    target: Target, m: int, n: int, k: int, block: int | None, accumulators: int,
    narrow: bool = False,
) -> Schedule:  # fmt: skip
    """A matmul whose weights are decoded on the way: see `packed_schedule` in matmul.py. Sums of
    blocks are scaled, as those of few rows are, where blocks are known."""
    if block is None:
        return matmul.packed_schedule(target, m, n, k, block, accumulators)
    tile = matmul.decoded_tile(target, m, n, accumulators * (2 if block else 1))
    found = matmul.packed_schedule(target, 1, n, k, block, accumulators)
    return replace(
        found, blocks=(("m", tile[0]), ("n", tile[1]), ("k", block or k)),
        reason=f"sums of blocks are scaled, {SAME}",
    )  # fmt: skip


def row_order_rules(rules: Rules) -> Rules:
    """A CPU's rules with these in the place of those that count rows."""
    return replace(
        rules, matmul=dot_schedule, attention=attention_schedule, reduce=reduce_schedule,
        packed_matmul=packed_schedule, k_blocks=None, winograd_side=None,
    )  # fmt: skip
