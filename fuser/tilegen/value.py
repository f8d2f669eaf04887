"""The values of Tile IR and their types: what index expressions and ops both refer to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from fuser.dtypes import DType

UNBOUNDED = 1 << 62
"""A bound of an integer value of which nothing is known."""

INDEX = DType("index", "int", 64, np.dtype(np.int64), "i64")
"""The type of index scalars; a back end may compute it in 32 bits where ranges allow."""


@dataclass(frozen=True)
class TileType:
    """dtype and static shape; shape () is a scalar."""

    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count

    def __str__(self) -> str:
        if not self.shape:
            return str(self.dtype)
        return f"tile<{'x'.join(map(str, self.shape))}x{self.dtype}>"


@dataclass(eq=False)
class Value:
    """One SSA value. `low`, `high` (inclusive) and `multiple` are facts of integer values.

    `serial` is its age: index expressions sort by it, so that renaming changes nothing.
    """

    type: TileType
    name: str
    low: int = -UNBOUNDED
    high: int = UNBOUNDED
    multiple: int = 1
    serial: int = field(default_factory=itertools.count().__next__)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def range(self) -> tuple[int, int]:
        return self.low, self.high

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"
