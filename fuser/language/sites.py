"""The places of a kernel that report to the host: device_print and device_assert."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fuser.language.types import ElementType

MOST_WORDS = 1 << 20
"""Of the values that one device_print may leave in a launch; what is more is counted only."""
MOST_SITES = 1024
HEADER = 3
"""Words of a record before its values: the program's numbers along x, y, z."""


@dataclass(frozen=True)
class PrintSite:
    """One device_print. operands: types and shapes of its values; leaf: of its buffer."""

    number: int
    leaf: int
    prefix: str
    operands: tuple[tuple[ElementType, tuple[int, ...]], ...]
    hexadecimal: bool

    @property
    def words(self) -> int:
        """Of a record."""
        return HEADER + sum(int(np.prod(shape, dtype=np.int64)) for _, shape in self.operands)

    @property
    def records(self) -> int:
        return max(1, MOST_WORDS // self.words)


@dataclass(frozen=True)
class AssertSite:
    """One device_assert. where: file and line; excerpt: that line with a caret."""

    number: int
    message: str
    where: str
    excerpt: str
    kernel: str


@dataclass
class Reports:
    """The places of a kernel that report. leaf: of the counters."""

    leaf: int = -1
    prints: list[PrintSite] = field(default_factory=list)
    asserts: list[AssertSite] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.prints) + len(self.asserts)
