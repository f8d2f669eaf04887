"""A tile program bound to the graph: the kernel, and which value each of its buffers holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.dtypes import DType, i32

if TYPE_CHECKING:  # a plan that comes from the cache needs `Packing` alone
    from fuser.graph.dims import Dim
    from fuser.graph.ir import Value
    from fuser.partition.region import Region
    from fuser.tilegen.ir import Buffer, Kernel

WORD_BITS = 32
"""Of the words that codes of less than a byte are packed into."""

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Makes an uninitialised C-contiguous array of a shape and dtype."""
Copy = Callable[[np.ndarray, np.ndarray], None]
"""Copies to an array of the same shape, and perhaps another dtype, from another."""


def copy_elements(target: np.ndarray, source: np.ndarray) -> None:
    """A `Copy` in the order of the target."""
    np.copyto(target, source, casting="unsafe")


@dataclass(frozen=True)
class Packing:
    """How a constant is rewritten once, when the plan is built, so that a kernel reads it in order.

    Applied in this sequence; None or empty skips a step. mix: rows of a matrix [r, w] that
    multiplies, in float64, the array seen as [size / w, w]; what it gives is [r, size / w].
    transpose: axis order of the logical array. reshape: its new shape. pad: (low, high) zeros per
    axis. split: a second reshape. permute: axis order of that. dtype: element type to convert to.
    words: so many bits of each number of the last axes become one i32, the first in its low bits.
    With [K, N] weights, pad ((0, 0), (0, p)), split (K, N // r, r), permute (1, 0, 2) gives panels
    of r columns.
    """

    mix: tuple[tuple[float, ...], ...] = ()
    transpose: tuple[int, ...] = ()
    reshape: tuple[int, ...] = ()
    pad: tuple[tuple[int, int], ...] = ()
    split: tuple[int, ...] = ()
    permute: tuple[int, ...] = ()
    dtype: DType | None = None
    words: int = 0

    @property
    def stored(self) -> DType | None:
        """The dtype that the array gets; None: it keeps its own."""
        return i32 if self.words else self.dtype

    def type_of(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and dtype of what `apply` gives for an array of these."""
        if self.mix:
            shape = (len(self.mix), math.prod(shape) // len(self.mix[0]))
        if self.transpose:
            shape = tuple(shape[axis] for axis in self.transpose)
        shape = self.reshape or shape
        if self.pad:
            shape = tuple(n + sum(pair) for n, pair in zip(shape, self.pad, strict=True))
        shape = self.split or shape
        if self.permute:
            shape = tuple(shape[axis] for axis in self.permute)
        if self.words:
            shape = shape[: _whole(shape, WORD_BITS // self.words)]
        return shape, dtype if self.stored is None else self.stored.numpy

    def apply(
        self, array: np.ndarray, allocate: Allocate = np.empty, copy: Copy = copy_elements
    ) -> np.ndarray:
        """The packed array, C-contiguous, in memory from `allocate` and written by `copy`; the
        array itself if it is so already."""
        given = array
        dtype = array.dtype if self.dtype is None else self.dtype.numpy
        if self.mix:
            matrix = np.array(self.mix)
            rows, width = matrix.shape
            mixed = matrix @ array.reshape(-1, width).T.astype(np.float64)
            array = mixed.reshape(rows, array.size // width)
        if self.transpose:
            array = array.transpose(self.transpose)
        if self.reshape:
            array = array.reshape(self.reshape)
        if self.pad:
            array = np.pad(array, self.pad)
        if self.split:
            array = array.reshape(self.split)
        if self.permute:
            array = array.transpose(self.permute)
        if self.words:
            return _words(array, self.words, allocate)
        if array.dtype == dtype and array.flags.c_contiguous and np.shares_memory(array, given):
            return array
        packed = allocate(array.shape, dtype)
        copy(packed, array)
        return packed


def _words(array: np.ndarray, bits: int, allocate: Allocate) -> np.ndarray:
    """[..., c] codes of `bits` bits as [...] words, i32; the c that fill one may be those of
    several axes. In the order that codes have in memory, some words at a time, which stay in a
    cache until all of their codes are there."""
    last = _whole(array.shape, WORD_BITS // bits)
    packed = allocate(array.shape[:last], np.dtype(np.int32))
    order = sorted(range(last), key=lambda axis: -abs(array.strides[axis]))
    source = array.transpose(*order, *range(last, array.ndim))
    target, mask = packed.view(np.uint32).transpose(order), np.uint32((1 << bits) - 1)
    axis = next((a for a in range(last) if target.shape[a] > 1), 0)
    step = max(1, AT_ONCE // max(1, math.prod(target.shape[axis + 1 :])))
    for start in range(0, target.shape[axis] if last else 1, step):
        here = (*(slice(None),) * axis, slice(start, start + step)) if last else ()
        words = np.zeros(target[here].shape, np.uint32)
        codes = np.empty_like(words)
        for place, at in enumerate(np.ndindex(*array.shape[last:])):
            np.copyto(codes, source[(*here, ..., *at)], casting="unsafe")
            codes &= mask
            codes <<= np.uint32(bits * place)
            words |= codes
        target[here] = words
    return packed


def _whole(shape: tuple[int, ...], count: int) -> int:
    """Axes of the words that `count` codes each are put into."""
    last = len(shape)
    while math.prod(shape[last:]) < count:
        last -= 1
    return last


AT_ONCE = 1 << 17
"""Words that are made at a time."""


@dataclass(frozen=True)
class Part:
    """The part of a buffer that a region writes: where an axis has `capacity` places, `extent` of
    them; `size` elements in all. What follows from one with no room to spare holds for it."""

    capacity: Dim
    extent: Dim
    size: int


@dataclass(frozen=True)
class Argument:
    """What a kernel buffer holds: a graph value (packed, if it is a constant), or workspace.

    A workspace (value None) is `buffer.size` elements that live only between the programs of one
    region; programs of a region that share a workspace use the same `workspace` number. kept: the
    program changes what one before it wrote throughout.
    """

    buffer: Buffer
    value: Value | None
    packing: Packing | None = None
    workspace: int = 0
    zeroed: bool = False
    part: Part | None = None
    kept: bool = False


@dataclass(eq=False)
class TileProgram:
    """One kernel of a region. A region is one program, or a few in order (split-K and its sum)."""

    region: Region
    kernel: Kernel
    arguments: tuple[Argument, ...]
    flops: int = 0
    notes: list[str] = field(default_factory=list)
    rewrites: tuple[str, ...] = ()
    """Names of the rewrites in it that are not exact (graph/rewrites.py)."""
