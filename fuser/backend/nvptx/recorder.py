"""Ops as they are made: a kernel's blocks, and which one is being filled.

For now the code of an op is written as soon as it is recorded; what is written beside ops is
recorded as integers, or as raw code.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.integers import Integers
from fuser.backend.nvptx.ir.op import Block, Integer, Op, Raw

_INTEGER = re.compile(
    r"(add|sub|mul|udiv|urem|sdiv|srem|and|or|xor|shl|lshr|ashr|trunc|zext|sext) i\d+ "
    r"|icmp \w+ i\d+ |select i1 [^,]+, i\d+ |and i1 |or i1 |xor i1 "
    r"|call i\d+ @llvm\.(smin|smax|umin|umax|nvvm\.read\.ptx\.sreg|nvvm\.shfl\.sync\.idx)\."
)


class Recorder:
    """The ops of a kernel. head: integers that are made once. writing: whether the code of an op is
    being written. origin: the ONNX nodes of what is lowered."""

    def __init__(self) -> None:
        self.head, self.body = Block(), Block()
        self.origin: tuple[str, ...] = ()
        self.open = [self.body]
        self.writing = False
        self._names = itertools.count()

    def add(self, op: Op) -> None:
        op.origin = op.origin or self.origin
        self.open[-1].ops.append(op)

    def name(self, hint: str = "x") -> str:
        """A name for a tile."""
        return f"%{hint.rstrip('0123456789_.') or 'x'}{next(self._names)}"

    @contextmanager
    def of(self, origin: tuple[str, ...]) -> Iterator[None]:
        """What is recorded meanwhile comes from some ONNX nodes."""
        before, self.origin = self.origin, origin or self.origin
        yield
        self.origin = before

    @contextmanager
    def code(self) -> Iterator[None]:
        """What is written meanwhile is the code of an op that is recorded."""
        before, self.writing = self.writing, True
        yield
        self.writing = before

    def written(self, text: str, result: str = "", hoisted: bool = False) -> None:
        """Note what is written beside ops. hoisted: at the head, by whoever needs it first."""
        if hoisted:
            self.head.ops.append(Integer(text=text, names=(result,)))
        elif self.writing:
            return
        elif result and _INTEGER.match(text):
            self.add(Integer(text=text, names=(result,)))
        else:
            self.add(Raw(text=f"{result} = {text}" if result else text))


class Scalars(Integers):
    """Integers that are recorded as ops."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._numbers = itertools.count()
        self._special: set[str] = set()

    def name_of(self) -> str:
        return f"%s{next(self._numbers)}"

    def value(self, text: str) -> str:
        name = self.name_of()
        self._recorder.written(text, name)
        return name

    def hoisted(self, text: str) -> str:
        name = self.name_of()
        self._recorder.written(text, name, hoisted=True)
        return name

    @property
    def tid(self) -> str:
        return self._read("%tid", "tid.x")

    @property
    def rank(self) -> str:
        return self._read("%rank", "cluster.ctarank")

    def _read(self, name: str, register: str) -> str:
        if name not in self._special:
            self._special.add(name)
            text = f"call i32 @llvm.nvvm.read.ptx.sreg.{register}()"
            self._recorder.written(text, name, hoisted=True)
        return name


class Region:
    """An op with blocks that is being recorded: `following` goes on to its next block, or behind
    it."""

    def __init__(self, recorder: Recorder, op: Op, steps: Generator[Block, None, None]) -> None:
        self.recorder, self.op, self.steps = recorder, op, steps
        self.inside = False
        recorder.add(op)
        self.following()

    def following(self) -> None:
        """End the block that is being filled."""
        if self.inside:
            self.recorder.open.pop()
        with self.recorder.code():
            block = next(self.steps, None)
        self.inside = block is not None
        if block is not None:
            self.recorder.open.append(block)
