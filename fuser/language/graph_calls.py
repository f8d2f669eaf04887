"""A launch as a node of a graph: which arrays a kernel reads and writes is found from the kernel.

    call = make_call(kernel, bound, memories, grid, options)
    call.memories        # what it needs of each array, and what it changes

All numbers of the launch are compiled in. The kernel is traced once here, to see what it does to
its arrays: an array that it only stores to, and every element of it exactly once, is a result whose
old contents nobody needs. What cannot be proved so needs the old contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fuser.base.target import X86_64_V3 as ANY
from fuser.base.target import Target
from fuser.errors import UnsupportedError, VerifyError
from fuser.graph.ir import TensorType
from fuser.graph.ops.kernel_call import KernelCall, Memory, result_types
from fuser.graph.ops.primitive import Array
from fuser.graph.sizes import Sizes, size_hint
from fuser.language.addresses import MEMORY
from fuser.language.arguments import Arguments, classify
from fuser.language.compile import (
    ArgumentClass,
    ArrayClass,
    Fixed,
    FloatClass,
    IntegerClass,
    Options,
    Program,
    finish,
    trace,
)
from fuser.language.internal import located
from fuser.language.jit import KernelFunction
from fuser.language.order import depends_on_order
from fuser.language.stand_ins import Retyped
from fuser.tilegen.coverage import covers
from fuser.tilegen.coverage.access import loads_of, stores_of
from fuser.tilegen.coverage.count import points_of
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Buffer, Kernel
from fuser.tilegen.ops import Load
from fuser.tilegen.text import print_kernel
from fuser.tilegen.verify import verify
from fuser.tilegen.work import count

ALIGNED = 16
"""Bytes that arrays on a GPU begin at multiples of."""


@dataclass(frozen=True)
class InMemory:
    """An array argument of a launch that is recorded: where it lies in memory number `memory`.
    strides and offset are in elements."""

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


class LanguageCall(KernelCall):
    """A call of a kernel of the language."""

    def __init__(
        self, function: KernelFunction, bound: Mapping[str, Any], found: Arguments,
        places: Mapping[int, InMemory], grid: Sequence[int], options: Options,
    ) -> None:  # fmt: skip
        """bound: arguments by parameter, arrays as `InMemory`. places: of the leaves that are
        arrays."""
        self._bound = dict(bound)
        self.function, self._found, self._places = function, found, dict(places)
        self._grid, self._options = tuple(grid), options
        self.name = function.fn.__name__

    def trace(self, target: Target) -> Program:
        """The tile program for a target, before its passes."""
        leaves = iter(enumerate(self._found.leaves))
        classes = {
            name: self._class(kind, leaves, target) for name, kind in self._found.classes.items()
        }
        with Sizes({}) as sizes:
            program = trace(
                self.function, classes, self._found.leaves, self._grid,
                self._options.on(target), sizes, open_grid=False,
            )  # fmt: skip
        if MEMORY in program.buffers:
            raise self._unsupported("points to memory by addresses")
        if program.reports is not None:
            raise self._unsupported("prints or asserts")
        self._bind(program)
        return program

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.name} {what}, which a kernel in a graph cannot",
            where=self.function.source.place(self.function.source.tree),
            hint="launch it outside of the graph",
        )

    def _class(
        self, kind: ArgumentClass, leaves: Iterator[tuple[int, Any]], target: Target
    ) -> ArgumentClass:
        """The class with its number in it; arrays are aligned as those of a plan are."""
        if isinstance(kind, tuple):
            items = tuple(self._class(item, leaves, target) for item in kind)
            return type(kind)(*items) if hasattr(kind, "_fields") else items  # type: ignore[arg-type]
        leaf, value = next(leaves)
        if isinstance(kind, IntegerClass | FloatClass):
            return Fixed(value, kind.dtype)
        if not isinstance(kind, ArrayClass):
            return kind
        place = self._places[leaf]
        shared = sum(other.memory == place.memory for other in self._places.values()) > 1
        size = kind.element.ir.bytes
        begins = target.is_cuda and place.offset * size % ALIGNED == 0
        return replace(
            kind, align=ALIGNED if begins else size, alias=place.memory + 1 if shared else 0
        )

    def _bind(self, program: Program) -> None:
        """Let buffers have the sizes of memories, and views of them begin where arrays do."""
        sizes = {leaf: self._memory_types[p.memory].size for leaf, p in self._places.items()}
        offsets: dict[Buffer, int] = {}
        for buffer, leaf in zip(program.kernel.buffers, program.buffers, strict=True):
            place = self._places[leaf]
            if buffer.dtype is not self._memory_types[place.memory].dtype:
                raise self._unsupported(f"reads {self._found.names[leaf]} as another type")
            buffer.size = sizes[leaf]
            offsets[buffer] = place.offset
        for view in program.kernel.views:
            view.offset += offsets[view.buffer]

    def prepare(self, types: Sequence[TensorType]) -> None:
        """Find what the kernel does to each memory."""
        self._memory_types = tuple(types)
        program = self.trace(ANY)
        self._texts = print_kernel(program.kernel)
        kernel = program.kernel
        with located(self.function, kernel):
            verify(kernel)
        if self._options.deterministic and depends_on_order(kernel):
            raise self._unsupported("has an atomic whose order decides its result")
        done: dict[int, str] = {}
        buffers: dict[int, list[Buffer]] = {}
        met = kernel.accessed()
        for buffer, leaf in zip(kernel.buffers, program.buffers, strict=True):
            memory = self._places[leaf].memory
            buffers.setdefault(memory, []).append(buffer)
            done[memory] = done.get(memory, "") + met.get(buffer, "")
        operands = results = 0
        memories = []
        for number, type in enumerate(types):
            deeds = done.get(number, "")
            operand = result = None
            if deeds.strip("r"):
                result, results = results, results + 1
            kept = result is None or deeds.strip("w") or not _whole(kernel, buffers[number], type)
            if deeds and kept:
                operand, operands = operands, operands + 1
            reads = type.size if result is not None else _reads(kernel, buffers.get(number, ()))
            memories.append(Memory(self._name_of(number), type, operand, result, reads))
        self.memories = tuple(memories)
        self.flops = count(kernel, size_hint).flops
        roles = [(m.type, m.operand, m.result, m.reads) for m in memories]
        bound = [self._places[leaf].memory for leaf in program.buffers]
        told = f"{self._texts}{self._options}{roles}{bound}"
        self.digest = hashlib.sha256(told.encode()).hexdigest()[:16]

    def _name_of(self, memory: int) -> str:
        named = (
            self._found.names[leaf] for leaf, place in self._places.items()
            if place.memory == memory
        )  # fmt: skip
        return next(named, f"memory {memory}")

    def program(self, target: Target) -> tuple[Kernel, tuple[int, ...]]:
        with Sizes({}) as sizes:
            program = self.trace(target)
            with located(self.function, program.kernel):
                finish(program, sizes, target if target.is_cuda else None)
        return program.kernel, tuple(self._places[leaf].memory for leaf in program.buffers)

    def launch(self, view: Callable[[InMemory], Any]) -> None:
        """Launch the kernel on arrays: view gives that of each argument."""
        from fuser.language.variants import launch

        given = {name: _replaced(value, view) for name, value in self._bound.items()}
        found = classify(
            given, self.function.constexprs, self.function.plain, self.function.annotated
        )
        launch(self.function.variant(found, self._grid, self._options), found, self._grid)

    def evaluate(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        program = self.trace(ANY)
        held: dict[int, Array] = {}
        for number, memory in enumerate(self.memories):
            dtype, size = memory.type.dtype.numpy, memory.type.size
            if memory.operand is None:
                held[number] = np.zeros(size, dtype)
            else:
                held[number] = np.array(arrays[memory.operand], dtype, order="C").reshape(-1)
        places = [self._places[leaf] for leaf in program.buffers]
        named = {
            buffer.name: held[place.memory]
            for buffer, place in zip(program.kernel.buffers, places, strict=True)
        }
        run(program.kernel, named, equal_stores=True)
        made = {m.result: held[n].reshape(m.type.shape) for n, m in enumerate(self.memories)}
        return tuple(made[index] for index in range(len(result_types(self))))


def _replaced(value: Any, array: Callable[[InMemory], Any]) -> Any:
    """An argument, with an array for each place in memory."""
    if isinstance(value, InMemory):
        return array(value)
    if isinstance(value, tuple):
        items = tuple(_replaced(item, array) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else items
    return value


def _whole(kernel: Kernel, buffers: Sequence[Buffer], type: TensorType) -> bool:
    """Whether the kernel stores every element exactly once."""
    if len(buffers) != 1:
        return False
    stores = [access for access in stores_of(kernel) if access.buffer is buffers[0]]
    return bool(stores) and covers(stores, type.size)


def _reads(kernel: Kernel, buffers: Sequence[Buffer]) -> int | None:
    """How many elements of memory that is only read the loads ask for, None where data decides."""
    loads = [op for op in kernel.walk() if isinstance(op, Load) and op.view.buffer in buffers]
    found = [access for buffer in buffers for access in loads_of(kernel, buffer)]
    if len(found) != len(loads) or not all(access.is_static for access in found):
        return None
    return sum(points_of(access) * size_hint(access.repeats) for access in found)


def make_call(
    function: KernelFunction, bound: Mapping[str, Any], types: Sequence[TensorType],
    grid: Sequence[int], options: Options,
) -> LanguageCall:  # fmt: skip
    """A launch as a call. bound: the arguments by parameter, arrays as `InMemory`, alone or in
    tuples. types: of the memories. Raises LanguageError, UnsupportedError, UsageError."""
    arrays: dict[int, InMemory] = {}

    def stand_in(place: InMemory) -> Any:
        dtype = types[place.memory].dtype.numpy
        steps = [stride * dtype.itemsize for stride in place.strides]
        made = as_strided(np.empty(1, dtype), place.shape, steps)  # sizes alone: nobody reads it
        arrays[id(made)] = place
        return made

    given = {name: _replaced(value, stand_in) for name, value in bound.items()}
    found = classify(given, function.constexprs, function.plain, function.annotated)
    places = {}
    for leaf in found.records:
        value = found.leaves[leaf]
        places[leaf] = arrays[id(value.base if isinstance(value, Retyped) else value)]
    made = LanguageCall(function, bound, found, places, grid, options)
    made.prepare(types)
    made.remember()
    return made


__all__ = ["InMemory", "LanguageCall", "VerifyError", "make_call"]
