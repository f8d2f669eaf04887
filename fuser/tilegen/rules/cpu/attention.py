"""Schedules of attention on a CPU: blocks of queries and keys."""

from __future__ import annotations

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.rules.common import MAX_SYMBOLIC_ROWS, block_of, ceildiv
from fuser.tilegen.rules.record import Reads
from fuser.tilegen.schedule import Schedule

CPU_QUERIES = 32
"""Queries of a block on a CPU: their scores and the values of 128 keys fit L1 together, and few
hang over. 64 take 5 % longer for 128 queries, 17 % for 197; but AMX, whose keys are copied once a
block, 7 to 17 % less."""
UNIT_QUERIES = (192, 64)
"""The same at most where a unit such as AMX multiplies, as far as there are programs enough: the
keys are copied once a block."""
CAUSAL_KEYS = 64
"""Keys of a block where rows see some of the keys: blocks that none of them sees are skipped."""
OPEN_KEYS = 128
"""The block of a number of keys of any size: what hangs over is computed in vain."""
PROGRAMS = 16
PART_KEYS = 1024
"""Attention of fewer programs shares its keys out to so many, of so many keys at least where their
number is known. Not by the threads of the machine: results would depend on them."""


def attention_schedule(
    target: Target, batch: int, m: int, n: int, depth: int, columns: int, bits: int,
    reads: Reads = "nothing", *, by_unit: bool = False, bounded: bool = False,
    causal: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks of attention: see `AttentionRule`."""
    batch, depth = size_hint(batch), size_hint(depth)
    queries, keys_known = size_hint(m), not is_symbolic(n)
    m = block_of(m, MAX_SYMBOLIC_ROWS) if is_symbolic(m) else m
    n = n if keys_known else block_of(n, OPEN_KEYS)
    rows = CPU_QUERIES
    for most in UNIT_QUERIES if by_unit else ():
        even = ceildiv(ceildiv(m, ceildiv(m, most)), 16) * 16
        if ceildiv(m, even) * batch >= 4 * target.workers:
            rows = even
            break
    rows = min(m, rows)
    parts = max(1, PROGRAMS // (batch * ceildiv(queries, rows)))
    if keys_known:
        parts = min(parts, max(1, n // PART_KEYS))
    keys = min(n, CAUSAL_KEYS if causal and not by_unit else 512 if depth <= 64 else 256)
    return Schedule(blocks=(("m", rows), ("n", keys)), split_k=parts)


def merge_schedule(target: Target, parts: int, columns: int) -> Schedule:
    """The merge of parts: see `MergeRule`."""
    return Schedule(warps=1, launch_overlap=True)
