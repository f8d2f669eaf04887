"""The record of a target's schedule rules: a function for each question that emitters ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fuser.base.target import DotUnit, Target
from fuser.tilegen.schedule import Schedule

Reads = Literal["nothing", "keys", "half tile", "tiles"]
"""What the score code of attention loads: nothing, a number a key, 16 bits a score, more."""


@dataclass(frozen=True)
class Window:
    """A convolution of two spatial dims. pixels: batch, height and width of the result; the others
    are along height and width."""

    pixels: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]


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


class MatmulRule(Protocol):
    """Blocks "m", "n", "k" of a matmul [m, k] x [k, n]. unit: what multiplies on a CPU.

    streamed: whether a GPU's copy engine can fetch the operands. folded: whether results are
    reduced in the same kernel. crooked: whether rows of the (left, right) operand begin off the
    sectors of a GPU's L2. codes: whether operands are codes of 8-bit floats. packed: whether
    right operands are constants of 16 bits, which lie as a block of few rows wants them. panel:
    columns of such a block, sums of which are results; 0 elsewhere. decoded: bits of a code that
    an element of the right operands is computed from in the kernel; 0 elsewhere.
    """

    def __call__(
        self, target: Target, m: int, n: int, k: int, bits: int, accumulators: int = 1,
        batch: int = 1, unit: DotUnit | None = None, *, streamed: bool = True,
        folded: bool = True, crooked: tuple[bool, bool] = (False, False), codes: bool = False,
        packed: bool = False, panel: int = 0, decoded: int = 0,
    ) -> Schedule: ...  # fmt: skip


class ConvRule(Protocol):
    """Blocks "m" (pixels), "n" (output channels), "k" (input channels, or taps and channels).

    staged: whether operands are copied as they are and results are not reduced. window: where
    pixels lie in memory with their channels together, in the dtype that the unit multiplies. run:
    how many taps follow each other in memory, with all their channels. pitch: bytes from a pixel
    under a tap to that of the next output pixel, where channels are adjacent, else 0.
    """

    def __call__(
        self, target: Target, m: int, n: int, channels: int, taps: int, bits: int, groups: int,
        unit: DotUnit | None = None, *, staged: bool = False, window: Window | None = None,
        run: int = 1, pitch: int = 0,
    ) -> Schedule: ...  # fmt: skip


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
KBlocksRule = Callable[[Target, int, int, int, int, int, Schedule], Schedule]
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
    conv: ConvRule
    direct_conv: DirectConvRule
    attention: AttentionRule
    merge: MergeRule
    packed_matmul: PackedMatmulRule | None = None
    k_blocks: KBlocksRule | None = None
    winograd_side: WinogradRule | None = None
