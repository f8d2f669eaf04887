"""Constants that look into a mapped file: who has made something else of one lets its memory go."""

from __future__ import annotations

import mmap

import numpy as np


def mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """The file mapping that an array looks into, if it does."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def release_pages(array: np.ndarray) -> None:
    """Let go of the memory behind a mapped array; it is read from the file again when needed."""
    mapping = mapping_of(array)
    if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    origin = np.frombuffer(mapping, np.uint8, 1).__array_interface__["data"][0]
    low, high = np.lib.array_utils.byte_bounds(array)
    start = -(-(low - origin) // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (high - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
