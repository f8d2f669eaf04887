"""Ops as they are made: a kernel's blocks, and which one is being filled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.lowering.integers import MAX_THREAD_BITS, IntegerBuilder, Integers


class Recorder:
    """The ops of a kernel. head: integers that are made once. origin: the ONNX nodes of what is
    lowered."""

    def __init__(self, origin: tuple[str, ...] = ()) -> None:
        self.head, self.body = Block(), Block()
        self.origin = origin
        self.open = [self.body]
        self._names = itertools.count()

    def add(self, op: Op) -> None:
        """Add an op to the block that is being filled."""
        if not op.origin:
            op.come_from(self.origin)
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


class Scalars(Integers):
    """Integers that are recorded as ops. prefix: of their names."""

    def __init__(
        self, recorder: Recorder, prefix: str = "%s", block_bits: int = MAX_THREAD_BITS
    ) -> None:
        super().__init__(_Head(self, recorder), block_bits)
        self._recorder, self._prefix = recorder, prefix
        self._numbers = itertools.count()
        self._special: set[str] = set()

    def name_of(self) -> str:
        return f"{self._prefix}{next(self._numbers)}"

    def integer(self, fn: str, type: str, operands: tuple[Operand, ...], to: str = "") -> str:
        name = self.name_of()
        self._recorder.add(Integer(fn=fn, type=type, operands=operands, to=to, names=(name,)))
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
            self._recorder.head.ops.append(Integer(fn=register, names=(name,)))
        return name


class _Head(IntegerBuilder):
    """Records at the head of the kernel."""

    def __init__(self, of: Scalars, recorder: Recorder) -> None:
        self._of, self._recorder = of, recorder

    def integer(self, fn: str, type: str, operands: tuple[Operand, ...], to: str = "") -> str:
        name = self._of.name_of()
        op = Integer(fn=fn, type=type, operands=operands, to=to, names=(name,))
        self._recorder.head.ops.append(op)
        return name


class Region:
    """An op with blocks that is being recorded: `following` goes on to its next block that is not
    there already, or after it."""

    def __init__(self, recorder: Recorder, op: Op) -> None:
        self.recorder, self.op = recorder, op
        self.blocks = (block for block in op.blocks() if not block.ops)
        self.inside = False
        recorder.add(op)
        self.following()

    def following(self) -> None:
        """End the block that is being filled."""
        if self.inside:
            self.recorder.open.pop()
        block = next(self.blocks, None)
        self.inside = block is not None
        if block is not None:
            self.recorder.open.append(block)
