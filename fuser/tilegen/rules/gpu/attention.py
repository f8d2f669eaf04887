"""Schedules of attention on a GPU: blocks of queries and keys, and how many programs share the
keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuser.base.target import Target
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.tilegen.rules.common import ceildiv, power_of_two
from fuser.tilegen.rules.record import Reads
from fuser.tilegen.schedule import Schedule

UNEQUAL_WAVES = 4
"""Causal programs a multiprocessor up to which blocks share them out beforehand. Four gain
15 %; with 16 the programs at work read the keys of more heads than fit L2, and lose 5 %."""


def attention_schedule(
    target: Target, batch: int, m: int, n: int, depth: int, columns: int, bits: int,
    reads: Reads = "nothing", *, by_unit: bool = False, bounded: bool = False,
    causal: bool = False,
) -> Schedule:  # fmt: skip
    """Blocks of attention: see `AttentionRule`."""
    several, fixed = is_symbolic(batch), not is_symbolic(n)
    batch, depth, columns = size_hint(batch), size_hint(depth), size_hint(columns)
    m, n = size_hint(m), size_hint(n)
    wide = max(depth, columns)
    if bits == 16 and target.wgmma and wide <= 256 and reads != "tiles":
        # warp groups share the keys on their way; three of them pay where matmuls are short and
        # there are iterations enough; loads of the score code hide better behind small blocks, but
        # for a tile that comes the way of the keys, beside which the matmuls are long enough
        beside = reads == "half tile"
        blocks = [(128, 64 if wide > 128 or beside else 128, 8)]
        if wide <= 64 and reads == "nothing":
            blocks.insert(0, (192, 128, 12))
        if 64 < wide <= 128 and bounded and not beside:
            blocks.insert(0, (192, 64, 12))  # what bounds scores takes long: three groups hide it
        if wide <= 64 and beside:
            blocks = []
        for rows, keys, warps in blocks:
            full = n >= 1024 if wide <= 64 else n > keys
            exact = rows != 192 or n % keys == 0
            stage = keys * (depth + columns + (rows if beside else 0)) * 2
            stages = min(
                3 if beside else 2, (target.shared_bytes - rows * depth * 2 - 8192) // stage
            )
            many = m >= rows and batch * ceildiv(m, rows) >= target.units
            if full and exact and stages > 1 and many and not (beside and n % 8):
                return Schedule(
                    blocks=(("m", rows), ("n", keys)), warps=warps, stages=stages, persistent=True
                )
    rows = 64
    while rows > 16 and rows >= 2 * m:
        rows //= 2
    keys = 128 if wide <= 64 and n % 128 == 0 else 64
    most = MAX_KEYS if wide <= 64 else MAX_WIDE_KEYS
    odd = fixed and n > 64 and n % 64 > 0
    bare = reads == "nothing" and not bounded and wide <= 128
    many = batch * ceildiv(m, rows) > target.units and not causal
    if odd and bare and (many or n <= most) and bits == 16 and target.wgmma and rows == 64:
        keys = _even_keys(n, most)
    if bits > 16:
        keys = 32
    stages = 2
    if rows == 16:  # few queries: the time is that of streaming the keys
        stages = 3
        while keys > 16 and keys * (depth + columns) * bits // 8 > STREAMED:
            keys //= 2
    while keys > 16 and keys >= 2 * n:
        keys //= 2
    while max(rows, keys) > 16 and 0 < target.shared_bytes < shared_bytes(
        target, rows, keys, depth, columns, bits
    ):
        if keys >= rows or rows == 16:
            keys //= 2
        else:
            rows //= 2
    programs = batch * ceildiv(m, rows)
    iteration_bytes = keys * (depth + columns) * bits // 8
    wgmma = rows == 64 and bits <= 16 and target.wgmma
    loop = _Loop(
        programs, ceildiv(n, keys), iteration_bytes,
        keys * (KEY + KEY_COLUMN * wide) if wgmma else ITERATION,
        1 if wgmma else max(1, target.shared_bytes // (iteration_bytes * stages)),
        min(rows, m) * columns, SCALES if several else (1,),
    )  # fmt: skip
    split, cluster = key_splits(target, loop, clusters=wgmma)
    parts = max(split, cluster)
    reason = f"{programs} blocks of queries, keys in {parts} parts"
    return Schedule(
        blocks=(("m", rows), ("n", keys)), warps=rows // 16, stages=stages, split_k=split,
        cluster=cluster, reason=reason if parts > 1 else "",
        launch_overlap=True if parts > 1 else None,
    )  # fmt: skip


def _even_keys(n: int, most: int) -> int:
    """Keys of an iteration, in sixteens, of which the fewest are beyond the last; then the most."""
    counts = range(ceildiv(n, most), ceildiv(n, 64) + 1)
    options = [16 * ceildiv(ceildiv(n, count), 16) for count in counts]
    return min(options, key=lambda keys: (keys * ceildiv(n, keys), -keys))


MAX_KEYS, MAX_WIDE_KEYS = 112, 80
"""Keys of an iteration whose scores a warp group has room for, beside others of a multiprocessor:
of up to 64 columns, and of more."""


def shared_bytes(target: Target, rows: int, keys: int, depth: int, columns: int, bits: int) -> int:
    """Bytes of shared memory of one stage: queries, keys and values, and what turns results of 16
    bits over for the store."""
    turned = 0
    if bits == 16:  # in strips of 16 rows where the target stores them so
        turned = rows * 128 if target.clusters else rows * (2 * power_of_two(columns) + 16)
    return (rows * depth + keys * (depth + columns)) * bits // 8 + turned


STREAMED = 16 << 10
"""Bytes of keys and values in an iteration of a block of few queries: four such blocks, with three
iterations under way each, fit a multiprocessor, and each has a quarter of it to compute with."""
ITERATION = 0.8e-6
"""Seconds of an iteration over a block of keys where nothing else delays it: of few queries."""
KEY, KEY_COLUMN = 3.4e-9, 4.65e-11
"""The same of 64 queries on wgmma: seconds a key, and more for each column of keys or values."""
START = 2.7e-6
"""Seconds before a block has its first keys, and of its end."""
MERGE = 1.2e-6
"""Seconds by which the kernel that merges the parts is later, its traffic left out, where it starts
early; else another launch comes on top."""
MERGE_BYTES = 11
"""Bytes, at the rate of memory, as which a sum counts that is left for that kernel."""
CLUSTERS = (2, 4, 8)
"""Blocks of a cluster that may share keys: every Hopper GPU can run eight."""
CLUSTER_SUM, CLUSTER_TWICE = 2e-10, 1e-10
"""Seconds for each sum of a block, and more for each doubling of the blocks, until those of a
cluster have merged their parts."""
SCALES = (1, 2, 4)
"""Of the example, where the number of programs is open: parts are to do for all of them."""
CLUSTERED = 0.85
"""Of the blocks that there is room for: multiprocessors are grouped, and clusters fill the groups
unevenly."""


@dataclass(frozen=True)
class _Loop:
    """The loops over keys of an attention: so many programs, each with so many iterations of a
    number of bytes and a number of seconds. together: blocks that run on a multiprocessor as fast
    as one alone; sums: that a program leaves. scales: times as many programs may come, too."""

    programs: int
    iterations: int
    iteration_bytes: int
    iteration: float
    together: int
    sums: int
    scales: tuple[int, ...] = (1,)


def key_splits(target: Target, loop: _Loop, *, clusters: bool) -> tuple[int, int]:
    """(how many programs share the keys of a block of queries, or else how many blocks of a
    cluster); both 1 where none do.

    Where blocks are few, so that time is that of an iteration after the other, parts of them are
    worth a merge: by a second kernel, which reads the sums of every part, or within a cluster,
    which has eight blocks at most. Blocks that wait for nothing but keys come without clusters,
    whose uneven places cost more than they save (docs/lab/gpu-decode.md, as all the times here).
    """
    resident = target.units * loop.together
    moved = loop.iterations * loop.iteration_bytes / target.bandwidth
    second = MERGE if target.clusters else MERGE + target.launch_cost

    def consider(parts: int, room: float, merge: float, left: float) -> float:
        """Seconds, or their product for all scales, with so many seconds of merging, and more for
        what each program leaves."""
        time = 1.0
        for scale in loop.scales:
            programs = loop.programs * scale
            waves = math.ceil(programs * parts / room)
            if parts > 1 and waves > 1 and len(loop.scales) == 1:
                return math.inf  # what waits for another program does not end earlier
            each = ceildiv(loop.iterations, parts) * loop.iteration + START
            time *= max(programs * moved, waves * each) + merge + left * programs
        return time

    options: list[tuple[float, int, int]] = [(consider(1, resident, 0.0, 0.0), 1, 1)]
    for wanted in range(2, min(loop.iterations, 64) + 1):
        split = ceildiv(loop.iterations, ceildiv(loop.iterations, wanted))
        left = MERGE_BYTES * split * loop.sums / target.bandwidth
        options.append((consider(split, resident, second, left), split, 1))
    for cluster in CLUSTERS:
        if clusters and cluster <= loop.iterations:
            merge = loop.sums * (CLUSTER_SUM + CLUSTER_TWICE * math.log2(cluster))
            options.append((consider(cluster, CLUSTERED * resident, merge, 0.0), 1, cluster))
    best = options[0]
    for option in options[1:]:
        if option[0] < 0.97 * best[0]:
            best = option
    return best[1:]


def merge_schedule(target: Target, parts: int, columns: int) -> Schedule:
    """The merge of parts: see `MergeRule`."""
    # one warp needs no barrier: what counts is how long a program takes, not how many there are
    elements = power_of_two(parts) * power_of_two(columns)
    return Schedule(warps=max(1, min(4, elements // 2048)), launch_overlap=True)
