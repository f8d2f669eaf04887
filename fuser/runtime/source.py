"""Where packed constants come from, if that is the model's file: views of it, packed again."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, Protocol

import numpy as np

from fuser.backend.cores import available_cores
from fuser.dtypes import BY_NAME, DType
from fuser.runtime.memory import aligned_array, aligned_empty
from fuser.tilegen.program import Packing


class Hash(Protocol):
    """What hashlib's functions give, as far as it is used here."""

    def digest(self) -> bytes: ...


HashFunction = Callable[[Any], Hash]
BLOCK = 1 << 22
"""Bytes of a file that a thread hashes at once."""


def readers() -> int:
    """How many threads read a file at once."""
    return min(available_cores(), 8)


def content_digest(descriptor: int, size: int, hash: HashFunction = hashlib.sha256) -> str:
    """A digest of an open file of `size` bytes: the hash of the hashes of its blocks. Raises
    OSError, also for a file that ends before that."""
    starts = range(0, size, BLOCK)
    ends = (min(size, start + BLOCK) for start in starts)
    with ThreadPoolExecutor(readers()) as pool:
        blocks = pool.map(_hashed, repeat(hash), repeat(descriptor), starts, ends)
        whole = hash(b"".join(blocks))
    return f"{size}:{whole.digest().hex()}"


def _hashed(hash: HashFunction, descriptor: int, start: int, end: int) -> bytes:
    return hash(_read(descriptor, start, end).data).digest()


_rooms = threading.local()
"""Memory that a thread reads blocks into, one after the other."""


def _read(descriptor: int, start: int, end: int) -> np.ndarray:
    """Bytes of a file, until the thread reads others."""
    if not hasattr(_rooms, "memory"):
        _rooms.memory = np.empty(BLOCK, np.uint8)
    data: np.ndarray = _rooms.memory[: end - start]
    filled = 0
    while filled < end - start:
        count = os.preadv(descriptor, [data[filled:].data], start + filled)
        if not count:
            raise OSError(errno.EIO, "the file ends early")
        filled += count
    return data


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
        if steps.get("words") is True:  # of files that were written before words of 8 bits
            steps["words"] = 4
        if "dtype" in steps:
            steps["dtype"] = BY_NAME[steps["dtype"]]
        return Source(
            int(record["offset"]), BY_NAME[record["dtype"]], _tuples(record["shape"]),
            _tuples(record["strides"]), Packing(**steps),
        )  # fmt: skip


def _tuples(item: Any) -> Any:
    return tuple(map(_tuples, item)) if isinstance(item, list) else item
