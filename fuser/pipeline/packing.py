"""Constants as kernels read them: packed once, from memory or straight from the model's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, DType, from_numpy
from fuser.graph.mapping import mapping_of, release_pages
from fuser.runtime.memory import address, aligned_array, aligned_empty
from fuser.tilegen.program import Packing


def pack(array: np.ndarray, packing: Packing) -> np.ndarray:
    """A constant as kernels read it. A plan keeps nothing that looks into a file: the file may be
    written to while the plan lives."""
    packed = packing.apply(array, aligned_array)
    if mapping_of(array) is not None:
        if mapping_of(packed) is not None:
            packed = aligned_array(array.shape, array.dtype)
            np.copyto(packed, array)
        release_pages(array)
    return packed


@dataclass(frozen=True)
class Source:
    """Where a packed constant can be had again: a view of the model's file, and what was made of
    it. offset and strides in bytes."""

    offset: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    packing: Packing

    def read(self, descriptor: int) -> np.ndarray:
        """The packed constant, from an open file. Nothing is mapped: whoever shortens a file that
        is mapped ends the processes that read it. Raises OSError, TypeError or ValueError where the
        file lacks the view."""
        reach = [(extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(min(0, step) for step in reach)
        high = self.offset + sum(max(0, step) for step in reach) + self.dtype.bytes
        held = aligned_empty(high - low if 0 not in self.shape else 0)
        filled = 0
        while filled < held.size:
            count = os.preadv(descriptor, [held[filled:].data], low + filled)
            if not count:
                raise ValueError("the file ends before the constant")
            filled += count
        view = np.ndarray(self.shape, self.dtype.numpy, held, self.offset - low, self.strides)
        return self.packing.apply(view, aligned_array)

    def to_record(self) -> dict[str, Any]:
        """JSON-able data. Raises TypeError for what JSON lacks."""
        return {
            "offset": self.offset,
            "dtype": self.dtype.name,
            "shape": list(self.shape),
            "strides": list(self.strides),
            "packing": {
                item.name: value.name if isinstance(value, DType) else value
                for item in fields(Packing)
                if (value := getattr(self.packing, item.name)) != item.default
            },
        }

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Source:
        """The inverse of `to_record`. Raises KeyError, TypeError or ValueError."""
        steps = {key: _tuples(value) for key, value in record["packing"].items()}
        if "dtype" in steps:
            steps["dtype"] = BY_NAME[steps["dtype"]]
        return Source(
            int(record["offset"]), BY_NAME[record["dtype"]], _tuples(record["shape"]),
            _tuples(record["strides"]), Packing(**steps),
        )  # fmt: skip


def source_of(array: np.ndarray, packing: Packing) -> Source | None:
    """Where `pack(array, packing)` comes from, if that is a mapped file."""
    mapping = mapping_of(array)
    if mapping is None:
        return None
    offset = address(array) - address(np.frombuffer(mapping, np.uint8, 1))
    return Source(offset, from_numpy(array.dtype), array.shape, array.strides, packing)


def _tuples(item: Any) -> Any:
    return tuple(map(_tuples, item)) if isinstance(item, list) else item
