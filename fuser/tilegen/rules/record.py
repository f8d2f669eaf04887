"""The record of a target's schedule rules: a function for each question that emitters ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fuser.base.target import Target
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule

Reads = Literal["nothing", "keys", "half tile", "tiles"]
"""What the score code of attention loads: nothing, a number a key, 16 bits a score, more."""


class MapRule(Protocol):
    """Blocks "rows" and "columns" of a map over merged dims of the given extents. lead: the dim
    beside the last that another operand has innermost, of a transpose. item_bytes: of the widest
    result."""

    def __call__(
        self, target: Target, extents: list[int], lead: int | None, item_bytes: int
    ) -> Schedule: ...


class ReduceRule(Protocol):
    """Blocks "rows", "columns" (kept dims inside the reduced ones) and "total" (reduced extent).

    columns is 1 where the reduced dims are the innermost in memory. item_bytes: of an element read.
    reads: values as long as a row that are read, where rows may be spread over several blocks
    (running sums cannot), else 0. held: what a GPU may keep in shared memory, as (values, bytes,
    lines) of held_blocks in gpu/rows.py.
    """

    def __call__(
        self, target: Target, rows: int, total: int, columns: int, item_bytes: int = 4,
        reads: int = 0, held: tuple[int, int, int] = (0, 0, 0),
    ) -> Schedule: ...  # fmt: skip


class SortRule(Protocol):
    """Blocks "m" (elements placed by a program) and "n" (elements compared at once)."""

    def __call__(self, target: Target, length: int) -> Schedule: ...


MatmulRule = Callable[[Target, Problem], Schedule]
"""Blocks "m", "n", "k" of a matmul [m, k] x [k, n]; of a convolution "m" (pixels), "n" (output
channels), "k" (input channels, or taps and channels)."""


class DirectConvRule(Protocol):
    """Blocks "m" (pixels) and "n" (channels) of a convolution without a matmul. row: pixels along
    the last dim. products: of an element of the result."""

    def __call__(self, target: Target, m: int, n: int, row: int, products: int) -> Schedule: ...


class AttentionRule(Protocol):
    """Blocks "m" (query rows) and "n" (keys) of attention, and how many programs share the keys.
    by_unit: whether a CPU's dot unit multiplies. bounded: no maximum of a row is needed
    (emit/bounds.py). causal: which keys a row sees depends on the row."""

    def __call__(
        self, target: Target, batch: int, m: int, n: int, depth: int, columns: int, bits: int,
        reads: Reads = "nothing", *, by_unit: bool = False, bounded: bool = False,
        causal: bool = False,
    ) -> Schedule: ...  # fmt: skip


MergeRule = Callable[[Target, int, int], Schedule]
"""The program that merges so many partial outputs of one row of so many columns of attention."""
PackedMatmulRule = Callable[[Target, int, int, int, int | None, int, bool], Schedule]
"""A matmul whose weights are decoded on the way: packed_schedule in cpu/matmul.py."""
KBlocksRule = Callable[[Target, Problem, Schedule], Schedule]
"""A matmul that takes k in blocks: deep_schedule in cpu/k_blocks.py."""
WinogradRule = Callable[[Target, int, int, tuple[int, ...]], int]
"""The side of the squares of Winograd's transforms: winograd_side in cpu/winograd.py."""


@dataclass(frozen=True)
class Rules:
    """The schedule rules of a target, a field for each question. None: kernels of the target have
    no such form. Rules read the Target and extents only."""

    map: MapRule
    reduce: ReduceRule
    sort: SortRule
    matmul: MatmulRule
    conv: MatmulRule
    direct_conv: DirectConvRule
    attention: AttentionRule
    merge: MergeRule
    packed_matmul: PackedMatmulRule | None = None
    k_blocks: KBlocksRule | None = None
    winograd_side: WinogradRule | None = None
