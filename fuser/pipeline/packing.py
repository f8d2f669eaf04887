"""Constants as kernels read them: packed once."""

from __future__ import annotations

import numpy as np

from fuser.dtypes import from_numpy
from fuser.graph.mapping import mapping_of, release_pages
from fuser.pipeline.transposed import copy_transposed
from fuser.runtime.memory import address, aligned_array
from fuser.runtime.source import Source
from fuser.tilegen.program import Packing


def pack(array: np.ndarray, packing: Packing) -> np.ndarray:
    """A constant as kernels read it. A plan keeps nothing that looks into a file: the file may be
    written to while the plan lives."""
    packed = packing.apply(array, aligned_array, copy_transposed)
    if mapping_of(array) is not None:
        if mapping_of(packed) is not None:
            packed = aligned_array(array.shape, array.dtype)
            np.copyto(packed, array)
        release_pages(array)
    return packed


def source_of(array: np.ndarray, packing: Packing) -> Source | None:
    """Where `pack(array, packing)` comes from, if that is a mapped file."""
    mapping = mapping_of(array)
    if mapping is None:
        return None
    offset = address(array) - address(np.frombuffer(mapping, np.uint8, 1))
    return Source(offset, from_numpy(array.dtype), array.shape, array.strides, packing)
