"""The function under construction: the shared writer plus folded i32 arithmetic and thread numbers.

Operands are Python ints (constants) or SSA names; arithmetic on two ints happens here and now.
Symbolic dims are parameters of the kernel (`Emitter.size`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from fuser.backend.function import Block, Function
from fuser.backend.nvptx.layout import Coordinates
from fuser.backend.nvptx.recorder import Recorder
from fuser.backend.text import integer
from fuser.errors import LoweringError
from fuser.graph import dims
from fuser.graph.dims import DimExpr

Operand = str | int
INT32 = (1 << 31) - 1


class Linear(NamedTuple):
    """dynamic + constant, which may be a symbolic dim; dynamic None is 0."""

    dynamic: str | None
    constant: int


class Emitter(Function):
    """A kernel function. Values are plain names here; `Reg`s are made where helpers want them."""

    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        attributes: str,
        recorder: Recorder | None = None,
    ) -> None:
        """recorder: is told what is written beside ops."""
        self._recorder: Recorder | None = None
        super().__init__(name, "void", params, convention="ptx_kernel", attributes=attributes)
        self.entry: list[str] = []
        self._numbers = itertools.count()
        self._threads: dict[tuple[tuple[int, int], ...], Operand] = {}
        self._has_tid = self._has_rank = False
        self._short: set[int] = set()
        self.block_bits = 32
        self.packed: dict[str, tuple[str, int, int]] = {}
        """Of bfloat16 values: (vector that was loaded, its width, place in it)."""
        self._recorder = recorder

    # text ---------------------------------------------------------------------------------------

    def name_of(self) -> str:
        """A fresh SSA name."""
        return f"%t{next(self._numbers)}"

    def value(self, text: str) -> str:
        """Append an instruction that has a result; its name."""
        name = f"%t{next(self._numbers)}"
        self.at.lines.append(f"{name} = {text}")
        if self._recorder is not None:
            self._recorder.written(text, name)
        return name

    def define(self, name: str, text: str) -> None:
        """Append an instruction whose result has a name already."""
        self.at.lines.append(f"{name} = {text}")

    def do(self, text: str) -> None:
        self.at.lines.append(text)
        if self._recorder is not None:
            self._recorder.written(text)

    def hoisted(self, text: str) -> str:
        """An instruction at the head of the function: it may use only other hoisted values."""
        name = f"%h{next(self._numbers)}"
        self.entry.append(f"{name} = {text}")
        if self._recorder is not None:
            self._recorder.written(text, name, hoisted=True)
        return name

    def jump(self, target: Block) -> None:
        self.do(f"br label %{target.label}")

    def branch(self, condition: Operand, then: Block, other: Block) -> None:
        self.do(f"br i1 {_bit(condition)}, label %{then.label}, label %{other.label}")

    @contextmanager
    def where(self, condition: Operand) -> Iterator[None]:
        """Run what is emitted inside only where the condition holds."""
        then, done = self.block("then"), self.block("done")
        self.branch(condition, then, done)
        self.enter(then)
        yield
        self.jump(done)
        self.enter(done)

    def finish(self, sizes: int = 0, scalars: int = 0) -> None:
        """Return, and place the hoisted instructions. sizes: how many symbolic dims are parameters,
        behind all others; scalars: how many numbers of the launch follow them."""
        self.at.lines.append("ret void")
        self.params += [("i64", f"size.{number}") for number in range(sizes)]
        self.params += [("i64", f"scalar.{number}") for number in range(scalars)]
        short = [f"%size.{n}.i32 = trunc i64 %size.{n} to i32" for n in sorted(self._short)]
        self.blocks[0].lines[:0] = [*short, *self.entry]

    # integers -----------------------------------------------------------------------------------

    def size(self, dim: int, type: str = "i32") -> Operand:
        """A dim as an operand: a symbolic one is a parameter of the kernel. An i32 is taken to fit,
        which is a guard of the kernel."""
        if not isinstance(dim, DimExpr):
            return dim
        name = integer(dim, type).ref
        if type == "i32":
            self._short.add(int(name.split(".")[1]))
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

    @property
    def tid(self) -> str:
        """The number of the thread in its block."""
        if not self._has_tid:
            self._has_tid = True
            self._first("%tid", "tid.x")
        return "%tid"

    @property
    def rank(self) -> str:
        """The number of the block in its cluster."""
        if not self._has_rank:
            self._has_rank = True
            self._first("%rank", "cluster.ctarank")
        return "%rank"

    def _first(self, name: str, register: str) -> None:
        """A special register, read before all else."""
        text = f"call i32 @llvm.nvvm.read.ptx.sreg.{register}()"
        self.entry.insert(0, f"{name} = {text}")
        if self._recorder is not None:
            self._recorder.written(text, name, hoisted=True)

    def thread_part(self, bases: Sequence[int]) -> Operand:
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
        return self.thread_part([basis[axis] for basis in bits])


def _bit(condition: Operand) -> str:
    if isinstance(condition, int):
        return "true" if condition else "false"
    return condition
