"""How a user's kernel is run: what the launch asks for, as far as it is good for the kernel.

num_warps and num_stages are hints. Kernels with matrix products take them as they are. Rows, which
have none, are spread by the registers that a thread needs: over so many warps that as many rows as
possible are under way on a multiprocessor, and threads enough to hide what each of them waits for.
That is most often 32 elements a thread, in 64 registers. The compiler of the GPU is held to these:
left alone it takes more, to load early what it can, and fewer blocks fit. Where a multiprocessor
has registers for one row only, or none, the blocks of a cluster share it.

Layer norm of 4096 rows of float16 on an H200, GB/s: 8192 columns with 4, 8 and 16 warps 3609, 3715
and 2938, and 3614 with 8 warps and no bound of their registers; 15872 columns with 8, 16 and 32
warps 3750, 3787 and 2252; 2048 rows of 32768 columns with 16 and 32 warps and four blocks of 8
warps 3296, 3144 and 3383.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fuser.base.target import Target
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value

ELEMENTS = 512
"""Of a tile for each warp, where nothing is held across a reduction; up to 8 warps."""
LONG = 32768
"""Elements of which 8 warps would have to hold too many."""
FEW = 4
"""Warps that a short row gets at least, if it asks for them."""
HALF = 112
"""32-bit registers that a thread of 8 warps may hold across a reduction, where two blocks share a
multiprocessor."""
LONGEST = 16
"""Maximum warps of a block whose rows fit its registers. 32 fill a multiprocessor, which loads
nothing while they reduce: 4096 rows of 32000 columns of bfloat16 147 µs with 32, Triton 121 with
16."""
THREADS = 1024
"""Of a multiprocessor, that hide what each of them waits for."""
MOST_THREADS, MOST_BLOCKS, MOST_REGISTERS = 2048, 32, 128
"""Of a multiprocessor, and of a thread: with more there are too few threads."""
OTHERS, LEAST_BOUND = 24, 64
"""Registers beside what a thread holds of rows, and fewer than which it is never held to."""
SHARE, WARPS, LARGEST = 32, 8, 8
"""Registers of rows in a thread, warps of a block and blocks, where a cluster shares a row."""
STRIP = 8
"""Elements of what rows are multiplied by, and the like, that a thread has at a time."""
_ROWS = (
    ops.ProgramId, ops.IndexTile, ops.Full, ops.Load, ops.Store, ops.Map, ops.Cast, ops.Bitcast,
    ops.Broadcast, ops.Reduce, ops.AtomicAdd, ops.For, ops.If, ops.Yield,
)  # fmt: skip
"""Ops that need no registers of their own."""


def choose(kernel: Kernel, asked: Schedule, target: Target) -> Schedule:
    """The schedule of a kernel after its passes."""
    from fuser.backend.nvptx.cluster.cluster_plan import (
        is_straight,  # of use to kernels for GPUs alone
    )

    wanted, asked = asked.cluster, replace(asked, cluster=1)
    largest = 1
    for op in kernel.walk():
        if isinstance(op, ops.Dot):
            return asked
        largest = max([largest, *(value.type.size for value in op.results)])
    held = max(_held(kernel.body), default=0) // 32
    resident = asked.blocks_per_sm
    warps, cluster = 16 if largest >= LONG else min(8, largest // ELEMENTS), 1
    warps = max(min(asked.warps, FEW), warps)
    if held and all(isinstance(op, _ROWS) for op in kernel.walk()):
        rows = Rows(kernel, held, target)
        found = rows.spread(asked.warps)
        if target.clusters and is_straight(kernel):
            if wanted > 1:
                found = rows.shared_by(warps, min(wanted, LARGEST))
            elif found.blocks < 2:
                found = rows.shared()
        if found.blocks:
            warps, cluster, resident = found
    elif warps == 8 and held and held <= HALF * 32 * warps:
        resident = 2
    if (warps, cluster, resident) == (asked.warps, asked.cluster, asked.blocks_per_sm):
        return asked
    where = f"{warps} warps" + (f" of each of {cluster} blocks" if cluster > 1 else "")
    reason = f"{largest} elements on {where}; {asked.warps} warps were asked for"
    return replace(asked, warps=warps, cluster=cluster, blocks_per_sm=resident, reason=reason)


class Spread(NamedTuple):
    """How rows are spread. blocks: that a multiprocessor is to run at once, 0 if it cannot."""

    warps: int
    cluster: int
    blocks: int


class Rows:
    """The rows of a kernel, of which all threads together hold `held` registers."""

    def __init__(self, kernel: Kernel, held: int, target: Target) -> None:
        self.held, self.target = held, target
        self.looped = any(isinstance(op, ops.For) for op in kernel.walk())
        self.beside = [value.type for value in _read_after(kernel) if value.shape]
        self.strip = 1 << 31 if self.looped else STRIP

    def blocks(self, warps: int, cluster: int = 1) -> int:
        """Blocks of a multiprocessor by its threads and registers."""
        threads = 32 * warps
        all_threads = threads * cluster
        each = -(-self.held // all_threads) + OTHERS
        for type in self.beside:
            each += min(self.strip, type.size // all_threads) * type.dtype.bits // 32
        if each > MOST_REGISTERS:
            return 0
        fit = self.target.registers // (threads * max(LEAST_BOUND, each))
        return min(MOST_BLOCKS, MOST_THREADS // threads, fit)

    def spread(self, asked: int) -> Spread:
        """Over the warps of one block. Programs that walk through rows keep the warps that they ask
        for, if these are not much worse: their grid was made for them."""
        blocks = {
            1 << bit: self.blocks(1 << bit) for bit in range(6) if 1 << bit >= min(asked, FEW)
        }
        if any(count for n, count in blocks.items() if n <= LONGEST):
            blocks = {n: count for n, count in blocks.items() if n <= LONGEST}
        worth = {n: count * min(1, 32 * n * count / THREADS) for n, count in blocks.items()}
        best = max(blocks, key=lambda n: (worth[n], -abs(math.log2(n / asked))))
        kept = self.looped and asked in worth and worth[asked] >= worth[best] / 2
        warps = asked if kept else best
        return Spread(warps, 1, blocks[warps])

    def shared(self) -> Spread:
        """Over the blocks of a cluster."""
        cluster = 2
        while cluster < LARGEST and self.held > SHARE * 32 * WARPS * cluster:
            cluster *= 2
        return self.shared_by(WARPS, cluster)

    def shared_by(self, warps: int, cluster: int) -> Spread:
        """Over so many blocks of so many warps."""
        return Spread(warps, cluster, self.blocks(warps, cluster))


def _read_after(kernel: Kernel) -> Iterator[Value]:
    """What is loaded after the last reduction of a block: in strips
    (nvptx/tiling/strip_mined_epilogue.py), but for loops."""
    blocks = [kernel.body, *(block for op in kernel.walk() for block in op.blocks())]
    for block in blocks:
        ends = [at for at, op in enumerate(block.ops) if isinstance(op, ops.Reduce)]
        if ends:
            yield from (op.result for op in block.ops[ends[-1] :] if isinstance(op, ops.Load))


def _held(block: Block) -> Iterator[int]:
    """Bits of tiles that are needed before and after each reduction."""
    last: dict[Value, int] = {}
    inside: list[set[Value]] = []
    for position, op in enumerate(block.ops):
        inside.append({value for b in op.blocks() for o in b.walk() for value in o.operands()})
        last.update(dict.fromkeys((*op.operands(), *inside[-1]), position))
    made: list[Value] = list(block.params)
    for position, op in enumerate(block.ops):
        after = {value for value in made if last.get(value, -1) > position}
        if isinstance(op, ops.Reduce):
            yield sum(map(_bits, after))
        around = sum(map(_bits, after | inside[position] & set(made)))
        for inner_block in op.blocks():
            yield from (around + bits for bits in _held(inner_block))
        if not isinstance(op, ops.IndexTile | ops.Full):  # which are made wherever they are used
            made += op.results


def _bits(value: Value) -> int:
    """Of a tile; masks are predicates, and made again."""
    return value.type.size * value.dtype.bits if value.shape and value.dtype.kind != "bool" else 0
