"""The values of the GPU IR: tiles in registers, tiles and slots in shared memory, scalars.

A scalar is the name of an integer, or a Python int where it is known; all threads of a warp have it
alike, but for those made of the thread number. A tile in registers has a layout in its type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout, next_power
from fuser.dtypes import DType
from fuser.tilegen.value import Value

Operand = str | int
"""A scalar."""


@dataclass(eq=False)
class Tile:
    """A distributed tile. regs: what the emitter has for it by now, in order of the layout's
    register offsets; only rules of the emitter look at them."""

    dtype: DType
    shape: Coordinates
    layout: Layout
    name: str = ""
    regs: list[str] = field(default_factory=list, init=False)

    def assign(self, regs: Iterable[str]) -> None:
        """Give it registers."""
        self.regs = list(regs)

    @property
    def type(self) -> str:
        """LLVM's type of an element."""
        return self.dtype.llvm


@dataclass(eq=False)
class Slot:
    """A region of shared memory, live from where it is allocated to where it is freed. early: from
    the start of the program. copies: how many warp groups have one of their own."""

    number: int
    bytes: int
    align: int
    early: bool = False
    offset: int = 0
    copies: int = 1

    @property
    def pitch(self) -> int:
        """Bytes from a warp group's copy to the next one's."""
        return -(-self.bytes // self.align) * self.align

    def place(self, offset: int) -> None:
        """Let it begin at a byte of shared memory."""
        self.offset = offset

    def resize(self, size: int) -> None:
        """Let it have so many bytes."""
        self.bytes = size

    def renumber(self, number: int) -> None:
        """Let it be known by another number."""
        self.number = number

    @property
    def size(self) -> int:
        return self.bytes if self.copies == 1 else self.pitch * self.copies


@dataclass(frozen=True, eq=False)
class SharedTile:
    """A [rows, columns] tile in shared memory. `inner` is its contiguous axis; `shape` what is
    allocated (the tile may be smaller). `stage` is the byte offset of the current stage. A tile of
    one axis lies there as it is, without a swizzle."""

    dtype: DType
    shape: tuple[int, ...]
    inner: int
    slot: Slot
    stage: Operand = 0

    @property
    def span(self) -> int:
        """Bytes of a row of a block."""
        return span_of(self.shape, self.inner, self.dtype)

    @property
    def flat(self) -> bool:
        return len(self.shape) == 1

    @property
    def rows(self) -> int:
        return 1 if self.flat else self.shape[1 - self.inner]

    @property
    def blocks(self) -> int:
        """Blocks of `span` bytes along a row."""
        return -(-self.shape[self.inner] * self.dtype.bytes // self.span)

    @property
    def block_bytes(self) -> int:
        return self.rows * self.span

    @property
    def bytes(self) -> int:
        return tile_bytes(self.shape, self.inner, self.dtype)

    def permuted(self, axes: Coordinates) -> SharedTile:
        if tuple(axes) == tuple(range(len(self.shape))):
            return self
        return dataclasses.replace(self, shape=self.shape[::-1], inner=1 - self.inner)

    def at_stage(self, stage: Operand) -> SharedTile:
        return dataclasses.replace(self, stage=stage)


def span_of(shape: tuple[int, ...], inner: int, dtype: DType) -> int:
    if len(shape) == 1:
        return shape[0] * dtype.bytes
    return max(32, min(128, next_power(shape[inner] * dtype.bytes)))


def tile_bytes(shape: tuple[int, ...], inner: int, dtype: DType) -> int:
    """Bytes that a shared tile takes."""
    span = span_of(shape, inner, dtype)
    blocks = -(-shape[inner] * dtype.bytes // span)
    return blocks * (shape[1 - inner] if len(shape) == 2 else 1) * span


@dataclass(frozen=True, eq=False)
class Scope:
    """What the values of index expressions are: scalars (a tile without axes where they have a
    type of their own), and the tiles that they look up elements in, by the axes that these follow.
    """

    scalars: Mapping[Value, Operand | Tile] = field(default_factory=dict)
    tiles: Mapping[tuple[Value, tuple[int, ...]], Tile] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Place:
    """Elements of global memory that an op touches. mask: where they may be touched, beside the
    bounds of the access. long, long_bounds: whether the address, or the expressions that are
    checked, need 64 bits."""

    access: Access
    scope: Scope
    mask: Tile | None = None
    long: bool = False
    long_bounds: bool = False
