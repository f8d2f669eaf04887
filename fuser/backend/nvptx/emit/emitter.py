"""The function under construction: the shared writer, and integers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fuser.backend.function import Block, Function
from fuser.backend.nvptx.emit.integers import bit, integer_text
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.integers import MAX_THREAD_BITS, IntegerBuilder, Integers
from fuser.backend.text import Reg

_SHORT_SIZE = re.compile(r"%size\.(\d+)\.i32\b")


@dataclass
class Sources:
    """What values were made of. packed: of bfloat16 values, (vector that was loaded, its width,
    place in it). halves: of values of 16 bits, (word that they were taken from, which half).
    shifted: of words that were shifted right, (what was, by how many bits). masked: of words with
    the halves masked by constants, (what was masked, the mask)."""

    packed: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    halves: dict[str, tuple[str, int]] = field(default_factory=dict)
    shifted: dict[str, tuple[str, int]] = field(default_factory=dict)
    masked: dict[str, tuple[str, str]] = field(default_factory=dict)


class Emitter(Integers, Function):
    """A kernel function. Values are plain names here; `Reg`s are made where helpers want them. sm:
    the compute capability, 90 for 9.0. fast: products may be contracted with sums, and divisions be
    approximate."""

    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        attributes: str,
        sm: int = 0,
        fast: bool = False,
        block_bits: int = MAX_THREAD_BITS,
    ) -> None:
        Integers.__init__(self, _Head(self), block_bits)
        Function.__init__(
            self, name, "void", params, convention="ptx_kernel", attributes=attributes
        )
        self.entry: list[str] = []
        self._numbers = itertools.count()
        self._has_tid = self._has_rank = False
        self.sources = Sources()
        self.sm, self.fast = sm, fast

    @property
    def rounds_packed(self) -> bool:
        """Whether one instruction rounds two float32 numbers to 16 bits."""
        return self.sm >= 80

    # text ---------------------------------------------------------------------------------------

    def name_of(self) -> str:
        """A fresh SSA name."""
        return f"%t{next(self._numbers)}"

    def value(self, text: str) -> str:
        """Append an instruction that has a result; its name."""
        name = f"%t{next(self._numbers)}"
        self.at.lines.append(f"{name} = {text}")
        return name

    def integer(self, fn: str, type: str, operands: tuple[Operand, ...], to: str = "") -> str:
        return self.value(integer_text(fn, type, operands, to))

    def define(self, name: str, text: str) -> None:
        """Append an instruction whose result has a name already."""
        self.at.lines.append(f"{name} = {text}")

    def do(self, text: str) -> None:
        self.at.lines.append(text)

    def hoisted(self, text: str) -> str:
        """An instruction at the head of the function: it may use only other hoisted values."""
        name = f"%h{next(self._numbers)}"
        self.entry.append(f"{name} = {text}")
        return name

    def jump(self, target: Block) -> None:
        self.do(f"br label %{target.label}")

    def branch(self, condition: Operand, then: Block, other: Block) -> None:
        self.do(f"br i1 {bit(condition)}, label %{then.label}, label %{other.label}")

    @contextmanager
    def where(self, condition: Operand) -> Iterator[None]:
        """Run what is emitted inside only where the condition holds."""
        then, done = self.block("then"), self.block("done")
        self.branch(condition, then, done)
        self.enter(then)
        yield
        self.jump(done)
        self.enter(done)

    def finish(
        self, sizes: int = 0, scalars: int = 0, bounds: Mapping[str, Reg] | None = None
    ) -> None:
        """Return, and place the hoisted instructions. sizes: how many symbolic dims are parameters,
        after all others; scalars: how many numbers of the launch follow them. bounds: the dims are
        in memory instead, at the parameter "sizes"; by letter how many blocks there are, where more
        may have been launched."""
        self.at.lines.append("ret void")
        if bounds is None:
            self.params += [("i64", f"size.{number}") for number in range(sizes)]
        self.params += [("i64", f"scalar.{number}") for number in range(scalars)]
        short = (
            [f"%size.{n}.i32 = trunc i64 %size.{n} to i32" for n in self._short()] if sizes else []
        )
        self.blocks[0].lines[:0] = [*short, *self.entry]
        if bounds is not None:
            self._read_sizes(sizes, bounds)

    def _short(self) -> list[int]:
        """The symbolic dims whose low halves are used, whoever wrote the use."""
        lines = itertools.chain(self.entry, *(block.lines for block in self.blocks))
        return sorted({int(number) for line in lines for number in _SHORT_SIZE.findall(line)})

    def _read_sizes(self, count: int, bounds: Mapping[str, Reg]) -> None:
        """Read the dims before all else; blocks that are beyond their bound return."""
        begin, none = self.block("begin"), self.block("none")
        for number in range(count):
            at = f"%size.{number}.at"
            begin.lines.append(f"{at} = getelementptr i64, ptr addrspace(1) %sizes, i64 {number}")
            load = f"load i64, ptr addrspace(1) {at}, align 8, !invariant.load !2"
            begin.lines.append(f"%size.{number} = {load}")
        beyond = "false"
        for letter, bound in bounds.items():
            name = f"%block.{letter}"
            register = f"@llvm.nvvm.read.ptx.sreg.ctaid.{letter}()"
            begin.lines.extend([
                f"{name} = call i32 {register}",
                f"{name}.long = zext i32 {name} to i64",
                f"{name}.none = icmp uge i64 {name}.long, {bound}",
                f"{name}.any = or i1 {beyond}, {name}.none",
            ])  # fmt: skip
            beyond = f"{name}.any"
        first = self.blocks[0].label
        if bounds:
            begin.lines.append(f"br i1 {beyond}, label %{none.label}, label %{first}")
            none.lines.append("ret void")
            self.blocks.append(none)
        else:
            begin.lines.append(f"br label %{first}")
        self.blocks[:0] = [begin]

    @property
    def tid(self) -> str:
        """The number of the thread in its block."""
        if not self._has_tid:
            self._has_tid = True
            self._first("%tid", "tid.x")
        return "%tid"

    def uniform(self, number: Operand) -> Operand:
        """A hoisted number that is the same in all threads of a warp, passed through a shuffle,
        which tells the compiler so."""
        return self.head.lane(number, 0)

    @property
    def rank(self) -> str:
        """The number of the block in its cluster."""
        if not self._has_rank:
            self._has_rank = True
            self._first("%rank", "cluster.ctarank")
        return "%rank"

    def _first(self, name: str, register: str) -> None:
        """A special register, read before all else."""
        self.entry.insert(0, f"{name} = {integer_text(register, 'i32', ())}")


class _Head(IntegerBuilder):
    """Writes at the head of the function."""

    def __init__(self, of: Emitter) -> None:
        self._of = of

    def integer(self, fn: str, type: str, operands: tuple[Operand, ...], to: str = "") -> str:
        return self._of.hoisted(integer_text(fn, type, operands, to))
