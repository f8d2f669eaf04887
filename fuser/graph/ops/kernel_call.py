"""The primitive that is a user's kernel: a launch over a grid, as a function of tensors.

    %y = kernel_call(%x, %w) {call = norm_kernel:6f1c0e5d2a9b4477} : f32[64, 768]

A kernel reads and writes memory. Here each array that it is given is a `Memory`: an operand where
the kernel needs what the memory holds before, and a result where it writes. Of memory that a kernel
writes throughout nobody needs what it held, so that such an array is a result alone; one that is
both is a copy of the operand that the kernel then changes.

What the kernel is, the rooms that know its language say (`fuser/language/graph_calls.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from fuser.base.target import Target
from fuser.errors import ShapeError
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.primitive import Array, Primitive


@dataclass(frozen=True)
class Memory:
    """Memory that a kernel is given, in row-major order. operand, result: which operand of the node
    holds what is there before, which result what is there after; None: nobody needs it. reads: how
    many elements of the operand are read, each as often as it is; None where data decides which."""

    name: str
    type: TensorType
    operand: int | None
    result: int | None
    reads: int | None = None

    @property
    def is_written_once(self) -> bool:
        """Whether each element is stored once, and none is read."""
        return self.result is not None and self.operand is None


class KernelCall(ABC):
    """A kernel with all of its arguments but the contents of arrays. Calls are equal where their
    digests are."""

    name: str
    digest: str
    flops: int
    memories: tuple[Memory, ...]

    @abstractmethod
    def evaluate(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The results for arrays that are the operands, in the interpreter."""

    @abstractmethod
    def program(self, target: Target) -> tuple[Any, tuple[int, ...]]:
        """A kernel in Tile IR of its own, and which memory each of its buffers is."""

    def operand(self, index: int) -> Memory:
        """The memory whose contents an operand is."""
        return next(memory for memory in self.memories if memory.operand == index)

    def remember(self) -> None:
        """Let the text of a graph name it."""
        CALLS[str(self)] = self

    def __str__(self) -> str:
        return f"{self.name}:{self.digest}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelCall) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


CALLS: WeakValueDictionary[str, KernelCall] = WeakValueDictionary()
"""The calls of this process that there are, by their text."""


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array in order, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    call: KernelCall = attrs["call"]
    wanted = [memory for memory in call.memories if memory.operand is not None]
    for memory in wanted:
        assert memory.operand is not None
        if memory.operand >= len(types) or types[memory.operand] != memory.type:
            found = types[memory.operand] if memory.operand < len(types) else "nothing"
            raise ShapeError(f"{call.name}: {memory.name} is {found}, not {memory.type}")
    if len(types) != len(wanted):
        raise ShapeError(f"{call.name} takes {len(wanted)} operands, got {len(types)}")
    return result_types(call)


def result_types(call: KernelCall) -> tuple[TensorType, ...]:
    """The types of what a call gives, in order."""
    made = {memory.result: memory.type for memory in call.memories if memory.result is not None}
    return tuple(made[index] for index in range(len(made)))


def _evaluate(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    call: KernelCall = attrs["call"]
    return call.evaluate(arrays)


PRIMITIVES: tuple[Primitive, ...] = (Primitive(KERNEL_CALL, "other", None, _infer, _evaluate),)
