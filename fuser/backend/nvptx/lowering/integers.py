"""What makes integers of others, folded where all are known, and thread numbers.

Operands are Python ints (constants) or names; arithmetic on two ints happens here and now. Symbolic
dims are parameters of the kernel (`Integers.size`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from fuser.backend.nvptx.ir.integers import Arithmetic, Comparison, Conversion, meaning_of, width_of
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.backend.text import integer
from fuser.errors import LoweringError
from fuser.graph import dims
from fuser.graph.dims import DimExpr

INT32 = (1 << 31) - 1
MAX_THREAD_BITS = 32
"""More bits than a thread's number has."""


def first_block_bit(warps: int, blocks: int) -> int:
    """The lowest bit of a thread's number that tells the block, of those that share a program."""
    return 5 + warps.bit_length() - 1 if blocks > 1 else MAX_THREAD_BITS


class Linear(NamedTuple):
    """dynamic + constant, which may be a symbolic dim; dynamic None is 0."""

    dynamic: str | None
    constant: int


class IntegerBuilder:
    """Makes integers of others at one place of a kernel. A `type` is that of the operands."""

    def integer(self, fn: str, type: str, operands: tuple[Operand, ...], to: str = "") -> str:
        """The name of what an operation of `ir/integers.py` gives. Nothing is folded."""
        raise NotImplementedError

    def compute(self, fn: Arithmetic, a: Operand, b: Operand, type: str = "i32") -> str:
        return self.integer(fn, type, (a, b))

    def compare(self, fn: Comparison, a: Operand, b: Operand, type: str = "i32") -> str:
        return self.integer(fn, type, (a, b))

    def resize(self, fn: Conversion, a: Operand, type: str, to: str) -> str:
        return self.integer(fn, type, (a,), to)

    def lane(self, a: Operand, number: Operand) -> str:
        """What a lane of the warp has; ptxas then knows that all lanes have the same."""
        return self.integer("shfl.idx", "i32", (a, number))

    def register(self, name: str) -> str:
        """A special register."""
        return self.integer(name, "i32", ())

    # folded where the operands are known ----------------------------------------------------------

    def plus(self, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if a == 0:
            return b
        return a if b == 0 else self.folded("add", a, b, type)

    def minus(self, a: Operand, b: Operand, type: str = "i32") -> Operand:
        return a if b == 0 else self.folded("sub", a, b, type)

    def times(self, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self.folded("mul", a, b, type)

    def bitwise(self, fn: Literal["and", "or", "xor"], a: Operand, b: Operand) -> Operand:
        """Of i32."""
        if b == 0 or a == 0:
            if fn == "and":
                return 0
            return a if b == 0 else b
        return self.folded(fn, a, b)

    def shift(self, fn: Literal["shl", "lshr"], a: Operand, bits: int) -> Operand:
        """Of i32."""
        return a if bits == 0 else self.folded(fn, a, bits)

    def both(self, a: Operand | None, b: Operand | None) -> Operand | None:
        """The conjunction of two conditions; None is true, 0 false."""
        if a is None or b is None:
            return b if a is None else a
        if a == 0 or b == 0:
            return 0
        return a if a == b else self.compute("and", a, b, "i1")

    def pick(self, condition: Operand, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if isinstance(condition, int):
            return a if condition else b
        return self.integer("select", type, (condition, a, b))

    def folded(self, fn: Arithmetic, a: Operand, b: Operand, type: str = "i32") -> Operand:
        """As `compute`; of two numbers a number, which is as wide as it has to be."""
        if isinstance(a, int) and isinstance(b, int):
            return int(meaning_of(fn)(width_of(type), a, b))
        return self.compute(fn, a, b, type)


class Integers(IntegerBuilder):
    """Integers of a kernel: `head` makes those that are made once, at the start, of others that are
    made there. block_bits: the first bit of a thread's number that is one of the block's in its
    cluster."""

    def __init__(
        self, head: IntegerBuilder | None = None, block_bits: int = MAX_THREAD_BITS
    ) -> None:
        self.head = head if head is not None else self
        self._block_bits = block_bits
        self._threads: dict[tuple[tuple[int, int], ...], Operand] = {}

    def name_of(self) -> str:
        """A fresh name."""
        raise NotImplementedError

    @property
    def tid(self) -> str:
        """The number of the thread in its block."""
        raise NotImplementedError

    @property
    def rank(self) -> str:
        """The number of the block in its cluster."""
        raise NotImplementedError

    def size(self, dim: int, type: str = "i32") -> Operand:
        """A dim as an operand: a symbolic one is a parameter of the kernel. An i32 is taken to fit,
        which is a guard of the kernel."""
        if not isinstance(dim, DimExpr):
            return dim
        name = integer(dim, type).ref
        if type == "i32":
            if not dim <= INT32 or not dim >= -INT32:
                raise LoweringError(f"the dim {dim} needs more than 32 bits")
        return name

    def offset(self, dim: int, type: str = "i32") -> Operand:
        """`size` of what differs from register to register, made of parameters for its terms."""
        if not isinstance(dim, DimExpr):
            return dim
        total: Operand = 0
        for monomial, factor in dim.terms:
            part = self.size(dims.product([dims.of_atom(atom) for atom in monomial]), type)
            total = self.plus(total, self.times(part, factor, type), type)
        return total

    def total(self, linear: Linear, type: str = "i32") -> Operand:
        constant = self.offset(linear.constant, type)
        return constant if linear.dynamic is None else self.plus(linear.dynamic, constant, type)

    # threads ------------------------------------------------------------------------------------

    def thread_offset(self, bases: Sequence[int]) -> Operand:
        """sum of bases[b] over the bits b that are set in the thread number, the last of which may
        be those of the block's number in its cluster."""
        runs: list[tuple[int, int, int]] = []  # first bit, count, basis
        for bit, basis in enumerate(bases):
            if not basis:
                continue
            if runs and bit != self._block_bits:
                first, count, start = runs[-1]
                if first + count == bit and basis == start << count:
                    runs[-1] = (first, count + 1, start)
                    continue
            runs.append((bit, 1, basis))
        key = tuple((bit, basis) for bit, basis in enumerate(bases) if basis)
        if key in self._threads:
            return self._threads[key]
        total: Operand = 0
        for first, count, basis in runs:
            number, shifted = self.tid, first
            if first >= self._block_bits:
                number, shifted = self.rank, first - self._block_bits
            part = self.head.shift("lshr", number, shifted)
            part = self.head.times(self.head.bitwise("and", part, (1 << count) - 1), basis)
            total = self.head.plus(total, part)
        self._threads[key] = total
        return total

    def thread_coordinate(self, bits: Sequence[Coordinates], axis: int) -> Operand:
        """The part of the coordinate along an axis that the thread number gives."""
        return self.thread_offset([basis[axis] for basis in bits])
