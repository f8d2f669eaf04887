"""Static memory: where each buffer of a plan lives in one arena, known before the first run."""

from __future__ import annotations

import ctypes
import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

C_CONTIGUOUS, ALIGNED = 0x1, 0x100
"""Bits of an array's `flags.num`."""
RECYCLED_BYTES = 1 << 18
"""Results smaller than this are cheap to allocate."""
_BYTES = np.dtype(np.uint8)


@dataclass(frozen=True)
class Interval:
    """A buffer of `bytes` that is live in steps first <= s <= last."""

    first: int
    last: int
    bytes: int


def plan_memory(intervals: Sequence[Interval], alignment: int = 64) -> tuple[list[int], int]:
    """Byte offsets, one an interval, and the total: no two buffers live at once overlap.

    Greedy by size: the largest buffer first, each into the smallest gap that fits between the
    buffers already placed that are live at the same time, else above them.
    """
    offsets = [0] * len(intervals)
    placed = _Placed(item.first for item in intervals)
    order = sorted(range(len(intervals)), key=lambda i: (-intervals[i].bytes, intervals[i].first))
    total = 0
    for position in order:
        item = intervals[position]
        size = align(item.bytes, alignment)
        if not size:
            continue
        taken = sorted(placed.together(item))
        best, best_gap, cursor = -1, 0, 0
        for start, end in taken:
            gap = start - cursor
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = cursor, gap
            cursor = max(cursor, end)
        offset = best if best >= 0 else cursor
        offsets[position] = offset
        placed.add(item, (offset, offset + size))
        total = max(total, offset + size)
    return offsets, total


class _Placed:
    """The ranges of bytes of buffers, found by when they live: a tree over the steps at which
    buffers begin, each buffer at the few nodes that make up its life, and a list by begin."""

    def __init__(self, begins: Iterable[int]) -> None:
        self._steps = sorted({int(begin) for begin in begins})
        self._nodes: list[list[tuple[int, int]]] = [[] for _ in range(2 * len(self._steps))]
        self._begun: list[tuple[int, int, int]] = []  # number of the step, range

    def _life(self, item: Interval) -> tuple[int, int]:
        """Numbers of the steps: of the first, and beyond the last."""
        return bisect_left(self._steps, item.first), bisect_right(self._steps, item.last)

    def add(self, item: Interval, span: tuple[int, int]) -> None:
        low, high = self._life(item)
        insort(self._begun, (low, *span))
        low, high = low + len(self._steps), high + len(self._steps)
        while low < high:
            if low & 1:
                self._nodes[low].append(span)
                low += 1
            if high & 1:
                high -= 1
                self._nodes[high].append(span)
            low, high = low >> 1, high >> 1

    def together(self, item: Interval) -> list[tuple[int, int]]:
        """The ranges of buffers that live at a step at which the item does: those that live when it
        begins, and those that begin later while it lives."""
        low, high = self._life(item)
        later = self._begun[
            bisect_left(self._begun, (low + 1,)) : bisect_left(self._begun, (high,))
        ]
        found = [(start, end) for _, start, end in later]
        node = low + len(self._steps)
        while node:
            found += self._nodes[node]
            node >>= 1
        return found


def align(size: int, alignment: int) -> int:
    """The least multiple of alignment that is at least size."""
    return -(-size // alignment) * alignment


def aligned_empty(size: int, alignment: int = 64) -> np.ndarray:
    """`size` uninitialised bytes (uint8) that start at a multiple of alignment."""
    raw = np.empty(size + alignment, np.uint8)
    skip = -address(raw) % alignment
    return raw[skip : skip + size]


def aligned_array(shape: tuple[int, ...], dtype: np.dtype, alignment: int = 64) -> np.ndarray:
    """An uninitialised C-contiguous array that starts at a multiple of alignment."""
    return allocate(shape, dtype, alignment)[0]


def allocate(
    shape: tuple[int, ...], dtype: np.dtype, alignment: int = 64
) -> tuple[np.ndarray, int]:
    """`aligned_array` and its address."""
    raw = np.empty(math.prod(shape) * dtype.itemsize + alignment, np.uint8)
    start = address(raw)
    skip = -start % alignment
    return np.ndarray(shape, dtype, raw, skip), start + skip


class Recycler:
    """Allocates result arrays of one shape, again in the memory of an earlier result that nobody
    holds any more: fresh pages cost as much as writing them does.

    Safe from many threads: a buffer is taken off the list before it is looked at.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, alignment: int = 64) -> None:
        self.shape, self.dtype, self.alignment = shape, dtype, alignment
        self.bytes = math.prod(shape) * dtype.itemsize
        self._small = self.bytes < RECYCLED_BYTES
        self._kept: list[np.ndarray] = []

    def __call__(self) -> tuple[np.ndarray, int]:
        """An uninitialised array and its address, as `allocate` gives."""
        raw = None if self._small else self._unused()
        if raw is None:
            raw = np.empty(self.bytes + self.alignment, _BYTES)
        if not self._small and len(self._kept) < 2:
            self._kept.append(raw)
        start = address(raw)
        skip = -start % self.alignment
        return np.ndarray(self.shape, self.dtype, raw, skip), start + skip

    def _unused(self) -> np.ndarray | None:
        for _ in range(len(self._kept)):
            try:
                raw = self._kept.pop(0)
            except IndexError:
                break
            # Two references: `raw` and the argument. Every view of a result refers to its buffer.
            if sys.getrefcount(raw) == 2:
                return raw
            self._kept.append(raw)
        return None


def aligned_copy(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """The array itself if it is C-contiguous and aligned, else a copy that is."""
    return settle(array, alignment)[0]


def settle(array: np.ndarray, alignment: int = 64) -> tuple[np.ndarray, int]:
    """`aligned_copy` and its address."""
    start = address(array)
    if start % alignment == 0 and array.flags.num & C_CONTIGUOUS:
        return array, start
    copy, start = allocate(array.shape, array.dtype, alignment)
    copy[...] = array
    return copy, start


def trim_heap() -> None:
    """Give the pages of freed memory back to the system: the C library's allocator keeps holes of
    many megabytes between arrays that stay. A matter of milliseconds; nothing without glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def address(array: np.ndarray) -> int:
    """The address of the first element."""
    if _POINTER_AT:  # a tenth of the time of the way below, which makes a dict
        pointer: int | None = _POINTER.from_address(id(array) + _POINTER_AT).value
        return pointer or 0
    data: int = array.__array_interface__["data"][0]
    return data


_POINTER = ctypes.c_void_p


def _pointer_at() -> int:
    """Where NumPy's arrays have their address: the first field of their binary interface. 0 on a
    Python whose objects are no memory of this kind."""
    at: int = object.__basicsize__
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (whole, whole[::-1, 2:], whole[1], np.zeros(()), np.zeros(0, np.int8)):
        if sys.implementation.name != "cpython":
            return 0
        if _POINTER.from_address(id(array) + at).value != array.__array_interface__["data"][0]:
            return 0
    return at


_POINTER_AT = _pointer_at()
