"""Arithmetic on integers, folded where both are known, and thread numbers.

Operands are Python ints (constants) or names; arithmetic on two ints happens here and now. Symbolic
dims are parameters of the kernel (`Integers.size`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.layout import Coordinates
from fuser.backend.text import integer
from fuser.errors import LoweringError
from fuser.graph import dims
from fuser.graph.dims import DimExpr

INT32 = (1 << 31) - 1


class Linear(NamedTuple):
    """dynamic + constant, which may be a symbolic dim; dynamic None is 0."""

    dynamic: str | None
    constant: int


class Integers:
    """What makes integers of others, as LLVM spells them. block_bits: the first bit of a thread's
    number that is one of the block's in its cluster."""

    block_bits = 32

    def __init__(self) -> None:
        self._threads: dict[tuple[tuple[int, int], ...], Operand] = {}

    def value(self, text: str) -> str:
        """An instruction that has a result; its name."""
        raise NotImplementedError

    def hoisted(self, text: str) -> str:
        """An instruction at the head of the function: it may use only other hoisted values."""
        raise NotImplementedError

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

    def plus(self, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self.value(f"add {type} {a}, {b}")

    def minus(self, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.value(f"sub {type} {a}, {b}")

    def times(self, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self.value(f"mul {type} {a}, {b}")

    def bitwise(self, op: str, a: Operand, b: Operand) -> Operand:
        """and, or, xor of i32."""
        if isinstance(a, int) and isinstance(b, int):
            return {"and": a & b, "or": a | b, "xor": a ^ b}[op]
        if b == 0 or a == 0:
            if op == "and":
                return 0
            return a if b == 0 else b
        return self.value(f"{op} i32 {a}, {b}")

    def shift(self, op: str, a: Operand, bits: int) -> Operand:
        """shl or lshr of i32."""
        if isinstance(a, int):
            return a << bits if op == "shl" else a >> bits
        return a if bits == 0 else self.value(f"{op} i32 {a}, {bits}")

    def both(self, a: Operand | None, b: Operand | None) -> Operand | None:
        """The conjunction of two conditions; None is true, 0 false."""
        if a is None or b is None:
            return b if a is None else a
        if a == 0 or b == 0:
            return 0
        return a if a == b else self.value(f"and i1 {a}, {b}")

    def pick(self, condition: Operand, a: Operand, b: Operand, type: str = "i32") -> Operand:
        if isinstance(condition, int):
            return a if condition else b
        return self.value(f"select i1 {condition}, {type} {a}, {type} {b}")

    def total(self, linear: Linear, type: str = "i32") -> Operand:
        constant = self.offset(linear.constant, type)
        return constant if linear.dynamic is None else self.plus(linear.dynamic, constant, type)

    # threads ------------------------------------------------------------------------------------

    def thread_offset(self, bases: Sequence[int]) -> Operand:
        """sum of bases[b] over the bits b that are set in the thread number; bits from
        `block_bits` on are those of the block's number in its cluster."""
        runs: list[tuple[int, int, int]] = []  # first bit, count, basis
        for bit, basis in enumerate(bases):
            if not basis:
                continue
            if runs and bit != self.block_bits:
                first, count, start = runs[-1]
                if first + count == bit and basis == start << count:
                    runs[-1] = (first, count + 1, start)
                    continue
            runs.append((bit, 1, basis))
        key = tuple((bit, basis) for bit, basis in enumerate(bases) if basis)
        if key in self._threads:
            return self._threads[key]
        total: str | None = None
        for first, count, basis in runs:
            part = self.tid
            if first >= self.block_bits:
                part, first = self.rank, first - self.block_bits
            if first:
                part = self.hoisted(f"lshr i32 {part}, {first}")
            part = self.hoisted(f"and i32 {part}, {(1 << count) - 1}")
            if basis != 1:
                part = self.hoisted(f"mul i32 {part}, {basis}")
            total = part if total is None else self.hoisted(f"add i32 {total}, {part}")
        result: Operand = 0 if total is None else total
        self._threads[key] = result
        return result

    def thread_coordinate(self, bits: Sequence[Coordinates], axis: int) -> Operand:
        """The part of the coordinate along an axis that the thread number gives."""
        return self.thread_offset([basis[axis] for basis in bits])
