"""Shapes and strides of array arguments, as a kernel asks for them.

What is asked becomes part of what the code was compiled for. A size or stride of 2 and more is a
symbol, so that one compile serves many; 0, 1, negative and very large ones are compiled in. Whether
a number is a multiple of 16 is told apart, as for integer arguments. What is not asked does not
matter: a kernel that uses an array as a pointer is compiled once for all shapes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fuser.graph import dims
from fuser.graph.dims import DimExpr
from fuser.graph.sizes import LEAST
from fuser.language.stand_ins import Retyped
from fuser.language.tensors import Tensor
from fuser.language.types import int32, int64
from fuser.runtime.arrays import ArrayRecord, describe
from fuser.tilegen.index import Index

DIVISOR = 16
LARGE = 1 << 31

What = Literal["rank", "shape", "stride"]


@dataclass(frozen=True)
class Fact:
    """What code takes for granted of an array. leaf, name: the argument; axis: of `what`; by: what
    the number is a known multiple of, 0 where it must be `value`."""

    leaf: int
    name: str
    what: What
    axis: int
    by: int
    value: int

    def holds(self, record: ArrayRecord) -> bool:
        if self.what == "rank":
            return len(record.shape) == self.value
        found = number_of(record, self.what, self.axis)
        if found is None:
            return False
        by = divisor_of(found)
        return by == self.by and (by != 0 or found == self.value)

    def found(self, record: ArrayRecord) -> str:
        """What an array has instead."""
        if self.what == "rank" or self.axis >= len(record.shape):
            return f"{self.name} has {len(record.shape)} dims"
        return f"{self.name}.{self.what}[{self.axis}] is {number_of(record, self.what, self.axis)}"

    def __str__(self) -> str:
        if self.what == "rank":
            return f"{self.name} has {self.value} dims"
        number = f"{self.name}.{self.what}[{self.axis}]"
        if not self.by:
            return f"{number} is {self.value}"
        if self.by == 1:
            return f"{number} is 2 or more and no multiple of {DIVISOR} from {2 * DIVISOR} on"
        return f"{number} is a multiple of {self.by}, {2 * self.by} or more"


def number_of(record: ArrayRecord, what: What, axis: int) -> int | None:
    numbers = record.shape if what == "shape" else record.strides
    return numbers[axis] if axis < len(numbers) else None


def divisor_of(number: int) -> int:
    """16 or 1: what a symbol of it is a multiple of; 0 where the number is compiled in."""
    if number < LEAST or number >= LARGE:
        return 0
    return DIVISOR if number % DIVISOR == 0 and number // DIVISOR >= LEAST else 1


def numbers_of(
    given: Sequence[Any], asked: Sequence[tuple[int, What, int]]
) -> tuple[int, ...] | None:
    """Numbers of NumPy arrays and PyTorch tensors, (argument, what, axis) each; None where they are
    not at hand or no whole numbers of elements."""
    found = []
    try:
        for place, what, axis in asked:
            array = given[place]
            if what == "rank":
                found.append(array.ndim)
            elif what == "shape":
                found.append(array.shape[axis])
            elif isinstance(array, np.ndarray):
                stride, rest = divmod(array.strides[axis], array.itemsize)
                if rest:
                    return None
                found.append(stride)
            else:
                found.append(array.stride(axis))
    except (AttributeError, IndexError, TypeError):
        return None
    return tuple(found)


def as_written(text: str) -> str:
    """Text with symbols in it, with the sizes of arrays as they are written in kernels."""
    return re.sub(r"'?([\w.]+)\.(shape|stride)(\d+)'?", r"\1.\2[\3]", text).replace("`", "")


@dataclass(eq=False)
class Layout:
    """Of one array argument, which is described when it is asked for. symbol: makes the symbol of a
    number, None: all are compiled in."""

    name: str
    leaf: int
    array: Any
    facts: list[Fact]
    symbol: Callable[[str, int, int, Fact], DimExpr] | None
    known: dict[tuple[What, int], Tensor] = field(default_factory=dict)

    @functools.cached_property
    def record(self) -> ArrayRecord:
        array = self.array
        return describe(array.base if isinstance(array, Retyped) else array, self.name)

    @property
    def rank(self) -> int:
        rank = len(self.record.shape)
        fact = Fact(self.leaf, self.name, "rank", 0, 0, rank)
        if fact not in self.facts:
            self.facts.append(fact)
        return rank

    def number(self, what: What, axis: int) -> Tensor:
        """A size or a stride (in elements) as an integer."""
        assert 0 <= axis < self.rank
        if (what, axis) in self.known:
            return self.known[what, axis]
        value = number_of(self.record, what, axis)
        assert value is not None
        by = divisor_of(value)
        fact = Fact(self.leaf, self.name, what, axis, by, 0 if by else value)
        self.facts.append(fact)
        if by and self.symbol is not None:
            found = self.symbol(f"{self.name}.{what}{axis}", by, value, fact) * by
            made = Tensor(int32, (), index=Index(dims.as_int(found)))
        else:
            dtype = int32 if -LARGE <= value < LARGE else int64
            made = Tensor(dtype, (), literal=value, index=Index(value))
        self.known[what, axis] = made
        return made

    def shape(self) -> tuple[Tensor, ...]:
        return tuple(self.number("shape", axis) for axis in range(self.rank))

    def strides(self) -> tuple[Tensor, ...]:
        return tuple(self.number("stride", axis) for axis in range(self.rank))
